// The page: what the server has, as tabs, and the state that a link brings.
import { make } from "./dom.js";
import { ask, takeToken } from "./stream.js";
import { fromLink, keep, stateIn } from "./share.js";
import { Playground } from "./playground.js";
import { Translation } from "./translate.js";

/**
 * @param {Record<string, HTMLElement>} views by the name of their tab
 * @param {string} first
 */
function tabs(views, first) {
  const names = Object.keys(views);
  const show = (/** @type {string} */ name) =>
    names.forEach((each) => {
      views[each].hidden = each !== name;
      buttons[each].setAttribute("aria-selected", String(each === name));
      buttons[each].tabIndex = each === name ? 0 : -1;
    });
  const keydown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    const next = names[1 - names.indexOf(/** @type {HTMLElement} */ (event.target).textContent ?? "")];
    show(next);
    buttons[next].focus();
  };
  const buttons = Object.fromEntries(
    names.map((name) => [
      name,
      make("button", { type: "button", role: "tab", click: () => show(name), keydown }, name),
    ]),
  );
  show(first);
  return make(
    "div",
    { role: "tablist", "aria-label": "What to do", hidden: names.length < 2 },
    ...Object.values(buttons),
  );
}

/** Ctrl+Enter runs what is shown, wherever the focus is. */
function runByKey(/** @type {KeyboardEvent} */ event) {
  if (event.defaultPrevented || event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  /** @type {HTMLElement | null} */ (document.querySelector("#page > :not([hidden]) .primary"))?.click();
}

async function begin() {
  takeToken();
  const page = /** @type {HTMLElement} */ (document.getElementById("page"));
  const bar = /** @type {HTMLElement} */ (document.getElementById("bar"));
  try {
    /** @type {Model[]} */
    const models = (await (await ask("models")).json()).models;
    const texts = models.filter(({ task }) => task === "text"),
      translators = models.filter(({ task }) => task === "translation");
    const playground = texts.length ? new Playground(texts) : null;
    const translation = translators.length ? new Translation(translators, keep) : null;
    const raw = fromLink(location.hash),
      state = stateIn(raw);
    /** @type {Record<string, HTMLElement>} */
    const views = {};
    if (playground) views.Text = playground.element;
    if (translation) views.Translation = translation.element;
    bar.append(tabs(views, (raw?.translation && translation) || !playground ? "Translation" : "Text"));
    page.replaceChildren(...Object.values(views));
    if (playground) playground.editor.refresh();
    if (state && playground) playground.restore(state);
    if (raw?.translation && translation) translation.restore(raw.translation);
    document.addEventListener("keydown", runByKey);
    page.dataset.state = "ready";
  } catch (error) {
    page.replaceChildren(
      make("p", { class: "status error", role: "alert" }, /** @type {Error} */ (error).message),
    );
  }
}

begin();
