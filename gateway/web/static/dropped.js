// Reads dropped files and folders, and sorts them into images, masks and labels.
const IMAGE = /\.(a?png|jpe?g?|jfif|webp|bmp|tiff?|avif)$/i; // what the gateway decodes
export const ARCHIVE = /\.(zip|tar|tgz|gz)$/i;
const MANIFEST = /(^|\/)manifest\.(csv|jsonl)$/i;
const TABLE = /\.(csv|tsv|jsonl)$/i;
const COLUMNS = ["file", "label", "mask", "group"]; // of a manifest, as shared/manifests.py has them
const FILE = /^(file_?name|image|image_path|path|filepath|img|image_?id|id)$/; // of other people's tables
const LABEL = /^(labels?|class|class_name|category|target|predictionstring)$/;
const JUNK = /(^|\/)(\.|__MACOSX|Thumbs\.db)/i;
const MASK = /(^|\/)masks\//i;

const read = (reader) => new Promise((done, failed) => reader.readEntries(done, failed));

const walk = async (entry) => {
  if (entry.isFile) {
    const file = await new Promise((done, failed) => entry.file(done, failed));
    return [{ file, name: entry.fullPath.replace(/^\//, "") }];
  }
  const reader = entry.createReader();
  const found = [];
  for (let batch = await read(reader); batch.length; batch = await read(reader)) {
    for (const inner of batch) found.push(...(await walk(inner)));
  }
  return found;
};

// All files of a drop, with their paths.
export const dropped = async (transfer) => {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return named(transfer.files);
  const found = [];
  for (const entry of entries) found.push(...(await walk(entry)));
  return found;
};

// The files of an input, with their paths if a folder was chosen.
export const named = (files) => [...files].map((file) => ({ file, name: file.webkitRelativePath || file.name }));

// Whether the file's first line names the columns of files and labels: as our manifest does, or other people's tables.
const isManifest = async (file) => {
  const [line] = (await file.slice(0, 8192).text()).replace(/^\uFEFF/, "").split(/\r?\n/, 1);
  let columns = line.split(/[,;\t]/).map((name) => name.replaceAll('"', "").trim().toLowerCase());
  if (line.startsWith("{")) {
    try {
      columns = Object.keys(JSON.parse(line));
    } catch {
      return false;
    }
  }
  if (columns.includes("file")) return columns.length > 1 && columns.every((name) => COLUMNS.includes(name));
  return columns.some((name) => FILE.test(name)) && columns.some((name) => LABEL.test(name));
};

// {images, masks, manifests, other} of named files, in the order of their names. `manifests`: those called so, else the
// tables that have the columns of one. `other`: what is none of these.
export const sorted = async (files) => {
  const parts = { images: [], masks: [], manifests: [], other: [] };
  const tables = [];
  for (const item of files.filter(({ name }) => !JUNK.test(name))) {
    if (MANIFEST.test(item.name)) parts.manifests.push(item);
    else if (MASK.test(item.name) && IMAGE.test(item.name)) parts.masks.push(item);
    else if (IMAGE.test(item.name) || ARCHIVE.test(item.name)) parts.images.push(item);
    else if (TABLE.test(item.name)) tables.push(item);
    else parts.other.push(item);
  }
  for (const item of tables) {
    const labels = !parts.manifests.some(({ name }) => MANIFEST.test(name)) && (await isManifest(item.file));
    parts[labels ? "manifests" : "other"].push(item);
  }
  return parts;
};

// The files of `before` and `later` in the order of their names; a later one replaces an earlier one of the same name.
export const merged = (before, later) => {
  const order = new Intl.Collator("en", { numeric: true });
  const byName = new Map([...before, ...later].map((item) => [item.name, item]));
  return [...byName.values()].sort((a, b) => order.compare(a.name, b.name));
};

// A list that a file input accepts.
export const listOf = (files) => {
  const transfer = new DataTransfer();
  for (const file of files) transfer.items.add(file);
  return transfer.files;
};
