// Keys and preview of the map. Without this script every point is a link with its words.
document.documentElement.classList.add("scripted");
const links = [...document.querySelectorAll("#map a")];
const preview = document.getElementById("preview");
const places = links.map((link) => {
  const box = link.firstElementChild.getBBox();
  return [box.x + box.width / 2, box.y + box.height / 2];
});

const image = (digest, alt) => Object.assign(new Image(), { src: `/thumbnails/${digest}`, alt });
let waiting = null;
const showPreview = (link) => {
  clearTimeout(waiting);
  waiting = setTimeout(async () => {
    const reply = await fetch(`/jobs/${preview.dataset.job}/results/${link.dataset.id}`).catch(() => null);
    if (!reply?.ok) return;
    const view = await reply.json();
    const words = document.createElement("p");
    const opinions = view.predictions.filter((opinion) => opinion.original && opinion.counterfactual);
    const lines = opinions.map((o) => `${o.model}: ${o.original.predicted} → ${o.counterfactual.predicted}`);
    words.textContent = [link.getAttribute("aria-label"), ...lines].join(" · ");
    preview.replaceChildren(image(view.source.image, "Source image"), image(view.image, "Counterfactual"), words);
  }, 120);
};

const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const nearest = (from, [across, down]) => {
  let best = null;
  let least = Infinity;
  places.forEach(([x, y], index) => {
    const [dx, dy] = [x - places[from][0], y - places[from][1]];
    const ahead = dx * across + dy * down;
    const distance = ahead + 2 * Math.abs(dx * down + dy * across);
    if (ahead > 0 && distance < least) [best, least] = [index, distance];
  });
  return best;
};

links.forEach((link, index) => {
  if (index) link.setAttribute("tabindex", "-1");
  link.addEventListener("pointerenter", () => showPreview(link));
  link.addEventListener("focus", () => showPreview(link));
  link.addEventListener("keydown", (event) => {
    if (!ways[event.key]) return;
    event.preventDefault();
    const next = nearest(index, ways[event.key]);
    if (next === null) return;
    link.setAttribute("tabindex", "-1");
    links[next].setAttribute("tabindex", "0");
    links[next].focus();
  });
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.getElementById("back")?.click();
});
