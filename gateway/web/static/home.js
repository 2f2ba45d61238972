// Sends the form to POST /jobs and opens the job's page; a refusal is shown in its own words.
const form = document.getElementById("submit");
const problem = document.getElementById("problem");

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  const data = new FormData(form);
  if (!data.get("manifest")?.size) data.delete("manifest");
  button.disabled = true;
  problem.hidden = true;
  try {
    const reply = await fetch(form.action, { method: "POST", body: data });
    const body = await reply.json();
    if (reply.status === 202) {
      location.assign(`${reply.headers.get("Location")}/view`);
      return;
    }
    problem.textContent = body.detail ?? body.title;
  } catch (error) {
    problem.textContent = `The job could not be sent: ${error.message}`;
  }
  problem.hidden = false;
  button.disabled = false;
});
