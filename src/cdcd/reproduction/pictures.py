"""The paper's figures from our results: bars (Figure 4), trade-offs (5, 6), the time warp (2, 8), Tables 3 and 4."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cdcd.config import RunConfig
from cdcd.diffusion.warping import TimeWarp
from cdcd.evaluation.plots import BLUE, GREY, ORANGE, new_figure, plot_time_warping
from cdcd.files import read_json
from cdcd.reproduction.findings import PAPER, Values
from cdcd.reproduction.plan import Plan
from cdcd.reproduction.report import difference, equal_entropy, read_values, summary
from cdcd.reproduction.rows import ROWS, Row, base_of, rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DATA = "table1/data/data"
TRADE_OFFS = {
    "figure5": [
        *("table2/score-temperature", "table2/softmax-temperature"),
        *("table2/initial-noise", "table2/nucleus", "table2/guidance"),
    ],
    "figure6": [f"figure6/guidance={scale}" for scale in (1.0, 2.0, 4.0, 8.0)],
}
WARPS = {"temperature": (0.5, 1.0, 2.0, 5.0), "uniformity": (0.0, 0.1, 0.5, 1.0)}


def draw(plan: Plan) -> list[Path]:
    """Draws every figure of which there are results; returns the pictures, none without matplotlib."""
    if find_spec("matplotlib") is None:
        return []
    values = read_values(replace(plan, rows=list(ROWS.values())))
    figures = {"figure4": _bars(values)}
    figures |= {"table3": _completions(values), "table4": _translations(values)}
    figures |= {name: _trade_offs(values, groups) for name, groups in TRADE_OFFS.items()}
    drawn = []
    record = plan.run("base.0") / "record.json"
    if record.is_file():
        facts, config = read_json(record), plan.scale.base()
        losses, warp = facts["validation"]["losses"], _warp(facts["warp"], config)
        drawn.append(plan.out / "figure2.png")
        plot_time_warping(warp, losses["t"], losses["loss"], drawn[0])
        figures["figure8"] = _warps(warp)
    for name, figure in figures.items():
        if figure is not None:
            drawn.append(plan.out / f"{name}.png")
            figure.savefig(drawn[-1], dpi=130)
    return drawn


def _bars(values: Values) -> "Figure | None":
    """Draws AR-NLL less that of the base model, the paper's and ours, for every row of Table 1.

    Dots compare with the base model at equal entropy, where its frontier reaches the row's.
    """
    rows = [row for row in rows_of(["table1"]) if base_of(row.name)]
    paper = [row.paper["nll"] - ROWS[base_of(row.name)].paper["nll"] for row in rows]
    ours = [(y, difference(row, values, "nll")) for y, row in enumerate(rows)]
    bars = [(y, each["mean"], each["error"] or 0.0) for y, each in ours if each is not None]
    if len(bars) < 2:
        return None
    figure, (axis,) = new_figure(1, 1, (8, 0.19 * len(rows) + 1))
    axis.plot(paper, range(len(rows)), "|", color=ORANGE, markersize=9, label="paper")
    y, means, errors = zip(*bars, strict=True)
    axis.barh(y, means, xerr=errors, color=BLUE, alpha=0.7, label="ours")
    equal = [(y, equal_entropy(row, values)) for y, row in enumerate(rows)]
    dots = [(each["mean"], y) for y, each in equal if each is not None]
    axis.plot(*zip(*dots, strict=True), "k.", markersize=5, label="ours, at equal entropy")
    axis.axvline(0, color=GREY, linewidth=0.8, zorder=0)
    axis.set_yticks(range(len(rows)), [row.name.split("/", 1)[1] for row in rows], fontsize=7)
    axis.set(
        ylim=(len(rows) - 0.4, -0.6),
        xlabel="AR-NLL less that of the base model (nats a token)",
        title="Table 1, Figure 4",
    )
    axis.legend(frameon=False)
    return figure


def _completions(values: Values) -> "Figure | None":
    """Draws MAUVE over AR-NLL, a line for the baseline and for each guidance scale, the paper's and ours."""
    lines: dict[str, list[Row]] = {}
    for row in rows_of(["table3"]):
        scale = row.sampling.get("guidance_scale")
        lines.setdefault(f"guidance={scale}" if scale else row.system, []).append(row)
    if not any(row.name in values for row in lines["autoregressive"]):
        return None
    figure, axes = new_figure(1, 2, (12, 5))
    for axis, (title, side) in zip(axes, {"paper": PAPER, "ours": values}.items(), strict=True):
        for label, rows in lines.items():
            if points := [*_points(rows, side, "nll", "mauve")]:
                _draw_line(axis, points, label)
        axis.set(title=title, xlabel="AR-NLL (nats a token)", ylabel="MAUVE")
        axis.legend(frameon=False, fontsize=8)
    return figure


def _translations(values: Values) -> "Figure | None":
    """Draws BLEU over the number of samples that minimum Bayes risk chooses from, by direction."""
    rows = rows_of(["table4"])
    if not any(row.name in values for row in rows):
        return None
    directions = list(dict.fromkeys(row.name.rpartition("/")[2] for row in rows))
    figure, axes = new_figure(1, len(directions), (4.5 * len(directions) + 2, 4.5))
    for axis, direction in zip(axes, directions, strict=True):
        of_direction = [row for row in rows if row.name.endswith(f"/{direction}")]
        _draw_bleu(axis, of_direction, PAPER, "paper", ":")
        _draw_bleu(axis, of_direction, values, "ours", "-")
        axis.set(title=direction, xlabel="samples", ylabel="BLEU", xscale="log")
    entries = (zip(*axis.get_legend_handles_labels(), strict=True) for axis in axes)
    lines = {label: line for each in entries for line, label in each}
    figure.legend([*lines.values()], [*lines], loc="outside right center", frameon=False)
    return figure


def _draw_bleu(axis: "Axes", rows: Sequence[Row], values: Values, side: str, style: str) -> None:
    """Draws a line for each model and decoder."""
    for number, name in enumerate(dict.fromkeys(map(_translator, rows))):
        points = list(_bleu_points([row for row in rows if _translator(row) == name], values))
        if points:
            x, y, errors = zip(*points, strict=True)
            label = f"{name}, {side}"
            axis.errorbar(x, y, errors, fmt=f".{style}", color=f"C{number}", label=label)


def _translator(row: Row) -> str:
    """Returns the name of a row's model and decoder, without the number of samples."""
    size, _, kind = row.name.split("/")[1].partition("n=")[0].strip("-").partition("-")
    return f"{size} {kind or 'CDCD'}"


def _bleu_points(rows: Sequence[Row], values: Values) -> Iterator[tuple[int, float, float]]:
    """Yields the number of samples, BLEU and its error; beam search has one value for all numbers."""
    for row in rows:
        bleu, count = summary(row, values, "bleu"), row.sampling.get("num_samples")
        for num_samples in (1, 10, 100) if count is None else (int(count),):
            if bleu is not None:
                yield num_samples, bleu["mean"], bleu["error"] or 0.0


def _trade_offs(values: Values, groups: Sequence[str]) -> "Figure | None":
    """Draws AR-NLL over entropy for each setting that is varied, the paper's beside ours."""
    sides = {"paper": PAPER, "ours": values}
    lines = {
        title: {group: [*_points(rows_of([group]), side, "entropy", "nll")] for group in groups}
        for title, side in sides.items()
    }
    if not any(len(points) > 1 for points in lines["ours"].values()):
        return None
    titles = [title for title, each in lines.items() if any(each.values())]
    figure, axes = new_figure(1, len(titles), (6 * len(titles), 5))
    for axis, title in zip(axes, titles, strict=True):
        for group, points in lines[title].items():
            _draw_line(axis, points, group.split("/")[1])
        for data in sides[title].get(DATA, {}).values():
            axis.plot(data["entropy"], data["nll"], "x", color="black", markersize=9, label="data")
        axis.set(title=title, xlabel="unigram entropy (nats)", ylabel="AR-NLL (nats a token)")
        axis.legend(frameon=False, fontsize=8)
    return figure


def _points(rows: Sequence[Row], values: Values, *metrics: str) -> Iterator[tuple[float, float]]:
    """Yields two metrics of every row that has both."""
    for row in rows:
        x, y = (summary(row, values, metric) for metric in metrics)
        if x is not None and y is not None:
            yield x["mean"], y["mean"]


def _draw_line(axis: "Axes", points: Sequence[tuple[float, float]], label: str) -> None:
    """Draws points that grow with the setting's value, joined by a line."""
    x, y = [x for x, _ in points], [y for _, y in points]
    axis.plot(x, y, linewidth=0.8)
    axis.scatter(x, y, [12 + 8 * number for number in range(len(points))], label=label)


def _warp(state: Mapping[str, Any], config: RunConfig) -> TimeWarp:
    warp = TimeWarp(config.warp, config.process)
    warp.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
    return warp


def _warps(warp: TimeWarp) -> "Figure":
    """Draws the warp at some temperatures and uniformities."""
    figure, axes = new_figure(2, 1, (7, 7))
    u = torch.linspace(0, 1, 500)
    for axis, (name, group) in zip(axes, WARPS.items(), strict=True):
        for value in group:
            t = warp.schedule().adjusted(**{name: value}).noise_levels(u)
            axis.plot(t, u, label=f"{name} {value:g}")
        axis.set(xlabel="noise level t", ylabel="F(t)", xscale=warp.config.bins)
        axis.legend(frameon=False)
    return figure
