// The tab of texts: a text with its gaps, settings, one column or two to compare, and going on from a step.
import { make } from "./dom.js";
import { ask } from "./stream.js";
import { keep } from "./share.js";
import { Editor } from "./editor.js";
import { Panel } from "./panel.js";
import { Column } from "./column.js";

const FIRST_TEXT = "One sunny day Mia [*]";

export class Playground {
  /** @param {Model[]} models */
  constructor(models) {
    this.models = models;
    /** @type {Change[]} */
    this.changes = [];
    this.link = location.href;
    this.editor = new Editor({
      count: (text) => this.count(text),
      run: () => this.run(),
      knowsEnds: () => this.models.length === 0 || this.model(0).knows_ends,
    });
    this.selects = [0, 1].map((i) => this.select(i));
    this.panels = [0, 1].map(() => new Panel(() => undefined));
    this.columns = [0, 1].map(
      (i) =>
        new Column({
          renoise: (change) => this.renoise(i, change),
          link: () => this.link,
          settled: () => this.settled(),
        }),
    );
    this.seed = make("input", { id: "seed", type: "number", min: 0, step: 1, value: 0 });
    this.other = make(
      "button",
      {
        type: "button",
        click: () => ((this.seed.value = String(Math.floor(Math.random() * 1_000_000))), this.run()),
      },
      "Other noise",
    );
    this.compare = make("input", { id: "compare", type: "checkbox", change: () => this.layOut() });
    this.go = make(
      "button",
      { type: "button", class: "primary", id: "run", click: () => this.run() },
      "Fill the gaps",
    );
    this.halt = make("button", { type: "button", hidden: true, click: () => this.stop() }, "Stop");
    this.trail = make("p", { class: "trail", hidden: true });
    this.second = make(
      "fieldset",
      { class: "side" },
      make("legend", {}, "Second column"),
      this.field("Model", this.selects[1]),
      this.panels[1].element,
    );
    const empty = make(
      "p",
      { class: "hint empty" },
      "The text appears here out of noise, all of it at once: shaded where the model is still uncertain, then ever clearer. Afterwards every step can be looked at again, and any word changed on the way.",
    );
    this.board = make("div", { class: "board" }, empty, this.columns[0].element, this.columns[1].element);
    this.element = make(
      "section",
      { class: "view" },
      make(
        "div",
        { class: "work" },
        this.editor.element,
        make(
          "div",
          { class: "tools run" },
          this.go,
          this.halt,
          this.other,
          make("span", { class: "hint keys" }, "Ctrl+Enter"),
        ),
        this.trail,
        this.board,
      ),
      make(
        "aside",
        { class: "settings", "aria-label": "Settings" },
        make(
          "div",
          { class: "control" },
          make("div", { class: "head" }, make("label", { for: "seed" }, "Seed")),
          this.seed,
          make("p", { class: "help" }, "The same seed gives the same text again; another one other noise."),
        ),
        make(
          "fieldset",
          { class: "side" },
          make("legend", {}, "Model"),
          this.field("Model", this.selects[0]),
          this.panels[0].element,
        ),
        make(
          "label",
          { class: "switch", for: "compare" },
          this.compare,
          " Compare: a second column from the same noise",
        ),
        this.second,
      ),
    );
    this.selects.forEach((_, i) => this.panels[i].load(this.model(i).controls, {}));
    this.editor.value = FIRST_TEXT;
    this.layOut();
  }

  /**
   * Counts the tokens of a text; where the server does not answer, its words.
   * @param {string} text
   * @returns {Promise<number>}
   */
  async count(text) {
    try {
      return (await (await ask("count", { model: this.model(0).name, text })).json()).tokens;
    } catch {
      return text.split(/\s+/).length;
    }
  }

  /** @param {number} i */
  select(i) {
    const change = () => (this.panels[i].load(this.model(i).controls, {}), this.editor.tools());
    const options = this.models.map(({ name, model }) =>
      make("option", { value: name }, model === "diffusion" ? name : `${name} (${model})`),
    );
    return make("select", { id: `model-${i}`, change }, ...options);
  }

  /**
   * @param {string} label
   * @param {HTMLElement} input
   */
  field(label, input) {
    return make("div", { class: "control" }, make("label", { for: input.id, class: "unseen" }, label), input);
  }

  /** @param {number} i */
  model(i) {
    return this.models.find(({ name }) => name === this.selects?.[i]?.value) ?? this.models[0];
  }

  layOut() {
    this.second.hidden = this.columns[1].element.hidden = !this.compare.checked;
    this.board.classList.toggle("two", this.compare.checked);
    if (!this.compare.checked) this.columns[1].stop();
  }

  /** @returns {State} */
  state() {
    const count = this.compare.checked ? 2 : 1;
    const columns = this.panels
      .slice(0, count)
      .map((panel, i) => ({ model: this.model(i).name, settings: panel.chosen() }));
    return {
      text: this.editor.value,
      seed: Math.max(0, Math.floor(Number(this.seed.value) || 0)),
      columns,
      changes: this.changes,
    };
  }

  /** @param {State} state */
  restore(state) {
    this.editor.value = state.text;
    this.seed.value = String(state.seed);
    this.compare.checked = state.columns.length > 1;
    state.columns.forEach(({ model, settings }, i) => {
      if (this.models.some(({ name }) => name === model)) this.selects[i].value = model;
      this.panels[i].load(this.model(i).controls, settings);
    });
    this.layOut();
    this.start({
      ...state,
      columns: state.columns.map((each, i) => ({ ...each, model: this.model(i).name })),
    });
  }

  run() {
    this.changes = [];
    this.start(this.state());
  }

  /** @param {State} state */
  start(state) {
    this.changes = state.changes;
    this.asked = state;
    this.link = keep(state);
    this.showTrail();
    this.halt.hidden = false;
    state.columns.forEach(({ model, settings }, i) => {
      const served = /** @type {Model} */ (this.models.find(({ name }) => name === model));
      const changes = served.goes_back && i === 0 ? state.changes : [];
      const note = named(settings, served.controls);
      this.columns[i].run(served, { model, text: state.text, seed: state.seed, settings, changes }, note);
    });
  }

  /**
   * Goes on from a step of the first column's text, with the settings as they are now.
   * @param {number} i
   * @param {Change} change
   */
  renoise(i, change) {
    const before = /** @type {State} */ (this.asked),
      now = this.state();
    const controls = this.model(i).controls.filter((control) => control.at_a_step);
    const held = heldSettings(before.columns[i].settings, i === 0 ? before.changes : []);
    const isSame = before.columns[i].model === now.columns[i]?.model;
    const chosen = isSame ? now.columns[i].settings : {};
    const different = controls.filter(
      ({ name, value }) => isSame && (chosen[name] ?? value) !== (held[name] ?? value),
    );
    const solver = chosen.solver ?? held.solver;
    const settings = Object.fromEntries(
      different
        .filter(({ name }) => name !== "eta" || solver === "ancestral" || solver === "bridge")
        .map(({ name, value }) => [name, chosen[name] ?? value]),
    );
    if (Object.keys(settings).length) change.settings = settings;
    const kept = i === 0 ? before.changes.filter(({ step }) => step <= change.step) : [];
    if (i === 1) this.moveLeft();
    this.compare.checked = false;
    this.layOut();
    this.start({
      text: before.text,
      seed: before.seed,
      columns: [before.columns[i]],
      changes: [...kept, change],
    });
  }

  /** Makes the second column's model and settings those of the first. */
  moveLeft() {
    const settings = this.panels[1].chosen();
    this.selects[0].value = this.selects[1].value;
    this.panels[0].load(this.model(0).controls, settings);
  }

  showTrail() {
    this.trail.hidden = !this.changes.length;
    const parts = this.changes.map(({ step, tokens, seed, settings }) => {
      const what = [
        ...(tokens ? [`${Object.keys(tokens).length} word${Object.keys(tokens).length > 1 ? "s" : ""}`] : []),
        ...(seed === undefined ? [] : ["new noise"]),
        ...(settings ? [named(settings, this.model(0).controls)] : []),
      ];
      return `from step ${step + 1}: ${what.join(", ") || "nothing changed"}`;
    });
    this.trail.replaceChildren(
      "Re-noised ",
      parts.join("; then "),
      " ",
      make("button", { type: "button", click: () => this.run() }, "Start again"),
    );
  }

  stop() {
    this.columns.forEach((column) => column.stop());
    this.settled();
  }

  settled() {
    this.halt.hidden = !this.columns.some((column) => column.running);
  }
}

/**
 * Returns settings in words.
 * @param {Values} settings
 * @param {Control[]} controls
 */
function named(settings, controls) {
  const label = (/** @type {string} */ name) =>
    controls.find((control) => control.name === name)?.label.toLowerCase() ?? name;
  return Object.entries(settings)
    .map(([name, value]) => `${label(name)} ${value}`)
    .join(", ");
}

/**
 * Returns the settings at the end of some changes.
 * @param {Values} settings
 * @param {Change[]} changes
 */
function heldSettings(settings, changes) {
  return Object.assign({}, settings, ...changes.map((change) => change.settings ?? {}));
}
