// A viewer shows a recording, step by step: the text, the slider, the rivals of a token, and the warp.
import { make, percent, short } from "./dom.js";
import { Tokens, legend } from "./tokens.js";
import { entropyChart, trend, warpChart } from "./chart.js";

let viewers = 0;

export class Viewer {
  /** @param {{changed?: () => void, rival?: (position: number, token: number) => Node | null, position?: (position: number, isGiven: boolean) => Node | null}} [hooks] */
  constructor(hooks = {}) {
    this.hooks = hooks;
    this.id = `viewer-${(viewers += 1)}`;
    /** @type {Recording} */
    this.recording = empty();
    this.now = 0;
    this.isOver = true;
    this.position = -1;
    this.isFixed = false;
    this.timer = 0;
    this.tokens = new Tokens((position, isFixed) => this.choose(position, isFixed));
    this.chart = make("div", { class: "chart" });
    this.slider = make("input", {
      type: "range",
      min: 0,
      max: 0,
      value: 0,
      "aria-label": "Step",
      input: () => this.goTo(this.nearest(Number(this.slider.value))),
    });
    this.play = make(
      "button",
      { type: "button", class: "icon", "aria-label": "Play", click: () => this.toggle() },
      "▶",
    );
    this.place = make("output", { class: "place" });
    this.inspector = make("section", { class: "inspector", "aria-label": "Rivals at this position" });
    this.warp = make("figure", { class: "warp-figure" });
    this.timeline = make(
      "div",
      { class: "timeline" },
      this.play,
      make("div", { class: "track" }, this.chart, this.slider),
      this.place,
    );
    this.element = make(
      "div",
      { class: "viewer" },
      this.tokens.element,
      legend(),
      this.timeline,
      make("div", { class: "details" }, this.inspector, this.warp),
    );
    this.render();
  }

  clear() {
    this.pause();
    this.recording = empty();
    this.now = 0;
    this.isOver = false;
    this.position = -1;
    this.isFixed = false;
    this.render();
  }

  /** @param {Recording} recording */
  load(recording) {
    this.recording = recording;
    this.now = recording.frames.length - 1;
    this.isOver = true;
    this.render();
  }

  /** @param {Frame} frame */
  add(frame) {
    const { frames, words } = this.recording,
      isFollowing = this.now >= frames.length - 1;
    Object.assign(words, frame.words);
    frames.push(frame);
    if (isFollowing) this.now = frames.length - 1;
    if (!this.timer) this.timer = requestAnimationFrame(() => ((this.timer = 0), this.render()));
  }

  /** @param {End} end */
  finish(end) {
    this.recording.end = end;
    this.isOver = true;
    this.now = this.recording.frames.length - 1;
    this.render();
  }

  get frame() {
    return this.recording.frames[this.now];
  }

  /** The step at the playhead. */
  get step() {
    return this.frame?.step ?? 0;
  }

  /** Whether the playhead is at the very end. */
  get isAtEnd() {
    return this.isOver && this.now === this.recording.frames.length - 1;
  }

  /**
   * Returns the index of the last frame up to a step: some may have been left out for a slow connection.
   * @param {number} step
   */
  nearest(step) {
    return this.recording.frames.filter((frame) => frame.step <= step).length - 1;
  }

  /** @param {number} index */
  goTo(index) {
    this.now = Math.max(0, Math.min(index, this.recording.frames.length - 1));
    this.render();
  }

  toggle() {
    if (this.isPlaying) return this.pause();
    const { frames } = this.recording;
    if (this.now >= frames.length - 1) this.now = 0;
    const pace = Math.max(16, 4000 / frames.length);
    this.player = setInterval(
      () => (this.now >= frames.length - 1 ? this.pause() : this.goTo(this.now + 1)),
      pace,
    );
    this.isPlaying = true;
    this.render();
  }

  pause() {
    clearInterval(this.player);
    this.isPlaying = false;
    this.render();
  }

  /**
   * @param {number | null} position
   * @param {boolean} isFixed
   */
  choose(position, isFixed) {
    if (this.isFixed && !isFixed) return;
    this.isFixed = isFixed;
    this.position = position ?? -1;
    this.tokens.mark(this.isFixed ? this.position : -1);
    this.renderInspector();
  }

  render() {
    const { start, frames, end } = this.recording,
      frame = this.frame;
    const shown = this.isAtEnd && end ? end : frame;
    if (shown)
      this.tokens.show(shown.parts, frame?.p ?? shown.given.map(() => 1000), shown.given, shown === end);
    else this.tokens.show([], [], [], true);
    this.timeline.hidden = frames.length < 2;
    const low = frames[0]?.step ?? 0,
      high = this.isOver ? (frames[frames.length - 1]?.step ?? 0) : start.steps - 1;
    Object.assign(this.slider, { min: String(low), max: String(high), value: String(this.step) });
    this.play.textContent = this.isPlaying ? "❚❚" : "▶";
    this.play.setAttribute("aria-label", this.isPlaying ? "Pause" : "Play");
    const level = start.t ? `, noise level ${short(frame?.t ?? 0)}` : "";
    const unit = start.model === "autoregressive" ? "token" : "step";
    const place = frame ? `${unit} ${frame.step + 1} of ${start.steps}${level}` : "";
    this.slider.setAttribute("aria-valuetext", place);
    this.place.textContent = frame
      ? `${frame.step + 1} / ${start.steps}${start.t ? ` · t = ${short(frame.t)}` : ""} · ${frame.entropy.toFixed(2)} nats`
      : "";
    this.chart.replaceChildren(entropyChart(frames, low, high, this.step));
    this.warp.hidden = !start.t;
    if (start.t)
      this.warp.replaceChildren(
        make("figcaption", {}, "Where the steps lie: the learnt time warp"),
        warpChart(start, this.step),
      );
    this.renderInspector();
    this.hooks.changed?.();
  }

  renderInspector() {
    const position = this.position,
      best = this.bestAt(position);
    if (position < 0 || !this.frame || position >= this.frame.parts.length) {
      const text = this.frame ? "Point at a word, or tap it, to see what competes for its place." : "";
      return this.inspector.replaceChildren(make("p", { class: "hint" }, text));
    }
    const isGiven = Boolean(this.frame.given[position]);
    const title = make(
      "h3",
      {},
      `Position ${position + 1}`,
      make("small", {}, ` at step ${this.step + 1} of ${this.recording.start.steps}`),
    );
    const rows = isGiven
      ? [make("p", { class: "hint" }, "This word is given.")]
      : best.map(([token, p]) => this.rival(position, token, p));
    const more = this.isFixed ? this.hooks.position?.(position, isGiven) : null;
    return this.inspector.replaceChildren(title, ...rows, ...(more ? [more] : []));
  }

  /**
   * @param {number} position
   * @param {number} token
   * @param {number} p
   */
  rival(position, token, p) {
    const bar = make("i", { class: "bar" });
    bar.style.setProperty("--p", String(p / 1000));
    const points = this.recording.frames
      .filter((frame) => frame.best[position])
      .map(
        (frame) => /** @type {[number, number]} */ ([frame.step, probability(frame.best[position], token)]),
      );
    const button = this.isFixed ? this.hooks.rival?.(position, token) : null;
    const word = this.recording.words[token] ?? `#${token}`;
    return make(
      "div",
      { class: "rival" },
      make("span", { class: "word" }, word),
      bar,
      make("span", { class: "number" }, percent(p / 1000)),
      points.length > 1 ? trend(points, this.recording.start.steps, this.step) : make("span"),
      button,
    );
  }

  /**
   * Returns the likeliest tokens of a position at the step, or at the last step that predicted it.
   * @param {number} position
   * @returns {[number, number][]}
   */
  bestAt(position) {
    const frame = [...this.recording.frames.slice(0, this.now + 1)]
      .reverse()
      .find((each) => each.best[position]);
    const flat = frame?.best[position] ?? [];
    return flat.flatMap((token, i) =>
      i % 2 ? [] : [/** @type {[number, number]} */ ([token, flat[i + 1]])],
    );
  }
}

/**
 * @param {number[]} flat
 * @param {number} token
 */
function probability(flat, token) {
  for (let i = 0; i < flat.length; i += 2) if (flat[i] === token) return flat[i + 1];
  return 0;
}

/** @returns {Recording} */
function empty() {
  return { start: { model: "", given: [], steps: 0 }, frames: [], words: {}, end: null };
}
