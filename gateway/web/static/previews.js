// Draws the first images of a form, with their masks painted over them. Everything stays in the browser.
const MOST = 24;
const SIDE = 192; // pixels, twice what a thumbnail measures, for dense screens
const COLOURS = ["#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#42d4f4", "#bfef45", "#fabed4", "#9a6324", "#ffe119"];

const stem = (name) => name.replace(/^.*\//, "").replace(/\.[^.]*$/, "");

const fit = ({ width, height }) => {
  const scale = SIDE / Math.max(width, height);
  const [w, h] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
  return [(SIDE - w) / 2, (SIDE - h) / 2, w, h];
};

// The name of a mask's value by its index or colour; undefined for one without a description, null for void.
const nameOf = (meaning, [red, green, blue]) => {
  const hex = `#${[red, green, blue].map((part) => part.toString(16).padStart(2, "0")).join("")}`;
  const grey = red === green && green === blue;
  const is = (value) => (typeof value === "string" ? value.toLowerCase() === hex : grey && value === red);
  if ((meaning?.void ?? []).some(is)) return null;
  const found = (meaning?.classes ?? []).find((each) => [each.index, each.colour].flat().some(is));
  return found ? found.name : meaning ? undefined : grey ? `value ${red}` : hex;
};

const paint = async (context, mask, meaning, legend) => {
  const bitmap = await createImageBitmap(mask, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  const layer = new OffscreenCanvas(SIDE, SIDE);
  const own = layer.getContext("2d", { willReadFrequently: true });
  own.imageSmoothingEnabled = false;
  own.drawImage(bitmap, ...fit(bitmap));
  const pixels = own.getImageData(0, 0, SIDE, SIDE);
  const { data } = pixels;
  const seen = new Map();
  for (let at = 0; at < data.length; at += 4) {
    if (!data[at + 3]) continue;
    const key = (data[at] << 16) | (data[at + 1] << 8) | data[at + 2];
    if (!seen.has(key)) seen.set(key, nameOf(meaning, [data[at], data[at + 1], data[at + 2]]));
    const name = seen.get(key);
    if (name !== null && !legend.has(name ?? "")) legend.set(name ?? "", COLOURS[legend.size % COLOURS.length]);
    const colour = name === null ? 0 : Number.parseInt(legend.get(name ?? "").slice(1), 16);
    [data[at], data[at + 1], data[at + 2]] = [colour >> 16, (colour >> 8) & 255, colour & 255];
    data[at + 3] = name === null ? 0 : 140;
  }
  own.putImageData(pixels, 0, 0);
  context.drawImage(layer, 0, 0);
};

const picture = async ({ file, name }, mask, meaning, legend) => {
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  caption.textContent = name.split("/").slice(-2).join("/");
  caption.title = name;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIDE;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", mask ? `${name} with its mask` : name);
  try {
    const bitmap = await createImageBitmap(file);
    const context = canvas.getContext("2d");
    context.drawImage(bitmap, ...fit(bitmap));
    bitmap.close();
    if (mask) await paint(context, mask, meaning, legend);
    figure.append(canvas, caption);
  } catch {
    caption.textContent += ": cannot be read";
    caption.className = "problem";
    figure.append(caption);
  }
  return figure;
};

const sample = (name, colour) => {
  const item = document.createElement("span");
  const square = document.createElement("canvas");
  square.width = square.height = 10;
  const context = square.getContext("2d");
  context.fillStyle = colour;
  context.fillRect(0, 0, 10, 10);
  item.append(square, ` ${name || "not described"}`);
  return item;
};

// Shows the first images in `place`, and below them in `words` what the colours mean. `meaning`: the parsed JSON of the masks' values, or null. Resolves to false if
// `current()` says that a later choice replaces them.
export const show = async (place, words, images, masks, meaning, current) => {
  const byStem = new Map(masks.map((mask) => [stem(mask.name), mask]));
  const legend = new Map();
  const figures = [];
  for (const image of images.slice(0, MOST)) {
    figures.push(await picture(image, byStem.get(stem(image.name)), meaning, legend));
    if (!current()) return false;
  }
  words.replaceChildren(...[...legend].map(([name, colour]) => sample(name, colour)));
  if (images.length > MOST) words.append(`and ${(images.length - MOST).toLocaleString("en")} more images`);
  words.hidden = !words.hasChildNodes();
  place.replaceChildren(...figures);
  place.hidden = !images.length;
  return true;
};
