// The settings of a model: sliders and choices, each with its help.
import { make } from "./dom.js";

let panels = 0;

export class Panel {
  /** @param {() => void} changed */
  constructor(changed) {
    this.changed = changed;
    this.id = panels += 1;
    /** @type {Control[]} */
    this.controls = [];
    /** @type {Values} */
    this.values = {};
    this.element = make("div", { class: "panel" });
  }

  /**
   * @param {Control[]} controls
   * @param {Values} values those that differ from the model's own
   */
  load(controls, values) {
    this.controls = controls;
    this.values = Object.fromEntries(
      controls.filter(({ name }) => name in values).map(({ name }) => [name, values[name]]),
    );
    this.element.replaceChildren(...controls.map((control) => this.row(control)));
    this.refresh();
  }

  /** @param {Control} control */
  row(control) {
    const id = `control-${this.id}-${control.name}`,
      value = this.values[control.name] ?? control.value;
    const shown = make("output", { for: id });
    const change = (/** @type {Event} */ event) => {
      const { value: given } = /** @type {HTMLInputElement} */ (event.target);
      const chosen = control.choices.length ? given : Number(given);
      if (chosen === control.value) delete this.values[control.name];
      else this.values[control.name] = chosen;
      this.refresh();
      this.changed();
    };
    const named = { id, "data-name": control.name, "aria-describedby": `${id}-help` };
    const input = control.choices.length
      ? make(
          "select",
          { ...named, change },
          ...control.choices.map((name) => make("option", { selected: name === value }, name)),
        )
      : make("input", {
          ...named,
          type: "range",
          min: Math.min(control.least, Number(value)),
          max: Math.max(control.most, Number(value)),
          step: control.step,
          value,
          input: change,
        });
    const help = make("p", { class: "help", id: `${id}-help` }, control.help);
    return make(
      "div",
      { class: "control", "data-control": control.name },
      make(
        "div",
        { class: "head" },
        make("label", { for: id }, control.label),
        control.choices.length ? null : shown,
      ),
      input,
      help,
    );
  }

  /** Shows the values, and hides settings that have no effect. */
  refresh() {
    for (const control of this.controls) {
      const row = /** @type {HTMLElement} */ (this.element.querySelector(`[data-control="${control.name}"]`));
      const value = this.values[control.name] ?? control.value,
        shown = row.querySelector("output");
      if (shown) shown.textContent = String(value);
      row.classList.toggle("changed", control.name in this.values);
      row.hidden = !this.hasEffect(control);
    }
  }

  /** @param {Control} control */
  hasEffect(control) {
    const [name, values] = control.needs.split("=");
    if (!name) return true;
    const other = this.controls.find((each) => each.name === name);
    return values.split("|").includes(String(this.values[name] ?? other?.value));
  }

  /** Returns the settings that a request is to have. */
  chosen() {
    const names = this.controls
      .filter((control) => control.name in this.values && this.hasEffect(control))
      .map(({ name }) => name);
    return Object.fromEntries(names.map((name) => [name, this.values[name]]));
  }
}
