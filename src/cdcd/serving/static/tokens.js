// The text of a step: each token shaded by its certainty, one of them chosen.
import { make, percent } from "./dom.js";

/** The text of a sample; arrow keys move from token to token. */
export class Tokens {
  /** @param {(position: number | null, isFixed: boolean) => void} choose */
  constructor(choose) {
    this.choose = choose;
    /** @type {HTMLElement[]} */
    this.spans = [];
    this.chosen = -1;
    this.element = make("div", {
      class: "tokens",
      role: "group",
      "aria-label": "Text, token by token; arrow keys move",
      keydown: (/** @type {KeyboardEvent} */ event) => this.move(event),
      mouseleave: () => this.choose(null, false),
    });
  }

  /**
   * @param {string[]} parts
   * @param {number[]} p in thousandths
   * @param {number[]} given
   * @param {boolean} isOver
   */
  show(parts, p, given, isOver) {
    const end = isOver ? parts.length : lastShown(parts, given);
    while (this.spans.length < end) this.add(this.spans.length);
    this.spans.forEach((span, i) => {
      const space = /** @type {HTMLElement} */ (span.parentElement);
      space.hidden = i >= end || (isOver && !parts[i]);
      if (space.hidden) return;
      const part = parts[i],
        word = part.trimStart();
      const gap = part.slice(0, part.length - word.length);
      if (space.firstChild?.nodeValue !== gap && space.firstChild) space.firstChild.nodeValue = gap;
      const shown = word || (part ? "" : "·");
      if (span.textContent !== shown) span.textContent = shown;
      span.className = given[i] ? "token given" : word ? "token" : "token empty";
      span.style.setProperty("--p", String(given[i] ? 1 : p[i] / 1000));
      span.setAttribute("aria-label", `${word || "nothing"}, ${given[i] ? "given" : percent(p[i] / 1000)}`);
      span.setAttribute("aria-pressed", String(i === this.chosen));
    });
  }

  /** @param {number} position */
  add(position) {
    const choose = (/** @type {boolean} */ isFixed) => this.choose(position, isFixed);
    const span = make("span", {
      class: "token",
      role: "button",
      tabindex: position ? -1 : 0,
      click: () => choose(true),
      mouseenter: () => choose(false),
      focus: () => this.focused(position),
    });
    this.spans.push(span);
    this.element.append(make("span", {}, document.createTextNode(""), span));
  }

  /** @param {number} position */
  focused(position) {
    this.spans.forEach((span, i) => span.setAttribute("tabindex", i === position ? "0" : "-1"));
    if (this.spans[position].matches(":focus-visible")) this.choose(position, true);
  }

  /** @param {KeyboardEvent} event */
  move(event) {
    const now = this.spans.indexOf(/** @type {HTMLElement} */ (event.target));
    /** @type {Record<string, number>} */
    const moves = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: this.spans.length - 1 };
    const to = this.spans[moves[event.key]];
    if (now >= 0 && (event.key === "Enter" || event.key === " ")) this.choose(now, true);
    else if (!to || to.parentElement?.hidden) return;
    else to.focus();
    event.preventDefault();
  }

  /** @param {number} position */
  mark(position) {
    this.chosen = position;
    this.spans.forEach((span, i) => span.setAttribute("aria-pressed", String(i === position)));
  }
}

/**
 * Returns the number of positions to show: empty ones at the end are left out.
 * @param {string[]} parts
 * @param {number[]} given
 */
function lastShown(parts, given) {
  let end = parts.length;
  while (end > 0 && !parts[end - 1]) end -= 1;
  while (end > 0 && !parts[end - 1] && given[end - 1]) end -= 1;
  return end;
}

/** Makes the legend of the shades. */
export function legend() {
  const steps = [0, 0.25, 0.5, 0.75, 1].map((p) => {
    const swatch = make("i", { class: "swatch" });
    swatch.style.setProperty("--p", String(p));
    return swatch;
  });
  return make(
    "p",
    { class: "legend" },
    "uncertain ",
    ...steps,
    " certain",
    make("span", { class: "token given" }, "given"),
  );
}
