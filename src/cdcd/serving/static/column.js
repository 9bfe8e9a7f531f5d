// A column: one model with its settings, the text that it writes, and ways to go on from a step or to take it away.
import { make } from "./dom.js";
import { ask, stream } from "./stream.js";
import { copy, download } from "./share.js";
import { Viewer } from "./viewer.js";

export class Column {
  /**
   * @param {{renoise: (change: Change) => void, link: () => string, settled: () => void}} hooks
   */
  constructor(hooks) {
    this.hooks = hooks;
    /** @type {AbortController | null} */
    this.running = null;
    /** @type {object | null} */
    this.request = null;
    /** @type {Model | null} */
    this.model = null;
    /** @type {Record<string, number | string | null>} */
    this.pending = {};
    /** @type {number | null} */
    this.from = null;
    this.branch = make("div", { class: "branch", hidden: true });
    /** @type {Viewer} */
    this.viewer = new Viewer({
      changed: () => this.refresh(),
      rival: (position, token) => (this.goesBack() ? this.pin(position, token) : null),
      position: (position, isGiven) => (this.goesBack() ? this.otherWord(position, isGiven) : null),
    });
    this.title = make("h2", {});
    this.status = make("p", { class: "status", role: "status" });
    const action = (/** @type {string} */ label, /** @type {(button: HTMLButtonElement) => void} */ act) => {
      const button = make("button", { type: "button", click: () => act(button) }, label);
      return button;
    };
    this.actions = make(
      "div",
      { class: "actions", hidden: true },
      action("Copy link", (button) => copy(button, this.hooks.link())),
      action("Copy as command", (button) => copy(button, this.viewer.recording.end?.command ?? "")),
      action("as Python", (button) => copy(button, this.viewer.recording.end?.python ?? "")),
      action("Download replay", (button) => this.replay(button)),
    );
    this.element = make(
      "article",
      { class: "column" },
      make("header", {}, this.title, this.status),
      this.viewer.element,
      this.branch,
      this.actions,
    );
  }

  /**
   * Asks for a text and shows it while it comes.
   * @param {Model} model
   * @param {object} request
   * @param {string} note
   */
  async run(model, request, note) {
    this.stop();
    const running = new AbortController();
    Object.assign(this, { running, request, model, pending: {}, from: null });
    this.viewer.clear();
    this.title.replaceChildren(model.name, make("small", {}, note));
    this.actions.hidden = true;
    this.element.dataset.state = "running";
    try {
      await stream("generate", request, running.signal, (kind, data) => this.take(kind, data));
      this.say("");
      this.element.dataset.state = "done";
    } catch (error) {
      if (running.signal.aborted) return;
      this.say(`${/** @type {Error} */ (error).message}`, true);
      this.element.dataset.state = "failed";
    } finally {
      if (this.running === running) this.running = null;
      this.hooks.settled();
    }
  }

  stop() {
    this.running?.abort();
    this.running = null;
  }

  /**
   * @param {string} kind
   * @param {any} data
   */
  take(kind, data) {
    if (kind === "queue") this.say(data.place ? `waiting: place ${data.place} in the queue` : "");
    if (kind === "start") this.viewer.recording.start = data;
    if (kind === "frame") this.viewer.add(data);
    if (kind !== "end") return;
    this.viewer.finish(data);
    this.actions.hidden = false;
    // What a screen reader says at the end.
    this.say(`Finished: ${data.text}`, false, true);
  }

  /**
   * @param {string} text
   * @param {boolean} [isError]
   * @param {boolean} [isQuiet]
   */
  say(text, isError = false, isQuiet = false) {
    this.status.classList.toggle("error", isError);
    this.status.classList.toggle("unseen", isQuiet);
    if (text || !this.status.classList.contains("unseen")) this.status.textContent = text;
  }

  /** @param {HTMLButtonElement} button */
  async replay(button) {
    button.disabled = true;
    try {
      const answer = await ask("replay", this.request ?? {});
      download(await answer.blob(), "replay.html");
    } catch (error) {
      this.say(/** @type {Error} */ (error).message, true);
    }
    button.disabled = false;
  }

  // Going on from a step

  /** @returns {boolean} */
  goesBack() {
    return Boolean(this.model?.goes_back && this.viewer?.isOver && this.viewer.recording.start.t);
  }

  /**
   * @param {number} position
   * @param {number} token
   */
  pin(position, token) {
    const isChosen = this.pending[position] === token,
      word = this.viewer.recording.words[token] ?? "";
    const click = () => this.change(position, isChosen ? undefined : token);
    return make(
      "button",
      {
        type: "button",
        class: "pin",
        "aria-pressed": String(isChosen),
        "aria-label": `Give ${word} at position ${position + 1}`,
        click,
      },
      isChosen ? "given" : "give",
    );
  }

  /**
   * @param {number} position
   * @param {boolean} isGiven
   */
  otherWord(position, isGiven) {
    const input = make("input", {
      type: "text",
      maxlength: 60,
      placeholder: "another word",
      "aria-label": `Another word at position ${position + 1}`,
    });
    const submit = (/** @type {Event} */ event) => {
      event.preventDefault();
      if (input.value.trim()) this.change(position, input.value.trim());
    };
    const free =
      isGiven &&
      make("button", { type: "button", click: () => this.change(position, null) }, "make it a gap");
    return make("form", { class: "other", submit }, input, make("button", {}, "give"), free);
  }

  /**
   * @param {number} position
   * @param {number | string | null | undefined} word
   */
  change(position, word) {
    if (word === undefined) delete this.pending[position];
    else this.pending[position] = word;
    this.viewer.render();
  }

  refresh() {
    const isOff = !this.goesBack(),
      hasPins = Object.keys(this.pending).length > 0;
    this.branch.hidden = isOff || (this.viewer.isAtEnd && !hasPins);
    if (this.branch.hidden) return;
    const { words, frames } = this.viewer.recording,
      step = this.viewer.step;
    const pins = Object.entries(this.pending).map(([position, word]) => {
      const text = word === null ? "a gap" : typeof word === "number" ? words[word] : word;
      return make(
        "button",
        {
          type: "button",
          class: "chip",
          "aria-label": `Remove: position ${Number(position) + 1} is ${text}`,
          click: () => this.change(Number(position), undefined),
        },
        `${Number(position) + 1}: ${text} ✕`,
      );
    });
    const go = (/** @type {boolean} */ isNew) => {
      const tokens = { ...this.pending };
      /** @type {Change} */
      const change = { step };
      if (hasPins) change.tokens = tokens;
      if (isNew) change.seed = Math.floor(Math.random() * 1_000_000);
      this.hooks.renoise(change);
    };
    const where = `step ${step + 1} of ${frames.length ? this.viewer.recording.start.steps : 0}`;
    this.branch.replaceChildren(
      make(
        "p",
        {},
        `Go back to ${where}, to the noise that is left there, and run on with the settings as they are now${hasPins ? " and " : ". Choose a word above to change it."}`,
        ...pins,
      ),
      make("button", { type: "button", class: "primary", click: () => go(false) }, "Re-noise from here"),
      make("button", { type: "button", click: () => go(true) }, "with new noise"),
    );
  }
}
