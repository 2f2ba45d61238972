// Filters of gallery and map: folded on narrow screens. A large job's page comes without counts; its link counts them,
// and this puts them in their places.
const fold = () => {
  if (matchMedia("(max-width: 60rem)").matches) document.querySelector(".facet-box")?.removeAttribute("open");
};
fold();

const loadCounts = async (link) => {
  const nav = link.closest("nav");
  const words = link.textContent;
  link.textContent = "Counting images …";
  nav.setAttribute("aria-busy", "true");
  const reply = await fetch(link.href).catch(() => null); // the gateway may be away
  if (!reply?.ok) {
    link.textContent = words;
    nav.removeAttribute("aria-busy");
    return;
  }
  const counted = new DOMParser().parseFromString(await reply.text(), "text/html").querySelectorAll("[data-counted]");
  document.querySelectorAll("[data-counted]").forEach((place, number) => place.replaceWith(counted[number]));
  fold();
};
const countLink = document.getElementById("count");
if (countLink) loadCounts(countLink);
