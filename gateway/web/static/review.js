// Sends the review (or the mark) of a picture and shows the next one; every button and choice has a key.
const form = document.getElementById("review");
const problem = document.getElementById("problem");

const refuse = (words) => {
  problem.textContent = words;
  problem.hidden = false;
};

const ask = async (method, path, then, message) => {
  problem.hidden = true;
  try {
    const body = message && { body: JSON.stringify(message), headers: { "Content-Type": "application/json" } };
    const reply = await fetch(path, { method, ...body });
    if (reply.ok && then) location.assign(then);
    else if (!reply.ok) refuse((await reply.json()).detail);
    return reply.ok;
  } catch {
    refuse("The gateway does not answer; nothing was saved. Try again.");
    return false;
  }
};

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const data = new FormData(form);
  const review = { [event.submitter.name]: event.submitter.value };
  for (const name of ["note", "factor", "value", "failure"]) if (data.has(name)) review[name] = data.get(name);
  if (data.has("arm_shown")) review.arm_shown = true;
  if (data.has("edit_shown")) review.edit_shown = data.get("edit_shown") === "yes";
  if (data.has("realism")) review.realism = Number(data.get("realism"));
  const buttons = [...form.querySelectorAll("button")];
  for (const button of buttons) button.disabled = true;
  const rebuilds = form.dataset.report; // after the last picture of the findings
  const stored = await ask("PUT", form.getAttribute("action"), rebuilds ? "" : form.dataset.next, review);
  if (stored && rebuilds) ask("POST", rebuilds, document.getElementById("back").href);
  if (!stored) for (const button of buttons) button.disabled = false;
});

const anew = document.querySelector("button[data-report]");
anew?.addEventListener("click", () => ask("POST", anew.dataset.report, document.getElementById("back").href));

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=radio]), img")) return;
  if (event.key === "b") document.getElementById("before")?.click();
  form?.querySelector(`[data-key="${CSS.escape(event.key)}"]`)?.click();
});
