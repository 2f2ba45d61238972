// Keys and preview of the map. Without this script every point is a link with its words.
document.documentElement.classList.add("scripted");
const map = document.getElementById("map");
const links = [...document.querySelectorAll("#map a")];
const preview = document.getElementById("preview");
const places = links.map((link) => {
  const box = link.firstElementChild.getBBox();
  return [box.x + box.width / 2, box.y + box.height / 2];
});

const image = (digest, alt) => Object.assign(new Image(), { src: `/thumbnails/${digest}`, alt });
// What a model says of an image, in a few words.
const said = ({ predicted, map, scores }) => {
  if (!map) return predicted;
  const mean = scores["all classes"];
  return mean === undefined ? "no mask" : `mIoU ${Math.round(100 * mean)} %`;
};
let waiting = null;
const showPreview = (link) => {
  clearTimeout(waiting);
  for (const each of links) each.classList.toggle("shown", each === link);
  waiting = setTimeout(async () => {
    const reply = await fetch(`/jobs/${preview.dataset.job}/results/${link.dataset.id}`).catch(() => null);
    if (!reply?.ok) return;
    const view = await reply.json();
    if (!link.classList.contains("shown")) return; // another one was pointed at since
    const words = document.createElement("p");
    const opinions = view.predictions.filter((opinion) => opinion.original && opinion.counterfactual);
    const lines = opinions.map((o) => `${o.model}: ${said(o.original)} → ${said(o.counterfactual)}`);
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

const linkNear = (event) => {
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(map.getScreenCTM().inverse());
  const distances = places.map(([x, y]) => Math.hypot(x - at.x, y - at.y));
  return links[distances.indexOf(Math.min(...distances))];
};

let byTouch = false;
let tapped = null;
map?.addEventListener("pointerdown", (event) => {
  byTouch = event.pointerType === "touch";
});
map?.addEventListener("click", (event) => {
  if (!byTouch || !event.detail || !event.target.closest("a")) return; // keys and mice open at once
  event.preventDefault();
  const link = linkNear(event);
  if (link === tapped) location.assign(link.getAttribute("href"));
  tapped = link;
  showPreview(link);
});

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
