// The slider and hotkeys of a pair's page.
const compare = document.getElementById("compare");
const slider = document.getElementById("slider");

const show = (share) => compare?.style.setProperty("--share", `${share}%`);
slider?.addEventListener("input", () => show(slider.value));
compare?.addEventListener("pointermove", (event) => {
  const box = compare.getBoundingClientRect();
  slider.value = Math.round((100 * (event.clientX - box.left)) / box.width);
  show(slider.value);
});

const links = { j: "after", k: "before", Escape: "back" };
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (links[event.key]) document.getElementById(links[event.key])?.click();
  if (event.key === "f" && slider) {
    slider.value = Number(slider.value) > 50 ? 0 : 100;
    show(slider.value);
  }
  if ((event.key === "ArrowLeft" || event.key === "ArrowRight") && slider && event.target !== slider) {
    slider.value = Number(slider.value) + (event.key === "ArrowRight" ? 5 : -5);
    show(slider.value);
  }
});
