// Moves the threshold, model and method without leaving the page; without this script the form's button does it.
const form = document.querySelector("form.choose");
const share = document.getElementById("share");
let latest = 0;

const show = async () => {
  const address = new URL(form.getAttribute("action"), location.href);
  for (const [name, value] of new FormData(form)) {
    if (name !== "threshold" || Number(value) > 0) address.searchParams.set(name, value);
  }
  const number = ++latest;
  const figures = document.getElementById("figures");
  figures.setAttribute("aria-busy", "true");
  const reply = await fetch(address).catch(() => null); // the gateway may be away
  if (number !== latest) return; // a later choice is on its way
  figures.removeAttribute("aria-busy");
  if (!reply?.ok) {
    location.assign(address); // shows the reason
    return;
  }
  const page = new DOMParser().parseFromString(await reply.text(), "text/html");
  if (number !== latest) return;
  for (const id of ["figures", "methods"]) document.getElementById(id)?.replaceWith(page.getElementById(id));
  history.replaceState(null, "", address.pathname + address.search + location.hash);
};

form?.addEventListener("change", show);
form?.addEventListener("input", (event) => {
  if (event.target.name === "threshold") share.textContent = Number(event.target.value);
});
form?.addEventListener("submit", (event) => {
  event.preventDefault();
  show();
});
