// Hotkeys of the page that compares: the next and the previous picture.
const links = [...document.querySelectorAll(".disagreement .about a")];
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select, img")) return;
  if (event.key !== "j" && event.key !== "k") return;
  const at = links.indexOf(document.activeElement) + (event.key === "j" ? 1 : -1);
  const link = links[Math.min(links.length - 1, Math.max(0, at))];
  link?.focus({ preventScroll: true });
  link?.closest(".pair").scrollIntoView({ block: "center" });
});
