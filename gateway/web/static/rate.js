// Answers by key: the first open question takes the key. The page works without this script.
const form = document.getElementById("rate");
const fieldsets = form ? [...form.querySelectorAll("fieldset")] : [];
const next = () => fieldsets.find((fieldset) => !fieldset.querySelector(":checked"));
const mark = () => fieldsets.forEach((fieldset) => fieldset.classList.toggle("next", fieldset === next()));

form?.addEventListener("change", mark);
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
  const choice = next()?.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (choice) {
    choice.checked = true;
    choice.focus();
    mark();
  }
});
