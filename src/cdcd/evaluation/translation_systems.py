"""Translators as systems of an evaluation: which rows each has, and how its translations are timed."""

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cdcd.config import BeamConfig, DecodingConfig, RunConfig
from cdcd.data.sentences import pack_sentences
from cdcd.files import read_json
from cdcd.inference.load import load_translator
from cdcd.inference.translator import Done, Samples, Translator
from cdcd.training.checkpoint import RunDirectory

Setting = dict[str, Any]
KINDS = {"diffusion": "cdcd", "autoregressive": "autoregressive"}
BASELINE = "baseline"


@dataclass(frozen=True)
class System:
    """A run that translates."""

    run: str
    name: str
    """What rows call it."""
    translator: Translator
    checkpoint: str
    """Step and checksum of its weights."""
    how: str = ""
    """Precision and compilation."""

    @property
    def config(self) -> RunConfig:
        return self.translator.config

    @property
    def hardware(self) -> str:
        if self.translator.device.type == "cuda":
            return torch.cuda.get_device_name(self.translator.device)
        processor = platform.processor() or platform.machine()
        return f"{processor} CPU, {torch.get_num_threads()} threads"


def load_system(
    run: Path,
    name: str,
    *,
    data: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    compile: str = "auto",
) -> System:
    """A run's last checkpoint; `data`: its pairs, where they have moved."""
    directory = RunDirectory(run)
    step = directory.existing_step()
    saved = read_json(directory.folder(step) / "checkpoint.json")["sha256"]["weights.safetensors"]
    translator = load_translator(run, device=device, dtype=dtype, compile=compile)
    if data is not None:
        config = translator.config
        translator.config = replace(config, data=replace(config.data, source=data))
    how = f"dtype {dtype}, compile {compile}"
    return System(str(run), name, translator, f"{step} {saved[:16]}", how)


def load_systems(runs: Sequence[Path], **options: Any) -> list[System]:
    """Several runs, each by a name of its own."""
    if len(set(runs)) < len(runs):
        raise ValueError("a run is given twice; give each once")
    loaded = [load_system(run, "", **options) for run in runs]
    kinds = [KINDS[each.config.model] for each in loaded]
    short = [run.resolve().name for run in runs]
    own = short if len(set(short)) == len(short) else [str(run) for run in runs]
    return [
        replace(each, name=kind if kinds.count(kind) == 1 else f"{kind} {name}")
        for each, kind, name in zip(loaded, kinds, own, strict=True)
    ]


@dataclass(frozen=True)
class Job:
    """A row to be made."""

    system: System
    changes: Setting
    """Of the system's own settings."""
    shown: Setting
    """What the report shows of them."""
    num_samples: int
    settings: Any
    """All of them."""

    @property
    def mode(self) -> str:
        """How an autoregressive translator finds a translation."""
        match self.settings:
            case BeamConfig():
                return "beam search"
            case DecodingConfig():
                return "greedy" if self.settings.temperature == 0 else "samples"
        return ""

    @property
    def label(self) -> str:
        return self.named(self.system.name)

    @property
    def kind(self) -> str:
        """The label without the run."""
        return self.named(KINDS[self.system.config.model])

    def named(self, name: str) -> str:
        return f"{name}: {self.mode}" if self.mode else name


def jobs_of(
    system: System, base: Setting, settings: Sequence[Setting], num_samples: int
) -> Iterator[Job]:
    """The rows of a system: each setting; of an autoregressive one also its usual ways.

    Several samples are drawn where they can differ.
    """
    if system.config.model == "diffusion":
        yield from (_job(system, base, changes, num_samples) for changes in settings)
        return
    usual: list[Setting] = [{}, {"temperature": 0.0}]
    for changes in [*usual, *filter(None, settings)]:
        one = _job(system, base, changes, 1)
        yield _job(system, base, changes, num_samples) if one.mode == "samples" else one
    if num_samples > 1:
        yield _job(system, base, {}, num_samples)


def _job(system: System, base: Setting, changes: Setting, num_samples: int) -> Job:
    settings = system.translator.settings({**base, **changes}, num_samples)
    shown = {name: getattr(settings, name) for name in changes}
    job = Job(system, {**base, **changes}, shown, num_samples, settings)
    if job.mode == "greedy":
        shown.pop("temperature", None)
    return job


# Translating


@dataclass(frozen=True)
class Drawn:
    """Translations of some texts."""

    samples: Samples
    per_second: float | None
    """Translations made each second."""
    is_warmed_up: bool
    num_too_long: int
    num_unread: int
    """Of these, how many have a sentence that is too long by itself."""


def draw_timed(
    translator: Translator,
    texts: Sequence[str],
    *,
    num_samples: int = 1,
    seed: int = 0,
    batch_size: int = 64,
    settings: Mapping[str, Any] | None = None,
    done: Done | None = None,
) -> Drawn:
    """Translate texts and measure the speed.

    The time leaves out the first batch, and a last one that is not full, where full ones are left:
    they stand for the start. A text that is too long is translated sentence by sentence; a sentence
    that is too long, by nothing.
    """
    room = translator.config.data.source_length

    def fits(text: str) -> bool:
        return translator.num_tokens(text) <= room

    sentences = [[text] if fits(text) else pack_sentences(text, fits) for text in texts]
    num_too_long = sum(not fits(text) for text in texts)
    num_unread = sum(not all(map(fits, each)) for each in sentences)
    parts = [[part if fits(part) else "" for part in each] for each in sentences]
    flat = [part for each in parts for part in each]
    untimed, timed = _warm_up([i for i, t in enumerate(flat) if t.strip()], num_samples, batch_size)
    found = [[""] * num_samples for _ in flat]
    sure = [[0.0] * num_samples for _ in flat]
    seconds = 0.0
    for chosen, before in ((untimed, 0), (timed, len(untimed))):
        if not chosen:
            continue
        started = time.perf_counter()
        drawn = translator.scored_samples(
            # Texts keep their numbers, and with them their noise; empty ones take no time.
            _only(flat, chosen),
            num_samples=num_samples,
            seed=seed,
            batch_size=batch_size,
            callback=_scaled(done, before, len(chosen), len(untimed) + len(timed)),
            **(settings or {}),
        )
        seconds = time.perf_counter() - started
        for i in chosen:
            found[i], sure[i] = drawn.texts[i], drawn.sureness[i]
    whole, by_piece = iter(found), iter(sure)
    samples = Samples(
        [_joined([next(whole) for _ in each], num_samples) for each in parts],
        [_mean([next(by_piece) for _ in each], num_samples) for each in parts],
    )
    speed = len(timed) * num_samples / seconds if timed else None
    return Drawn(samples, speed, bool(untimed), num_too_long, num_unread)


def _warm_up(numbers: list[int], num_samples: int, batch_size: int) -> tuple[list[int], list[int]]:
    """Texts that are translated before the time is taken, and the rest: full batches."""
    at_once = max(1, batch_size // num_samples)
    full = len(numbers) // at_once * at_once
    if full <= at_once:
        return [], numbers
    return numbers[:at_once] + numbers[full:], numbers[at_once:full]


def _only(texts: Sequence[str], chosen: Sequence[int]) -> list[str]:
    kept = set(chosen)
    return [text if i in kept else "" for i, text in enumerate(texts)]


def _scaled(done: Done | None, before: int, count: int, total: int) -> Done | None:
    if done is None:
        return None
    return lambda share: done((before + share * count) / max(total, 1))


def _joined(pieces: Sequence[Sequence[str]], num_samples: int) -> list[str]:
    return [" ".join(piece[j] for piece in pieces if piece[j]) for j in range(num_samples)]


def _mean(pieces: Sequence[Sequence[float]], num_samples: int) -> list[float]:
    return [sum(piece[j] for piece in pieces) / max(len(pieces), 1) for j in range(num_samples)]
