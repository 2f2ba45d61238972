// Answers by key: the first open question takes the key. Without an open one, the marked question does, then the one
// after it, so that saved answers can be changed in turn. The page works without this script.
const form = document.getElementById("rate");
const fieldsets = form ? [...form.querySelectorAll("fieldset")] : [];
let revised = 0; // place of the marked question while none is open
const open = () => fieldsets.find((fieldset) => !fieldset.querySelector(":checked"));
const mark = () => {
  const next = open() ?? fieldsets[revised];
  fieldsets.forEach((fieldset) => fieldset.classList.toggle("next", fieldset === next));
};
const choiceOf = (key) => {
  const asked = open() ? [open()] : [...fieldsets.slice(revised), ...fieldsets.slice(0, revised)];
  return asked.map((fieldset) => fieldset.querySelector(`[data-key="${CSS.escape(key)}"]`)).find(Boolean);
};

form?.addEventListener("change", mark);
form?.addEventListener("focusin", (event) => {
  const place = fieldsets.indexOf(event.target.closest("fieldset"));
  if (place >= 0) revised = place;
  mark();
});
form?.addEventListener("submit", () => {
  for (const button of form.querySelectorAll("button")) button.disabled = true;
});
// A page from the browser's history comes back with the button as it was left.
addEventListener("pageshow", () => {
  for (const button of form?.querySelectorAll("button") ?? []) button.disabled = false;
  mark();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.key === "b") document.getElementById("before")?.click();
  if (!form) return;
  if (event.key === "Enter" && !event.target.closest("a, button")) {
    event.preventDefault();
    form.requestSubmit();
    return;
  }
  const choice = choiceOf(event.key);
  if (choice) {
    const answeredBefore = !open();
    choice.checked = true;
    choice.focus();
    const place = fieldsets.indexOf(choice.closest("fieldset"));
    revised = answeredBefore ? Math.min(place + 1, fieldsets.length - 1) : place;
    mark();
  }
});
