// The text box: [5] is a gap of five tokens, [*] at the end one of any length. Selected words become a gap.
import { make } from "./dom.js";

const GAP = /(?<!\\)\[(\d{1,4}|\*)\]/g;

export class Editor {
  /**
   * @param {{count: (text: string) => Promise<number>, run: () => void, knowsEnds: () => boolean}} hooks
   */
  constructor(hooks) {
    this.hooks = hooks;
    this.marks = make("div", { class: "marks", "aria-hidden": "true" });
    this.box = make("textarea", {
      id: "text",
      rows: 3,
      spellcheck: "false",
      maxlength: 10000,
      "aria-describedby": "text-help",
      input: () => this.refresh(),
      scroll: () => (this.marks.scrollTop = this.box.scrollTop),
      keydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
    });
    const button = (
      /** @type {string} */ label,
      /** @type {string} */ title,
      /** @type {() => void} */ click,
    ) =>
      make(
        "button",
        { type: "button", title, mousedown: (/** @type {Event} */ event) => event.preventDefault(), click },
        label,
      );
    this.gap = button("Make a gap", "Selected words become a gap (Alt+G)", () => this.makeGap());
    this.less = button("−", "One token less (Alt+↓)", () => this.resize(-1));
    this.size = make("output", { class: "size", "aria-live": "polite" });
    this.more = button("+", "One token more (Alt+↑)", () => this.resize(1));
    this.any = button("Any length", "Leave the end open (Alt+E)", () => this.toggleEnd());
    this.away = button("Remove gap", "Take the gap out", () => this.replaceGap(""));
    this.element = make(
      "div",
      { class: "editor" },
      make("label", { for: "text" }, "Text with gaps"),
      make("div", { class: "paper" }, this.marks, this.box),
      make(
        "div",
        { class: "tools", role: "toolbar", "aria-label": "Gaps" },
        this.gap,
        make("span", { class: "stepper" }, this.less, this.size, this.more),
        this.away,
        this.any,
      ),
      make(
        "p",
        { class: "hint", id: "text-help" },
        "Select words to make them a gap, or write [5] for five tokens; an open end is [*].",
      ),
    );
    for (const kind of ["select", "keyup", "mouseup", "focus"])
      this.box.addEventListener(kind, () => this.tools());
    document.addEventListener("selectionchange", () => document.activeElement === this.box && this.tools());
  }

  get value() {
    return this.box.value;
  }

  set value(text) {
    this.box.value = text;
    this.refresh();
  }

  refresh() {
    const text = this.box.value,
      parts = [];
    let end = 0;
    for (const gap of text.matchAll(GAP)) {
      parts.push(text.slice(end, gap.index), make("mark", {}, gap[0]));
      end = gap.index + gap[0].length;
    }
    this.marks.replaceChildren(...parts, `${text.slice(end)}\n`);
    this.box.style.height = "auto";
    this.box.style.height = `${this.box.scrollHeight}px`;
    this.tools();
  }

  /** Returns the gap at the cursor. */
  here() {
    const { selectionStart: start, selectionEnd: end } = this.box;
    return [...this.box.value.matchAll(GAP)].find(
      (gap) => start >= gap.index && end <= gap.index + gap[0].length,
    );
  }

  tools() {
    const gap = this.here(),
      isSized = Boolean(gap && gap[1] !== "*");
    this.gap.disabled = this.box.selectionStart === this.box.selectionEnd || Boolean(gap);
    this.less.disabled = !isSized || Number(gap?.[1]) <= 1;
    this.more.disabled = !isSized;
    this.away.disabled = !gap;
    this.size.textContent = !gap ? "–" : isSized ? `${gap[1]} token${gap[1] === "1" ? "" : "s"}` : "any";
    this.any.setAttribute("aria-pressed", String(/(?<!\\)\[\*\]\s*$/.test(this.box.value)));
    this.any.textContent = this.hooks.knowsEnds() ? "Any length" : "To the end";
  }

  async makeGap() {
    let { selectionStart: start, selectionEnd: end } = this.box;
    const text = this.box.value;
    if (start === end || this.here()) return;
    // Whole words, without the spaces around them.
    while (start > 0 && /\w/.test(text[start - 1]) && /\w/.test(text[start])) start -= 1;
    while (end < text.length && /\w/.test(text[end]) && /\w/.test(text[end - 1])) end += 1;
    while (start < end && /\s/.test(text[start])) start += 1;
    while (end > start && /\s/.test(text[end - 1])) end -= 1;
    const chosen = text.slice(start, end);
    if (!chosen) return;
    const count = await this.hooks.count(chosen.replace(GAP, " "));
    this.put(start, end, `[${Math.max(1, count)}]`);
  }

  /** @param {number} by */
  resize(by) {
    const gap = this.here();
    if (gap && gap[1] !== "*") this.replaceGap(`[${Math.max(1, Number(gap[1]) + by)}]`);
  }

  toggleEnd() {
    const text = this.box.value,
      open = /\s*(?<!\\)\[\*\]\s*$/.exec(text);
    if (open) this.put(open.index, text.length, "");
    else this.put(text.trimEnd().length, text.length, text.trim() ? " [*]" : "[*]");
  }

  /** @param {string} text */
  replaceGap(text) {
    const gap = this.here();
    if (gap) this.put(gap.index, gap.index + gap[0].length, text);
  }

  /**
   * Replaces a part of the text, and puts the cursor into it.
   * @param {number} start
   * @param {number} end
   * @param {string} text
   */
  put(start, end, text) {
    this.box.focus();
    this.box.setRangeText(text, start, end, "end");
    const inside = start + Math.max(0, text.length - 1);
    this.box.setSelectionRange(inside, inside);
    this.refresh();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    /** @type {Record<string, () => void>} */
    const actions = {
      KeyG: () => this.makeGap(),
      KeyE: () => this.toggleEnd(),
      ArrowUp: () => this.resize(1),
      ArrowDown: () => this.resize(-1),
    };
    const isRun = event.key === "Enter" && (event.ctrlKey || event.metaKey);
    const action = isRun ? this.hooks.run : event.altKey ? actions[event.code] : undefined;
    if (!action) return;
    event.preventDefault();
    action();
  }
}
