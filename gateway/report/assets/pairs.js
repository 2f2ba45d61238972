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
