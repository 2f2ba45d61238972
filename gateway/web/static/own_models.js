// The page of models: uploads one's own, and shows what a model says of a few images.
import { dropped, named } from "./dropped.js";

const form = document.getElementById("upload");
const problem = document.getElementById("problem");
const presets = JSON.parse(form.dataset.presets);
let files = []; // {file, name}

const refuse = (place, sentence) => {
  place.textContent = sentence;
  place.hidden = false;
};

const failed = async (reply) => {
  const body = await reply.json().catch(() => ({}));
  return body.detail ?? body.title ?? `The gateway answered ${reply.status}.`;
};

const take = (chosen) => {
  files = chosen;
  document.getElementById("chosen").textContent = files.map(({ name }) => name).join(", ").slice(0, 300);
  const first = files[0]?.name ?? "";
  form.elements.name.value ||= first.split("/")[0].replace(/\.(onnx|zip|tar|tgz)$/i, "").replace(/[^\w.-]+/g, "-").slice(0, 64);
  const described = files.some(({ name }) => name.endsWith("preprocessor_config.json"));
  if (/\.onnx$/i.test(first) && !described) document.getElementById("preparation").open = true;
};

form.elements.model.addEventListener("change", (event) => take(named(event.target.files)));
document.getElementById("folder").addEventListener("click", () => {
  const input = document.createElement("input");
  input.type = "file";
  input.webkitdirectory = true;
  input.addEventListener("change", () => take(named(input.files)));
  input.click();
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", async (event) => {
  event.preventDefault();
  take(await dropped(event.dataTransfer));
});
document.getElementById("preset").addEventListener("change", ({ target }) => {
  form.elements.preprocessing.value = target.value ? JSON.stringify(presets[target.value], null, 1) : "";
});

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  problem.hidden = true;
  const button = form.querySelector("button:not([type])");
  button.disabled = true;
  button.textContent = "Uploading, then loading it once …";
  try {
    const { name, kind, classes, preprocessing } = form.elements;
    const spec = { name: name.value, kind: kind.value };
    const lines = classes.value.split(/\r?\n/).map((line) => line.trim()).filter(Boolean);
    if (lines.length) spec.classes = lines;
    if (preprocessing.value.trim()) spec.preprocessing = JSON.parse(preprocessing.value);
    const data = new FormData();
    for (const { file, name: path } of files) data.append("model", file, path.split("/").pop());
    data.append("spec", JSON.stringify(spec));
    const reply = await fetch("/models", { method: "POST", body: data });
    if (reply.ok) {
      location.assign(`/own-models?model=${encodeURIComponent(spec.name)}`);
      return;
    }
    refuse(problem, await failed(reply));
  } catch (error) {
    refuse(problem, `The model could not be sent: ${error.message}`);
  }
  problem.focus();
  button.disabled = false;
  button.textContent = "Upload";
});

const samples = document.getElementById("samples");
samples?.addEventListener("change", async () => {
  const place = document.getElementById("answers");
  const untried = document.getElementById("untried");
  untried.hidden = true;
  place.textContent = "Asking …";
  try {
    const digests = [];
    for (const file of [...samples.files].slice(0, 3)) {
      const bytes = await file.arrayBuffer();
      const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
      const digest = [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
      const stored = await fetch(`/images/${digest}`, { method: "PUT", body: bytes });
      if (!stored.ok) throw new Error(`${file.name}: ${await failed(stored)}`);
      digests.push(digest);
    }
    const body = JSON.stringify({ model: document.getElementById("try").dataset.model, images: digests });
    const reply = await fetch("/own-models/answers", { method: "POST", body, headers: { "Content-Type": "application/json" } });
    if (!reply.ok) throw new Error(await failed(reply));
    place.textContent = "";
    for (const { image, answer, fault } of await reply.json()) {
      const figure = document.createElement("figure");
      const picture = document.createElement("img");
      picture.src = `/thumbnails/${image}`;
      picture.alt = "";
      const caption = document.createElement("figcaption");
      caption.textContent = [answer, fault].filter(Boolean).join(": ");
      figure.append(picture, caption);
      place.append(figure);
    }
  } catch (error) {
    place.textContent = "";
    refuse(untried, window.isSecureContext ? error.message : "Browsers allow this over https or on this machine only.");
  }
});
