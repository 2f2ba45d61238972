// Moves the threshold, model and method without leaving the page; without this script the form's button does it.
const PAUSE = 250; // ms without another step of the slider, before the figures of its place are asked for
const form = document.querySelector("form.choose");
const share = document.getElementById("share");
let waiting = null;
let asked = new AbortController();

const show = async () => {
  clearTimeout(waiting);
  asked.abort();
  const { signal } = (asked = new AbortController());
  const address = new URL(form.getAttribute("action"), location.href);
  for (const [name, value] of new FormData(form)) {
    if (name !== "threshold" || Number(value) > 0) address.searchParams.set(name, value);
  }
  document.getElementById("figures").setAttribute("aria-busy", "true");
  let reply = null; // stays so if the gateway is away
  let text = "";
  try {
    reply = await fetch(address, { signal });
    text = await reply.text();
  } catch {
    reply = null;
  }
  if (signal.aborted) return; // a later choice is on its way
  document.getElementById("figures").removeAttribute("aria-busy");
  if (!reply?.ok) {
    location.assign(address); // shows the reason
    return;
  }
  const page = new DOMParser().parseFromString(text, "text/html");
  for (const id of ["figures", "methods"]) document.getElementById(id)?.replaceWith(page.getElementById(id));
  history.replaceState(null, "", address.pathname + address.search + location.hash);
};

form?.addEventListener("change", (event) => {
  if (event.target.name !== "threshold") {
    show();
    return;
  }
  clearTimeout(waiting);
  waiting = setTimeout(show, PAUSE); // each press of a key is a change
});
form?.addEventListener("input", (event) => {
  if (event.target.name === "threshold") share.textContent = Number(event.target.value);
});
form?.addEventListener("submit", (event) => {
  event.preventDefault();
  show();
});
