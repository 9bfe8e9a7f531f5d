"""Simplex diffusion beside Gaussian diffusion (App. B.3): `cdcd reproduce simplex`.

It writes the figure of the corruption, and trains small models of both processes at rising V. The finding
is judged as all others are, from the difference in AR-NLL, here the exact one, over training seeds.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from math import inf
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from cdcd.benchmarks.measure import environment
from cdcd.evaluation.held_out import described
from cdcd.evaluation.plots import BLUE, ORANGE, new_figure
from cdcd.files import read_json, write_json
from cdcd.reproduction.findings import averaged, judged
from cdcd.reproduction.simplex_models import (
    DIFFUSIONS,
    config_of,
    shuffled_excess,
    train_and_judge,
)
from cdcd.reproduction.simplex_noise import VOCABULARIES, draw_noise, measure_noise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CPU = torch.device("cpu")
SENTENCE = "Diffusion on the simplex suffers at a high number of tokens V."
Gaps = dict[int, list[float]]
Model = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Study:
    """The sizes of the study."""

    noise_vocabularies: tuple[int, ...] = VOCABULARIES
    vocabularies: tuple[int, ...] = (16, 64, 256)
    """Numbers of tokens of the languages that models are trained on."""
    seeds: int = 3
    steps: int = 30_000


@dataclass(frozen=True)
class Part:
    """One measurement of the study: its file's name, what it depends on, and how it is made."""

    name: str
    facts: dict[str, Any]
    measure: Callable[[torch.device], dict[str, Any]]

    def path(self, out: Path) -> Path:
        """Returns the file of its result."""
        return out / "simplex" / f"{self.name}.json"

    def result(self, out: Path) -> dict[str, Any] | None:
        """Returns its result if it is there; refuses that of another study."""
        path = self.path(out)
        if not path.is_file():
            return None
        result = read_json(path)
        for key, value in self.facts.items():
            if result[key] != value:
                raise ValueError(
                    f"{path} was measured with {key} {result[key]}, not {value}; choose another --out"
                )
        return result

    def perform(self, out: Path, device: torch.device) -> dict[str, Any]:
        """Measures and files its result."""
        started = time.perf_counter()
        result = self.facts | self.measure(device) | {"environment": environment(device)}
        result["seconds"] = time.perf_counter() - started
        self.path(out).parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path(out), result)
        return result


def parts_of(study: Study) -> list[Part]:
    """Returns the measurements of a study: the corruption, then the models."""
    sizes = study.noise_vocabularies
    noise = Part("noise", {"vocabularies": [*sizes]}, partial(_noise, sizes))
    return [noise] + [
        Part(
            f"{name}.V={vocab_size}.{seed}",
            {"process": name, "vocabulary": vocab_size, "seed": seed, "steps": study.steps},
            partial(_model, name, vocab_size, study.steps, seed),
        )
        for vocab_size in study.vocabularies
        for seed in range(study.seeds)
        for name in DIFFUSIONS
    ]


def perform_study(
    study: Study, out: Path, console: Console, *, device: torch.device = CPU, workers: int = 1
) -> list[Path]:
    """Measures what the folder does not have yet, and returns the files of the whole."""
    parts = parts_of(study)
    missing = [part for part in parts if part.result(out) is None]
    for name in _perform(missing, out, device, workers):
        console.print(f"{time.strftime('%H:%M:%S')} simplex {name} done", highlight=False)
    noise, *models = (read_json(part.path(out)) for part in parts)
    shuffled = {str(size): shuffled_excess(size) for size in study.vocabularies}
    content = {
        "study": asdict(study),
        "finding": finding(models, shuffled),
        "shuffled": shuffled,
        "noise": noise,
        "models": models,
    }
    write_json(out / "simplex.json", content)
    return [out / "simplex.json", *_draw(content, out)]


def _perform(parts: Sequence[Part], out: Path, device: torch.device, workers: int) -> Iterator[str]:
    """Performs parts one after another, or several side by side, and yields the name of each."""
    if workers == 1:
        for part in parts:
            part.perform(out, device)
            yield part.name
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(part.perform, out, device): part.name for part in parts}
        for future in as_completed(running):
            future.result()
            yield running[future]


def _noise(vocabularies: Sequence[int], _device: torch.device) -> dict[str, Any]:
    return {"curves": measure_noise(vocabularies)}


def _model(
    name: str, vocab_size: int, steps: int, seed: int, device: torch.device
) -> dict[str, Any]:
    config = described(config_of(name, vocab_size, steps, seed))
    return train_and_judge(name, vocab_size, steps, seed, device) | {"config": config}


def gaps(models: Sequence[Model]) -> Gaps:
    """Returns the NLL of the simplex model less that of the Gaussian one, by V and seed."""
    nll = {(each["process"], each["vocabulary"], each["seed"]): each["nll"] for each in models}
    result: Gaps = {}
    for process, vocab_size, seed in nll:
        if process == "simplex":
            gap = nll[process, vocab_size, seed] - nll["Gaussian", vocab_size, seed]
            result.setdefault(vocab_size, []).append(gap)
    return result


def finding(models: Sequence[Model], shuffled: Mapping[str, float]) -> dict[str, Any]:
    """Judges whether the simplex is behind at the highest V, and further than at the lowest.

    Models that have learnt nothing of the context differ in nothing that counts: the Gaussian ones must be
    nearer to the language than to its tokens in random order.
    """
    by_vocabulary = gaps(models)
    low, high = min(by_vocabulary), max(by_vocabulary)
    growth = [b - a for a, b in zip(by_vocabulary[low], by_vocabulary[high], strict=True)]
    contrasts = {
        f"NLL, simplex less Gaussian, at V = {high}": by_vocabulary[high],
        f"the same, V = {high} less V = {low}": growth,
    }
    claims = [{"contrast": name} | judged(each, (0.0, inf)) for name, each in contrasts.items()]
    verdicts = {claim["verdict"] for claim in claims}
    has_learnt = all(
        mean(excesses(models, "Gaussian", size, "nll")) < shuffled[str(size)] / 2
        for size in (low, high)
    )
    verdict = "undecided"
    if has_learnt and "fails" in verdicts:
        verdict = "not reproduced"
    elif has_learnt and verdicts == {"holds"}:
        verdict = "reproduced"
    facts = {"sentence": SENTENCE, "verdict": verdict, "has_learnt": has_learnt}
    return facts | {"claims": claims}


def excesses(models: Sequence[Model], process: str, vocab_size: int, metric: str) -> list[float]:
    """Returns what samples of some models have more of a metric than the language, by seed."""
    return [
        each[metric] - each[f"real_{metric}"]
        for each in models
        if (each["process"], each["vocabulary"]) == (process, vocab_size)
    ]


def _draw(content: dict[str, Any], out: Path) -> list[Path]:
    """Draws both figures; none without matplotlib."""
    if find_spec("matplotlib") is None:
        return []
    figures = {
        "simplex_noise.png": draw_noise(content["noise"]["curves"]),
        "simplex_models.png": draw_models(content["models"], content["shuffled"]),
    }
    for name, figure in figures.items():
        figure.savefig(out / name, dpi=110)
    return [out / name for name in figures]


def draw_models(models: Sequence[Model], shuffled: Mapping[str, float]) -> "Figure":
    """Draws what samples have more than the language, in NLL and in unigram entropy, against V."""
    figure, axes = new_figure(1, 2, (10, 4))
    sizes = [int(size) for size in shuffled]
    axes[0].plot(sizes, list(shuffled.values()), ":", color="black", label="the language, shuffled")
    for axis, metric in zip(axes, ("nll", "entropy"), strict=True):
        for name, colour in zip(DIFFUSIONS, (BLUE, ORANGE), strict=True):
            each = [averaged(excesses(models, name, size, metric)) for size in sizes]
            means = [value or 0.0 for value, _ in each]
            errors = [2 * (error or 0.0) for _, error in each]
            axis.errorbar(sizes, means, errors, color=colour, marker="o", capsize=3, label=name)
        axis.axhline(0, color="black", linewidth=0.6)
        axis.set(xscale="log", xlabel="number of tokens V")
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.minorticks_off()
        axis.legend(frameon=False)
    axes[0].set_ylabel("exact NLL less that of the language (nats a token)")
    axes[1].set_ylabel("unigram entropy less that of the language (nats)")
    return figure
