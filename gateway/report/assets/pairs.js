// Shows the source in place of a counterfactual while it is pointed at, or while a key is held on it.
for (const shown of document.querySelectorAll(".counterfactual img")) {
  const source = shown.closest(".row").querySelector(".source img");
  const own = shown.src;
  const swap = (on) => {
    shown.src = on ? source.src : own;
    shown.classList.toggle("swapped", on);
  };
  shown.addEventListener("pointerenter", () => swap(true));
  shown.addEventListener("pointerleave", () => swap(false));
  shown.addEventListener("keydown", (event) => event.key.length === 1 && swap(true));
  shown.addEventListener("keyup", () => swap(false));
  shown.addEventListener("blur", () => swap(false));
}

// A link into a folded section opens it.
const unfold = () => {
  const section = location.hash && document.getElementById(location.hash.slice(1))?.closest("details");
  if (section) section.open = true;
};
addEventListener("hashchange", unfold);
unfold();

for (const code of document.querySelectorAll(".steps code")) {
  if (!code.textContent.startsWith("contrafact ")) continue;
  const button = document.createElement("button");
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", `Copy ${code.textContent}`);
  button.addEventListener("click", () => {
    getSelection().selectAllChildren(code); // the clipboard's API is refused to saved files
    button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
  });
  code.parentElement.append(button);
}
