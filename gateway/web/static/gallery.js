// Slider, blink and hotkeys of the gallery and of an image's page. Without this script, source and counterfactual are
// side by side, and every choice is a link.
document.documentElement.classList.add("scripted");
const main = document.getElementById("main");
const slider = document.getElementById("slider");
const blink = document.getElementById("blink");
const stages = [...document.querySelectorAll(".stage")];

const show = (stage, share) => stage.style.setProperty("--share", `${share}%`);
const showAll = (share) => {
  slider.value = share;
  for (const stage of stages) show(stage, slider.value);
};
slider?.addEventListener("input", () => showAll(slider.value));
if (slider) {
  for (const stage of stages) {
    stage.addEventListener("pointermove", (event) => {
      const box = stage.getBoundingClientRect();
      show(stage, Math.round((100 * (event.clientX - box.left)) / box.width));
    });
  }
}

const toggle = () => blink.setAttribute("aria-pressed", String(main.classList.toggle("blinked")));
blink?.addEventListener("click", toggle);
if (blink) {
  for (const stage of stages) {
    stage.addEventListener("pointerenter", () => stage.classList.add("own"));
    stage.addEventListener("pointerleave", () => stage.classList.remove("own"));
  }
}

const cards = [...document.querySelectorAll(".card h3 a")];
const step = (by) => {
  if (!cards.length) return document.getElementById(by > 0 ? "after" : "before")?.click();
  const at = cards.indexOf(document.activeElement) + by;
  const link = cards[Math.min(cards.length - 1, Math.max(0, at))];
  link.focus({ preventScroll: true });
  link.closest(".card").scrollIntoView({ block: "center" });
};
const actions = {
  j: () => step(1),
  k: () => step(-1),
  n: () => document.getElementById("after")?.click(),
  p: () => document.getElementById("before")?.click(),
  b: () => (blink ? toggle() : document.querySelector('[data-key="3"]')?.click()),
  Escape: () => document.getElementById("back")?.click(),
  ArrowLeft: () => slider && showAll(Number(slider.value) - 5),
  ArrowRight: () => slider && showAll(Number(slider.value) + 5),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches('input:not([type="range"]), textarea, select, pre')) return;
  if (event.target.matches("input") && event.key.startsWith("Arrow")) return; // the slider moves itself
  if (actions[event.key]) actions[event.key]();
  else document.querySelector(`[data-key="${CSS.escape(event.key)}"]`)?.click();
});
