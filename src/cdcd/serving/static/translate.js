// The translation tab: several samples, the chosen one, and why it was chosen.
import { make } from "./dom.js";
import { stream } from "./stream.js";
import { copy } from "./share.js";
import { Panel } from "./panel.js";

export class Translation {
  /**
   * @param {Model[]} models
   * @param {(state: object) => string} keep makes the permalink
   */
  constructor(models, keep) {
    this.models = models;
    this.keep = keep;
    /** @type {AbortController | null} */
    this.running = null;
    this.select = make(
      "select",
      { id: "translator", change: () => this.load({}) },
      ...models.map(({ name }) => make("option", {}, name)),
    );
    this.source = make(
      "textarea",
      {
        id: "source",
        rows: 2,
        maxlength: 2000,
        keydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
      },
      "Anna gets up at half past two in the morning.",
    );
    this.count = make("input", {
      id: "samples",
      type: "range",
      min: 1,
      max: 16,
      value: 8,
      input: () => (this.counted.textContent = this.count.value),
    });
    this.counted = make("output", { for: "samples" }, "8");
    this.seed = make("input", { id: "translation-seed", type: "number", min: 0, step: 1, value: 0 });
    this.utility = make("select", { id: "utility" }, make("option", {}, "bleu"), make("option", {}, "chrf"));
    this.status = make("p", { class: "status", role: "status" });
    this.panel = new Panel(() => undefined);
    this.result = make("div", { class: "translations" });
    const field = (
      /** @type {HTMLElement} */ input,
      /** @type {string} */ label,
      /** @type {string} */ help,
      /** @type {Node | null} */ shown = null,
    ) =>
      make(
        "div",
        { class: "control" },
        make("div", { class: "head" }, make("label", { for: input.id }, label), shown),
        input,
        make("p", { class: "help" }, help),
      );
    this.element = make(
      "section",
      { class: "view" },
      make(
        "div",
        { class: "work" },
        make(
          "div",
          { class: "editor" },
          make("label", { for: "source" }, "Sentence to translate"),
          make("div", { class: "paper" }, this.source),
          make(
            "div",
            { class: "tools" },
            make("button", { type: "button", class: "primary", click: () => this.run() }, "Translate"),
            this.status,
          ),
        ),
        this.result,
      ),
      make(
        "aside",
        { class: "settings", "aria-label": "Settings" },
        field(this.select, "Translator", "The model that translates."),
        field(
          this.count,
          "Samples",
          "So many translations are drawn; the one most like the others is chosen.",
          this.counted,
        ),
        field(
          this.utility,
          "Likeness",
          "How alike two translations are: by words (BLEU) or by letters (chrF).",
        ),
        field(this.seed, "Seed", "Another number, other noise, other translations."),
        this.panel.element,
      ),
    );
    this.load({});
  }

  get model() {
    return /** @type {Model} */ (this.models.find(({ name }) => name === this.select.value));
  }

  /** @param {Values} values */
  load(values) {
    this.panel.load(this.model.controls, values);
  }

  /** @param {any} state */
  restore(state) {
    if (this.models.some(({ name }) => name === state.model)) this.select.value = state.model;
    this.source.value = String(state.text);
    this.count.value = this.counted.textContent = String(state.num_samples);
    this.seed.value = String(state.seed);
    this.utility.value = state.utility;
    this.load(Object(state.settings));
    this.run();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    this.run();
  }

  async run() {
    this.running?.abort();
    const running = (this.running = new AbortController());
    const request = {
      model: this.model.name,
      text: this.source.value,
      num_samples: Number(this.count.value),
      seed: Number(this.seed.value) || 0,
      utility: this.utility.value,
      settings: this.panel.chosen(),
    };
    const link = this.keep({ translation: request });
    this.result.dataset.state = "running";
    this.say("…");
    try {
      await stream("translate", request, running.signal, (kind, data) => {
        if (kind === "queue" && data.place) this.say(`waiting: place ${data.place} in the queue`);
        if (kind === "progress") this.say(`${Math.round(100 * data.share)}%`);
        if (kind === "end") this.show(data, link);
      });
      this.say("");
      this.result.dataset.state = "done";
    } catch (error) {
      if (running.signal.aborted) return;
      this.say(/** @type {Error} */ (error).message, true);
      this.result.dataset.state = "failed";
    }
  }

  /**
   * @param {string} text
   * @param {boolean} [isError]
   */
  say(text, isError = false) {
    this.status.textContent = text;
    this.status.classList.toggle("error", isError);
  }

  /**
   * @param {Translated} data
   * @param {string} link
   */
  show(data, link) {
    const { samples, chosen } = data,
      best = Math.round(10 * data.mean[chosen]) / 10;
    const why =
      samples.length === 1
        ? "One sample, so there was nothing to choose."
        : samples.every((text) => text === samples[0])
          ? `All ${samples.length} samples are the same.`
          : `Chosen since it is most like the others: ${best} points of ${data.utility.toUpperCase()} on average over all ${samples.length}${data.bonuses.some(Boolean) ? ", with its confidence" : ""}.`;
    const button = (/** @type {string} */ label, /** @type {string} */ text) => {
      const made = make("button", { type: "button", click: () => copy(made, text) }, label);
      return made;
    };
    this.result.replaceChildren(
      make("p", { class: "chosen", lang: data.languages[1] }, samples[chosen] || "(nothing)"),
      make("p", { class: "hint" }, why),
      samples.length > 1 ? heatMap(data) : "",
      make(
        "div",
        { class: "actions" },
        button("Copy link", link),
        button("Copy as command", data.command),
        button("as Python", data.python),
      ),
    );
  }
}

/**
 * Makes the table of samples, with the likeness of each to each as shades.
 * @param {Translated} data
 */
function heatMap({ samples, chosen, likeness, mean, languages, utility }) {
  const head = make(
    "tr",
    {},
    make("th", { scope: "col" }, "sample"),
    ...samples.map((_, i) => make("th", { scope: "col", class: "cell" }, String(i + 1))),
    make("th", { scope: "col", class: "cell" }, "mean"),
  );
  const rows = samples.map((text, i) => {
    const cells = likeness[i].map((value, j) => {
      const cell = make(
        "td",
        { class: "cell", title: `${utility.toUpperCase()} of ${i + 1} with ${j + 1}: ${value}` },
        make("span", {}, String(Math.round(value))),
      );
      cell.style.setProperty("--v", String(value / 100));
      cell.classList.toggle("strong", value > 55);
      return cell;
    });
    return make(
      "tr",
      { class: i === chosen ? "best" : "" },
      make("th", { scope: "row", lang: languages[1] }, make("small", {}, `${i + 1} `), text || "(nothing)"),
      ...cells,
      make("td", { class: "cell mean" }, mean[i].toFixed(1)),
    );
  });
  return make(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Samples and their likeness" },
    make("table", { class: "heat" }, make("thead", {}, head), make("tbody", {}, ...rows)),
  );
}
