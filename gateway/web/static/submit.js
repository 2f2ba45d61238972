// The form for a new job: dropped files and folders, thumbnails, the plan before the start, refusals beside their fields.
// Without this script the form works as it is.
import { ARCHIVE, dropped, listOf, merged, named, sorted } from "./dropped.js";
import { show } from "./previews.js";

const MOST_FILES = 1000; // of one form, as the gateway has it
const MOST_SENT = 200e6; // bytes that a plan sends or reads; larger sets have a plan without them
const LOOKED_AT = 8; // images that a plan sends although it has the names of all, if the profile does not take all images
const SILENT = 2000; // milliseconds without a plan until the page says that it waits
const OTHER_FILES = 'input[type="file"]:not([name="images"])'; // take what is dropped on them
const form = document.getElementById("submit");
const summary = document.getElementById("problem");
const plan = document.getElementById("plan");
const drop = document.getElementById("drop");
let images = []; // {file, name} of all that was dropped or chosen, until the button clears them
let masks = [];
let left = ""; // words on the files of the latest drop that replaced others or are not used
let choices = 0;
let planned = null;
let waiting = null;

const field = (name) => form.querySelector(`[data-problem="${CSS.escape(name)}"]`);

const clear = () => {
  summary.hidden = true;
  for (const words of form.querySelectorAll("[data-problem]")) words.hidden = true;
  for (const input of form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
};

// A refusal beside its field; above the form if it names none. `focus`: after the button was pressed.
const refuse = (name, sentence, focus) => {
  clear();
  const beside = name && field(name);
  const words = beside || summary;
  words.textContent = sentence;
  words.hidden = false;
  words.closest("details")?.setAttribute("open", "");
  const input = beside && form.elements[name];
  const control = input instanceof RadioNodeList ? input[0] : input;
  control?.setAttribute("aria-invalid", "true");
  if (focus) (control ?? summary).focus();
};

const total = (files) => files.reduce((sum, file) => sum + file.size, 0);

const count = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;

const digest = async (file, index, hashed) => {
  if (!hashed) return (index + 1).toString(16).padStart(64, "0");
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
};

const withImages = () => {
  const data = new FormData(form);
  data.delete("images");
  for (const { file, name } of images) data.append("images", file, name);
  return data;
};

// The form with the names of its images in place of most of their bytes, if the gateway does not need these to plan.
const described = async () => {
  const files = images.map(({ file }) => file);
  if (masks.length || images.some(({ name }) => ARCHIVE.test(name))) {
    return total([...files, ...masks.map(({ file }) => file)]) > MOST_SENT ? null : withImages();
  }
  const data = new FormData(form);
  data.delete("images");
  const hashed = globalThis.crypto?.subtle && total(files) < MOST_SENT; // only pages of this machine or by https have it
  const listed = await Promise.all(files.map(async (file, at) => ({ digest: await digest(file, at, hashed), name: images[at].name })));
  data.append("listed", JSON.stringify({ images: listed }));
  if (form.elements.outside_domain) {
    const step = Math.ceil(images.length / LOOKED_AT);
    for (const { file, name } of images.filter((_, at) => at % step === 0)) data.append("images", file, name);
  }
  return data;
};

const ask = async () => {
  planned?.abort();
  const own = (planned = new AbortController());
  if (!images.length || form.elements.task.value.trim().length < 3) {
    plan.hidden = true;
    return;
  }
  if (images.length > MOST_FILES) {
    refuse("images", `These are more than ${MOST_FILES.toLocaleString("en")} images. Choose one zip or tar of them, or use contrafact submit.`);
    return;
  }
  const waits = setTimeout(() => {
    if (own.signal.aborted) return;
    plan.textContent = "The job is being planned. This takes longer while the models are loading.";
    plan.hidden = false;
  }, SILENT);
  try {
    const data = await described();
    if (own.signal.aborted) return;
    if (!data) {
      plan.textContent = "These files are too large to plan the job before they are sent.";
    } else {
      const reply = await fetch(form.dataset.plan, { method: "POST", body: data, signal: own.signal });
      if (!reply.ok) throw new Error((await reply.json()).detail);
      plan.innerHTML = await reply.text(); // our own fragment, rendered with escaping
    }
    plan.hidden = false;
    clear();
    const problem = plan.querySelector(".problem");
    const name = plan.firstElementChild?.dataset.field;
    if (problem && name && field(name)) {
      refuse(name, problem.textContent, false);
      problem.remove();
      plan.hidden = !plan.textContent.trim();
    }
  } catch (error) {
    if (own.signal.aborted) return;
    plan.textContent = `The job cannot be planned now: ${error.message}`;
    plan.hidden = false;
  } finally {
    clearTimeout(waits);
  }
};

const askSoon = () => {
  clearTimeout(waiting);
  waiting = setTimeout(ask, 500);
};

const meaning = async () => {
  const [typed, file] = form.querySelectorAll('[name="classes"]');
  try {
    return JSON.parse(typed.value || (await file.files[0]?.text()) || "null");
  } catch {
    return null; // the plan says what is wrong with it
  }
};

const draw = async () => {
  const own = ++choices;
  const shown = images.filter(({ name }) => !ARCHIVE.test(name));
  const places = ["thumbnails", "legend"].map((name) => document.getElementById(name));
  await show(...places, shown, masks.map(({ file }) => file), await meaning(), () => own === choices);
};

// Says what is chosen by now.
const tell = () => {
  const manifest = form.elements.manifest.files[0];
  const words = [];
  if (images.length) words.push(count(images.length, images.some(({ name }) => ARCHIVE.test(name)) ? "file" : "image"));
  if (manifest) words.push(`labels from ${manifest.name}`);
  if (masks.length) words.push(count(masks.length, "mask"));
  document.getElementById("clear").hidden = !words.length;
  if (left) words.push(left);
  document.getElementById("chosen").textContent = words.join(", ");
};

const leftOut = (other, manifests) => {
  if (manifests.length > 1) return `${manifests.map(({ name }) => name).join(" and ")} left out: choose one of them as Labels`;
  if (!other.length) return "";
  const table = other.find(({ name }) => /\.(csv|jsonl)$/i.test(name));
  const why = table && !manifests.length ? ` (${table.name} has no labels: its first line must be file,label)` : "";
  return `${count(other.length, "other file")} left out${why}`;
};

// Adds files to those that are there already.
const take = async (files) => {
  const parts = await sorted(files);
  const before = images.length + masks.length + parts.images.length + parts.masks.length;
  images = merged(images, parts.images);
  masks = merged(masks, parts.masks);
  const replaced = before - images.length - masks.length;
  left = leftOut(parts.other, parts.manifests);
  if (replaced) left = [`${count(replaced, "file")} of the same name replaced`, left].filter(Boolean).join(", ");
  form.elements.images.files = listOf(images.map(({ file }) => file));
  form.elements.masks.files = listOf(masks.map(({ file }) => file));
  if (parts.manifests.length === 1) form.elements.manifest.files = listOf([parts.manifests[0].file]);
  if (parts.masks.length) form.elements.masks.closest("details").open = true;
  tell();
  draw();
  askSoon();
};

const clearFiles = () => {
  images = masks = [];
  left = "";
  for (const name of ["images", "masks", "manifest"]) form.elements[name].value = "";
  clear();
  tell();
  draw();
  askSoon();
  document.getElementById("folder").focus();
};

const send = async () => {
  const button = form.querySelector("button:not([type])");
  button.disabled = true;
  button.textContent = `Sending ${count(images.length, "file")} …`;
  clear();
  try {
    const reply = await fetch(form.action, { method: "POST", body: withImages() });
    if (reply.redirected) {
      location.assign(reply.url);
      return;
    }
    const body = await reply.json();
    refuse(body.field, body.detail ?? body.title, true);
  } catch (error) {
    refuse("", `The job could not be sent: ${error.message}. Choose files again that have changed since.`, true);
  }
  button.disabled = false;
  button.textContent = "Start the job";
};

const chooseFolder = () => {
  const input = document.createElement("input");
  input.type = "file";
  input.webkitdirectory = true;
  input.addEventListener("change", () => take(named(input.files)));
  input.click();
};

if (form) {
  for (const hidden of form.querySelectorAll(".drop-words, .folder")) hidden.hidden = false;
  document.getElementById("folder").addEventListener("click", chooseFolder);
  document.getElementById("clear").addEventListener("click", clearFiles);
  // Files count wherever they are dropped on the page: a browser would leave the form and open them.
  const ours = ({ dataTransfer, target }) => Boolean(dataTransfer?.types.includes("Files")) && !target.matches?.(OTHER_FILES);
  document.addEventListener("dragover", (event) => {
    drop.classList.toggle("over", ours(event));
    if (ours(event)) event.preventDefault();
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) drop.classList.remove("over");
  });
  document.addEventListener("drop", async (event) => {
    drop.classList.remove("over");
    if (!ours(event)) return;
    event.preventDefault();
    await take(await dropped(event.dataTransfer));
  });
  form.addEventListener("change", (event) => {
    if (event.target.name === "images") take(named(event.target.files));
    else if (event.target.name === "masks") masks = named(event.target.files);
    if (["masks", "classes"].includes(event.target.name)) draw();
    if (["masks", "manifest"].includes(event.target.name)) tell();
    askSoon();
  });
  form.addEventListener("input", askSoon);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
}
