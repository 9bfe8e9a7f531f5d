// The permalink: all that a text depends on, in the part of the address that no server sees.

/** @param {object} state */
export function toLink(state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  const packed = btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
  return `#s=${packed}`;
}

/**
 * Reads the state in an address; null where there is none that can be read.
 * @param {string} hash
 */
export function fromLink(hash) {
  const packed = new URLSearchParams(hash.slice(1)).get("s");
  if (!packed) return null;
  try {
    const bytes = Uint8Array.from(atob(packed.replaceAll("-", "+").replaceAll("_", "/")), (c) =>
      c.charCodeAt(0),
    );
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    return null;
  }
}

/**
 * Returns the state of the text page in an address, with each part checked.
 * @param {any} raw
 * @returns {State | null}
 */
export function stateIn(raw) {
  const isState =
    raw &&
    typeof raw.text === "string" &&
    Number.isSafeInteger(raw.seed) &&
    Array.isArray(raw.columns) &&
    Array.isArray(raw.changes);
  const isObject = (/** @type {any} */ each) => each !== null && typeof each === "object";
  if (!isState || !raw.columns.length || !raw.changes.every(isObject)) return null;
  const columns = raw.columns.slice(0, 2).map((/** @type {any} */ each) => ({
    model: String(each?.model ?? ""),
    settings: Object(each?.settings ?? {}),
  }));
  return { text: raw.text, seed: raw.seed, columns, changes: raw.changes };
}

/**
 * Copies a text, and says so on the button for a while.
 * @param {HTMLButtonElement} button
 * @param {string} text
 */
export async function copy(button, text) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = label), 1200);
}

/**
 * @param {Blob} blob
 * @param {string} name
 */
export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/**
 * Puts a state into the address, and returns it.
 * @param {object} state
 */
export function keep(state) {
  history.replaceState(null, "", toLink(state));
  return location.href;
}
