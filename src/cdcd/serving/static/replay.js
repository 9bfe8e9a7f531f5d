// The page of a replay: one recording, which stands in the page itself.
import { make } from "./dom.js";
import { Viewer } from "./viewer.js";

const page = /** @type {HTMLElement} */ (document.getElementById("replay"));
/** @type {Recording} */
const recorded = JSON.parse(document.getElementById("recording")?.textContent ?? "{}");
const viewer = new Viewer();
page.append(
  make("h1", {}, "A text out of noise"),
  make(
    "p",
    { class: "lead" },
    "Each step of a diffusion model of text. Drag the slider, or press play; point at a word to see its rivals.",
  ),
  viewer.element,
  make("pre", { class: "recipe", tabindex: 0 }, recorded.command ?? ""),
);
viewer.load(recorded);
