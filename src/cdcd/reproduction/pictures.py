"""The paper's figures from our results: bars (Figure 4), trade-offs (5, 6), the time warp (2, 8)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cdcd.config import RunConfig
from cdcd.diffusion.warping import TimeWarp
from cdcd.evaluation.plots import BLUE, GREY, ORANGE, new_figure, plot_time_warping
from cdcd.files import read_json
from cdcd.reproduction.findings import Values
from cdcd.reproduction.plan import Plan
from cdcd.reproduction.report import difference, read_values, summary
from cdcd.reproduction.rows import ROWS, Row, base_of, rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[tuple[float, float]]
TRADE_OFFS = {
    "figure5": ("score-temperature", "softmax-temperature", "initial-noise", "nucleus", "guidance"),
    "figure6": ("guidance=1.0", "guidance=2.0", "guidance=4.0", "guidance=8.0"),
}


def draw(plan: Plan) -> list[Path]:
    """Draws every figure of which there are results; returns the pictures, none without matplotlib."""
    if find_spec("matplotlib") is None:
        return []
    values = read_values(replace(plan, rows=list(ROWS.values())))
    pictures = {
        "figure4.png": lambda path: _bars(values, path),
        "figure5.png": lambda path: _trade_offs(values, "table2", TRADE_OFFS["figure5"], path),
        "figure6.png": lambda path: _trade_offs(values, "figure6", TRADE_OFFS["figure6"], path),
    }
    drawn = [plan.out / name for name, picture in pictures.items() if picture(plan.out / name)]
    record = plan.run("base.0") / "record.json"
    return drawn + list(_warps(read_json(record), plan)) if record.is_file() else drawn


def _bars(values: Values, path: Path) -> bool:
    """Draws AR-NLL less that of the base model, the paper's and ours, for every row of Table 1."""
    rows = [row for row in rows_of(["table1"]) if base_of(row.name)]
    ours = [difference(row, values, "nll") for row in rows]
    if sum(each is not None for each in ours) < 2:
        return False
    figure, (axis,) = new_figure(1, 1, (8, 0.19 * len(rows) + 1))
    for y, (row, each) in enumerate(zip(rows, ours, strict=True)):
        base = ROWS[base_of(row.name)].paper["nll"]
        axis.plot(
            row.paper["nll"] - base, y, "|", color=ORANGE, markersize=9, label=_once("paper", y)
        )
        if each is not None:
            error = {"xerr": each["error"] or 0.0, "color": BLUE, "alpha": 0.7}
            axis.barh(y, each["mean"] or 0.0, label=_once("ours", y), **error)
    axis.axvline(0, color=GREY, linewidth=0.8, zorder=0)
    axis.set_yticks(range(len(rows)), [row.name.split("/", 1)[1] for row in rows], fontsize=7)
    axis.invert_yaxis()
    axis.set(xlabel="AR-NLL less that of the base model (nats a token)", title="Table 1, Figure 4")
    axis.legend(frameon=False)
    figure.savefig(path, dpi=130)
    return True


def _once(label: str, number: int) -> str:
    return label if number == 0 else "_"


def _trade_offs(values: Values, table: str, groups: Sequence[str], path: Path) -> bool:
    """Draws AR-NLL over entropy for each setting that is varied, the paper's beside ours."""
    rows = {group: rows_of([f"{table}/{group}"]) for group in groups}
    ours = {group: list(_points(group_rows, values)) for group, group_rows in rows.items()}
    if not any(len(points) > 1 for points in ours.values()):
        return False
    paper = {
        group: [(r.paper["entropy"], r.paper["nll"]) for r in group_rows if r.paper]
        for group, group_rows in rows.items()
    }
    sides = {"paper": paper, "ours": ours} if any(paper.values()) else {"ours": ours}
    figure, axes = new_figure(1, len(sides), (6 * len(sides), 5))
    data = {"paper": ROWS["table1/data/data"].paper, "ours": _data(values)}
    for axis, (title, lines) in zip(axes, sides.items(), strict=True):
        _draw_lines(axis, lines, data[title])
        axis.set(title=title)
    figure.savefig(path, dpi=130)
    return True


def _data(values: Values) -> Mapping[str, float]:
    return values.get("table1/data/data", {}).get(0, {})


def _points(rows: Sequence[Row], values: Values) -> Iterator[tuple[float, float]]:
    for row in rows:
        entropy, nll = (summary(row, values, metric) for metric in ("entropy", "nll"))
        if entropy is not None and nll is not None:
            yield entropy["mean"], nll["mean"]


def _draw_lines(axis: "Axes", lines: Mapping[str, Points], data: Mapping[str, float]) -> None:
    for label, points in lines.items():
        axis.plot([x for x, _ in points], [y for _, y in points], linewidth=0.8)
        sizes = [12 + 8 * number for number in range(len(points))]
        axis.scatter([x for x, _ in points], [y for _, y in points], sizes, label=label)
    if data:
        axis.plot(data["entropy"], data["nll"], "x", color="black", markersize=9, label="data")
    axis.set(xlabel="unigram entropy (nats)", ylabel="AR-NLL (nats a token)")
    axis.legend(frameon=False, fontsize=8)


def _warps(record: Mapping[str, Any], plan: Plan) -> Iterator[Path]:
    """Draws Figure 2 and, for temperatures and uniformities, Figure 8."""
    config: RunConfig = plan.scale.base()
    warp = TimeWarp(config.warp, config.process)
    warp.load_state_dict({name: torch.tensor(value) for name, value in record["warp"].items()})
    losses = record["validation"]["losses"]
    plot_time_warping(warp, losses["t"], losses["loss"], plan.out / "figure2.png")
    yield plan.out / "figure2.png"
    settings = [("temperature", v) for v in (0.5, 1.0, 2.0, 5.0)]
    settings += [("uniformity", v) for v in (0.0, 0.1, 0.5, 1.0)]
    figure, axes = new_figure(2, 1, (7, 7))
    u = torch.linspace(0, 1, 500)
    for axis, (name, group) in zip(axes, groupby(settings, lambda pair: pair[0]), strict=True):
        for _, value in group:
            t = warp.schedule().adjusted(**{name: value}).noise_levels(u)
            axis.plot(t, u, label=f"{name} {value:g}")
        axis.set(xlabel="noise level t", ylabel="F(t)", xscale=config.warp.bins)
        axis.legend(frameon=False)
    figure.savefig(plan.out / "figure8.png", dpi=130)
    yield plan.out / "figure8.png"
