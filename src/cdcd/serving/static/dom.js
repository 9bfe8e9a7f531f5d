// Elements are made here alone; whatever is shown is text, never HTML.

/** @typedef {Node | string | null | false | undefined} Child */

/**
 * Makes an element; a property that is a function listens to its event.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [properties]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  fill(element, properties, children);
  return element;
}

/**
 * @param {string} tag
 * @param {Record<string, any>} [properties]
 * @param {...Child} children
 */
export function draw(tag, properties = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(element, properties, children);
  return element;
}

/**
 * @param {Element} element
 * @param {Record<string, any>} properties
 * @param {Child[]} children
 */
function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, String(value));
  }
  element.append(
    ...children
      .filter((child) => child instanceof Node || typeof child === "string")
      .map((child) => /** @type {Node | string} */ (child)),
  );
}

/**
 * @param {number} p
 */
export function percent(p) {
  if (p >= 0.995) return "100%";
  if (p < 0.0005) return "<0.1%";
  return p >= 0.0995 ? `${Math.round(100 * p)}%` : `${(100 * p).toFixed(1)}%`;
}

/**
 * @param {number} value
 */
export function short(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}
