// Sends the form and opens the job's page; after a refusal, in its own words, the chosen files are still there.
const form = document.getElementById("submit");
const problem = document.getElementById("problem");

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  problem.hidden = true;
  try {
    const reply = await fetch(form.action, { method: "POST", body: new FormData(form) });
    if (reply.redirected) {
      location.assign(reply.url);
      return;
    }
    const body = await reply.json();
    problem.textContent = body.detail ?? body.title;
  } catch (error) {
    problem.textContent = `The job could not be sent: ${error.message}. Choose files again that have changed since.`;
  }
  problem.hidden = false;
  problem.focus();
  button.disabled = false;
});
