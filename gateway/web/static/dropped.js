// Reads dropped files and folders, and sorts them into images, masks and labels.
export const ARCHIVE = /\.(zip|tar|tgz|gz)$/i;
// What the gateway takes a file for by its name (`shared.media.testsets`, `shared.media.manifests`); the form has it.
const rules = JSON.parse(document.getElementById("submit")?.dataset.rules ?? "{}");
const isMask = (name) => rules.masks.some((folder) => name.toLowerCase().split("/").slice(0, -1).includes(folder));
const isHidden = (name) => name.split("/").some((part) => /^\.+[^.]/.test(part) || rules.junk.includes(part.toLowerCase()));
const base = (name) => name.split("/").pop().toLowerCase();
const isImage = (name) => /\./.test(base(name)) && rules.images.includes(base(name).split(".").pop());
const isManifestName = (name) => rules.manifests.includes(base(name));
const isTable = (name) => rules.tables.some((suffix) => base(name).endsWith(suffix));

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
  const some = (known) => columns.some((name) => known.includes(name));
  if (columns.includes("file")) return columns.length > 1 && columns.every((name) => rules.columns.includes(name));
  return some(rules.fileColumns) && some(rules.labelColumns);
};

// {images, masks, manifests, other} of named files, in the order of their names. `manifests`: those called so, else the
// tables that have the columns of one. `other`: what is none of these.
export const sorted = async (files) => {
  const parts = { images: [], masks: [], manifests: [], other: [] };
  const tables = [];
  for (const item of files.filter(({ name }) => !isHidden(name))) {
    if (isManifestName(item.name)) parts.manifests.push(item);
    else if (isMask(item.name) && isImage(item.name)) parts.masks.push(item);
    else if (isImage(item.name) || ARCHIVE.test(item.name)) parts.images.push(item);
    else if (isTable(item.name)) tables.push(item);
    else parts.other.push(item);
  }
  for (const item of tables) {
    const labels = !parts.manifests.some(({ name }) => isManifestName(name)) && (await isManifest(item.file));
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
