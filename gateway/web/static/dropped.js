// Reads dropped files and folders, and sorts them into images, masks and a manifest.
const IMAGE = /\.(png|jpe?g|webp)$/i;
export const ARCHIVE = /\.(zip|tar|tgz|gz)$/i;
const MANIFEST = /(^|\/)manifest\.(csv|jsonl)$/i;
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

// {images, masks, manifest, other} of named files, in the order of their names.
export const sorted = (files) => {
  const parts = { images: [], masks: [], manifest: null, other: 0 };
  const order = new Intl.Collator("en", { numeric: true });
  for (const item of files.filter(({ name }) => !JUNK.test(name)).sort((a, b) => order.compare(a.name, b.name))) {
    if (MANIFEST.test(item.name)) parts.manifest = item.file;
    else if (MASK.test(item.name) && IMAGE.test(item.name)) parts.masks.push(item.file);
    else if (IMAGE.test(item.name) || ARCHIVE.test(item.name)) parts.images.push(item);
    else parts.other += 1;
  }
  return parts;
};

// A list that a file input accepts.
export const listOf = (files) => {
  const transfer = new DataTransfer();
  for (const file of files) transfer.items.add(file);
  return transfer.files;
};
