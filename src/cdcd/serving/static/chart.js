// Two drawings: the entropy of every step, and the steps on the learnt warp.
import { draw, short } from "./dom.js";

/**
 * Draws the mean entropy of each step, on the width of the slider below it, which goes from `low` to `high`.
 * @param {Frame[]} frames
 * @param {number} low
 * @param {number} high
 * @param {number} now
 */
export function entropyChart(frames, low, high, now) {
  const top = Math.max(...frames.map((frame) => frame.entropy), 0.01);
  const across = (/** @type {number} */ step) => (1000 * (step - low)) / Math.max(high - low, 1);
  const at = (/** @type {Frame} */ frame) =>
    `${across(frame.step)},${(48 - (44 * frame.entropy) / top).toFixed(1)}`;
  const points = frames.map(at).join(" ");
  const [first, end] = [frames[0], frames[frames.length - 1]];
  const area = first ? `${across(first.step)},50 ${points} ${across(end.step)},50` : "";
  const x = across(now);
  return draw(
    "svg",
    { class: "entropy", viewBox: "0 0 1000 50", preserveAspectRatio: "none", "aria-hidden": "true" },
    draw("polygon", { class: "area", points: area }),
    draw("polyline", { class: "line", points }),
    draw("line", { class: "playhead", x1: x, x2: x, y1: 0, y2: 50 }),
  );
}

const LEFT = 34,
  RIGHT = 310,
  TOP = 10,
  BOTTOM = 150;

/**
 * Draws F(t) with the steps as ticks; noise falls from left to right, as in the slider.
 * @param {Start} start
 * @param {number} now
 */
export function warpChart(start, now) {
  const { t = [], u = [], curve_t = [], curve_u = [] } = start;
  const read = (/** @type {number} */ level) => (start.bins === "log" ? Math.log(level) : level);
  const low = read(curve_t[0]),
    high = read(curve_t[curve_t.length - 1]);
  const x = (/** @type {number} */ level) => LEFT + ((high - read(level)) / (high - low)) * (RIGHT - LEFT);
  const y = (/** @type {number} */ time) => BOTTOM - time * (BOTTOM - TOP);
  const at = Math.min(now, t.length - 1),
    px = x(t[at]),
    py = y(u[at]);
  const every = Math.max(1, Math.round((t.length - 1) / 50));
  const ticks = t
    .filter((_, i) => i % every === 0)
    .map((level) => draw("line", { class: "tick", x1: x(level), x2: x(level), y1: BOTTOM, y2: BOTTOM + 5 }));
  const curve = curve_t.map((level, i) => `${x(level).toFixed(1)},${y(curve_u[i]).toFixed(1)}`).join(" ");
  return draw(
    "svg",
    {
      class: "warp",
      viewBox: "0 0 320 184",
      role: "img",
      "aria-label": `Time warp: at noise level ${short(t[at])}, u is ${u[at].toFixed(2)}`,
    },
    draw("line", { class: "axis", x1: LEFT, x2: RIGHT, y1: BOTTOM, y2: BOTTOM }),
    draw("line", { class: "axis", x1: LEFT, x2: LEFT, y1: TOP, y2: BOTTOM }),
    ...ticks,
    draw("path", { class: "guide", d: `M${LEFT},${py}H${px}V${BOTTOM}` }),
    draw("polyline", { class: "line", points: curve }),
    draw("circle", { class: "head", cx: px, cy: py, r: 5 }),
    ...levels(curve_t[0], curve_t[curve_t.length - 1]).map((level) =>
      label(x(level), BOTTOM + 17, short(level).replace(/\.?0+$/, ""), "middle"),
    ),
    label(LEFT - 6, y(1) + 4, "1", "end"),
    label(LEFT - 6, y(0) + 4, "0", "end"),
    label((LEFT + RIGHT) / 2, 181, "noise level t", "middle"),
    label(RIGHT, TOP + 8, "u = F(t)", "end"),
  );
}

/**
 * Returns round numbers between two noise levels for the labels.
 * @param {number} low
 * @param {number} high
 */
function levels(low, high) {
  const round = [0.01, 0.1, 0.5, 1, 2, 5, 10, 20, 50, 100, 300, 1000].filter(
    (level) => level > low * 1.2 && level < high / 1.2,
  );
  const every = Math.ceil(round.length / 4);
  return [high, ...round.reverse().filter((_, i) => i % every === every - 1), low];
}

/**
 * @param {number} x
 * @param {number} y
 * @param {string} text
 * @param {string} anchor
 */
function label(x, y, text, anchor) {
  return draw("text", { x, y, "text-anchor": anchor }, text);
}

/**
 * Draws the probability of one token over the steps.
 * @param {[number, number][]} points (step, thousandths)
 * @param {number} steps
 * @param {number} now
 */
export function trend(points, steps, now) {
  const last = Math.max(steps - 1, 1),
    x = (/** @type {number} */ step) => ((100 * step) / last).toFixed(1);
  const line = points.map(([step, p]) => `${x(step)},${(19 - (18 * p) / 1000).toFixed(1)}`).join(" ");
  return draw(
    "svg",
    { class: "trend", viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" },
    draw("polyline", { class: "line", points: line }),
    draw("line", { class: "playhead", x1: x(now), x2: x(now), y1: 0, y2: 20 }),
  );
}
