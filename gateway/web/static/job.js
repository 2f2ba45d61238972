// Live progress and buttons of a job's page.
const progress = document.getElementById("progress");
const newest = document.getElementById("newest");

const refreshNewest = async () => {
  const reply = await fetch(newest.dataset.fragment).catch(() => null);
  if (!reply?.ok) return;
  const page = new DOMParser().parseFromString(await reply.text(), "text/html"); // our own fragment
  const ids = (place) => place.querySelector("[data-newest]")?.dataset.newest;
  if (ids(page) !== ids(newest)) newest.replaceChildren(...page.body.childNodes);
};

if (progress?.dataset.events) {
  let waiting = null;
  const refresh = async () => {
    clearTimeout(waiting);
    waiting = null;
    const reply = await fetch(progress.dataset.fragment).catch(() => null); // the gateway may be away for a while
    if (!reply?.ok) return;
    progress.innerHTML = await reply.text(); // our own fragment, rendered with escaping
    if (progress.firstElementChild.dataset.state !== "running") location.reload();
    else await refreshNewest();
  };
  const refreshAgain = () => refresh().finally(() => setTimeout(refreshAgain, 5000)); // stages change between events
  refreshNewest();
  setTimeout(refreshAgain, 5000);
  const events = new EventSource(progress.dataset.events);
  for (const kind of ["job", "image"]) {
    events.addEventListener(kind, () => {
      waiting ??= setTimeout(refresh, 500);
    });
  }
}

for (const button of document.querySelectorAll("[data-post], [data-delete]")) {
  button.addEventListener("click", async () => {
    const deletes = "delete" in button.dataset;
    if (deletes && !confirm("Delete this job with its results and report?")) return;
    const reply = await fetch(button.dataset.delete ?? button.dataset.post, { method: deletes ? "DELETE" : "POST" });
    if (reply.ok) location.assign(deletes ? "/" : location.href);
    else alert((await reply.json()).detail);
  });
}
