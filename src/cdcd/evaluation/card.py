"""The card of a packed model: README.md with the hub's metadata, from its run, facts and reports.

A run knows its settings and its training. What it cannot know comes as facts from a TOML file: a summary,
the licence, the data, the commands, the limits. Numbers come from the reports of `cdcd evaluate` alone.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from cdcd.files import JSON_LIMIT, read_bounded, read_json
from cdcd.inference.load import load
from cdcd.inference.text_model import TextModel
from cdcd.metrics.intervals import share_interval
from cdcd.settings import unknown
from cdcd.training.build import build_model
from cdcd.training.logging import read_metrics
from cdcd.training.packed_model import PACKED, PackedModel, num_bytes

NOT_STATED = "Not stated."


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Statements about a model that its run does not know."""

    summary: str = "A model trained with cdcd."
    """One sentence."""
    licence: str = "unknown"
    """The licence of the weights, by its SPDX identifier."""
    languages: tuple[str, ...] = ()
    """Tags of the languages of the text."""
    data: str = NOT_STATED
    """The data, where it comes from, its licence."""
    training: str = NOT_STATED
    """The command that trains it."""
    machine: str = NOT_STATED
    """The machine it was trained on, and the minutes."""
    evaluation: str = NOT_STATED
    """The command that measures it again."""
    limits: str = NOT_STATED
    """Things that it cannot do, and uses that it must not be put to."""
    example: str = ""
    """A command to try."""
    prompts: tuple[str, ...] = ("",)
    """Beginnings, or texts with gaps, or sentences to translate, of which the card shows samples."""

    @property
    def about(self) -> dict[str, str]:
        """The texts that lists of models show."""
        return {"summary": self.summary, "licence": self.licence, "example": self.example}


def read_facts(path: Path, name: str) -> Facts:
    """Returns the facts of a model: the table of its name in a TOML file.

    A baseline is called after its model, such as `chess-masked`, and has no table of its own.
    """
    try:
        tables = tomllib.loads(read_bounded(path, JSON_LIMIT).decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not TOML in UTF-8 ({error})") from None
    own = name if name in tables else re.sub("-(autoregressive|masked)$", "", name)
    if not isinstance(tables.get(own), dict):
        raise unknown(f"model in {path}:", name, tables)
    facts: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in tables[own].items()
    }
    kinds = {field.name: type(field.default) for field in fields(Facts)}
    for key, value in facts.items():
        if key not in kinds:
            raise unknown(f"fact of {name} in {path}:", key, kinds)
        texts = value if isinstance(value, tuple) else (value,)
        if type(value) is not kinds[key] or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{path}: {key} of {name} must be text, or a list of texts")
    if own == name:
        return Facts(**facts)
    kind = name.removeprefix(f"{own}-")
    stated = Facts(**facts)
    summary = f"The {kind} model of the size and data of {own}, to compare with: {stated.summary}"
    # Its samples have no prompts with gaps, and the example is of the other model.
    return replace(stated, summary=summary, example="", prompts=("",))


def write_card(
    model: PackedModel,
    facts: Facts,
    reports: Sequence[Path] = (),
    *,
    metrics: Path | None = None,
    device: str = "auto",
) -> None:
    """Writes README.md into a packed model; `metrics` is the log of the run that it was made of."""
    measured = [_read_report(path) for path in reports]
    parts = [
        _metadata(model, facts),
        f"# {model.path.name}",
        facts.summary,
        _use(model, facts),
        f"## Data and licence\n\n{facts.data}\n\nLicence of the weights: {facts.licence}.",
        _training(model, facts, read_metrics(metrics) if metrics else []),
        "## Evaluation\n\n" + "\n\n".join(_evaluation(measured, facts)),
        "## Samples\n\n" + _samples(model, facts.prompts, device),
        f"## Limits\n\n{facts.limits}",
        _files(model),
    ]
    (model.path / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


# Parts


def _metadata(model: PackedModel, facts: Facts) -> str:
    """Returns the metadata that the hub reads, in YAML; texts as in JSON, which YAML contains."""
    config = model.config
    tags = ["cdcd", config.model, config.task]
    tags += ["diffusion"] if config.model == "masked" else []
    pipeline = "translation" if config.task == "translation" else "text-generation"
    fields: dict[str, Any] = {
        "license": facts.licence.lower(),
        "library_name": "cdcd",
        "pipeline_tag": pipeline,
        "language": list(facts.languages),
        "tags": list(dict.fromkeys(tags)),
    }
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items() if value]
    return "\n".join(["---", *lines, "---"])


def _use(model: PackedModel, facts: Facts) -> str:
    name = model.path.name
    function = "load_translator" if model.config.task == "translation" else "load"
    example = facts.example or f"cdcd info {name}"
    return (
        f"## Use\n\n```bash\n{example}\n```\n\n"
        f'In Python: `cdcd.{function}("{name}")`. `cdcd info {name}` shows all settings.'
    )


def _training(model: PackedModel, facts: Facts, metrics: Sequence[Mapping[str, Any]]) -> str:
    config = model.config
    training = config.training
    length = config.data.length
    with torch.device("meta"):
        network = build_model(config, model.vocab_size)
    size = sum(parameter.numel() for parameter in network.parameters())
    lines = [
        f"- Command: `{facts.training}`",
        f"- Machine: {facts.machine}",
        f"- {size:,} parameters, {model.vocab_size:,} tokens in the vocabulary, sequences of {length}",
        f"- {model.steps()[0]:,} steps of {training.batch_size:,} sequences, seed {training.seed}",
    ]
    speeds = sorted(row["tokens_per_second"] for row in metrics if "tokens_per_second" in row)
    if speeds:
        lines.append(f"- Speed in training: {speeds[len(speeds) // 2]:,.0f} tokens a second")
    losses = [row["valid_loss"] for row in metrics if "valid_loss" in row]
    if losses:
        lines.append(f"- Last validation loss: {losses[-1]:.4f} nats a token")
    return "## Training\n\n" + "\n".join(lines)


def _samples(model: PackedModel, prompts: Sequence[str], device: str) -> str:
    """Returns samples of each prompt: the first ones of seed 0, so that none is chosen."""
    if model.config.task == "translation":
        from cdcd.inference.load import load_translator

        translator = load_translator(model.path, device=device)
        given = [prompt for prompt in prompts if prompt]
        rows = zip(given, translator.translate(given, seed=0), strict=True)
        lines = "\n".join(f"{source}\n    → {target}" for source, target in rows)
        return f"Seed 0, not chosen:\n\n```text\n{lines}\n```"
    text_model = load(model.path, device=device)
    blocks = [_sampled(text_model, prompt) for prompt in prompts]
    return "The first samples of seed 0, not chosen:\n\n" + "\n\n".join(blocks)


def _sampled(model: TextModel, prompt: str) -> str:
    has_gap = "[" in prompt
    canvas = model.infill_canvas(prompt) if has_gap else model.prompt_canvas(prompt)
    texts = [" ".join(each.text.split()) for each in model.generate(canvas, num_samples=3, seed=0)]
    given = f"`{prompt}`" if prompt else "Without a prompt"
    return f"{given}:\n\n```text\n" + "\n".join(texts) + "\n```"


def _files(model: PackedModel) -> str:
    return (
        f"## Files\n\n{num_bytes(model.path) / 1e6:.1f} MB, weights in {model.described()['weights']}. "
        f"SHA-256 of {PACKED}:\n\n`{model.weights_hash}`"
    )


# Numbers


def _evaluation(reports: Sequence[Mapping[str, Any]], facts: Facts) -> Iterator[str]:
    if not reports:
        yield "Not measured yet."
    for report in reports:
        settings = list(dict.fromkeys(n for row in report["rows"] for n in _shown_settings(row)))
        cells = [_cells(row) for row in report["rows"]]
        names = list(dict.fromkeys(name for row in cells for name in row))
        names = [name for name in names if any(name in row for row in cells)]
        if len(reports) > 1:
            yield f"### {report['title']}"
        lines = ["| system | " + " | ".join([*settings, *names]) + " |"]
        lines.append("| --- " * (1 + len(settings) + len(names)) + "|")
        for row, columns in zip(report["rows"], cells, strict=True):
            chosen = [str(_shown_settings(row).get(name, "–")) for name in settings]
            values = [columns.get(name, "–") for name in names]
            lines.append(f"| {row['system']} | " + " | ".join([*chosen, *values]) + " |")
        yield "\n".join(lines)
        yield f"{_protocol(report)} The numbers in brackets are 95% intervals."
    if facts.evaluation != NOT_STATED:
        yield f"Measured by:\n\n```bash\n{facts.evaluation.strip()}\n```"


def _protocol(report: Mapping[str, Any]) -> str:
    protocol, environment = report.get("protocol", {}), report.get("environment", {})
    judge = report.get("judge", {}).get("name") or protocol.get("category")
    parts = [f"Judge: {Path(judge).name}"] if judge else []
    parts += [str(protocol[name]) for name in ("prefix", "test_set") if protocol.get(name)]
    parts += [f"seed {protocol.get('seed', 0)}", f"cdcd {environment.get('cdcd')}"]
    line = "; ".join([*parts, str(environment.get("device"))])
    return f"{line[0].upper()}{line[1:]}."


def _read_report(path: Path) -> dict[str, Any]:
    """Returns a report with rows and a title: the name of its folder.

    The description of a corpus whose probability is known (stories.json) has one row, its entropy.
    """
    report = read_json(path)
    entropy = report.get("entropy")
    if "rows" not in report and isinstance(entropy, dict):
        known = ("nats_per_story", "tokens_per_story", "bits_per_byte")
        measures = {name: entropy[name] for name in known if name in entropy}
        report["rows"] = [{"system": "the language itself, exactly", "measures": measures}]
    if not isinstance(report.get("rows"), list):
        raise ValueError(f"{path} is no report of cdcd evaluate: it has no rows")
    title = path.resolve().parent.name.replace("-", " ").replace("_", " ")
    return {"title": title.capitalize(), **report}


def _shown_settings(row: Mapping[str, Any]) -> dict[str, Any]:
    method = {"method": row["method"]} if row.get("method") else {}
    settings = method | row.get("settings", {})
    return {name: value for name, value in settings.items() if value is not None}


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Returns the measures of a row of any report, by their names."""
    if "measures" in row:
        measures = row["measures"]
    elif "scores" in row:
        measures = dict(row["scores"])
        if exact := row.get("exact"):
            right = share_interval(exact["num_right"], exact["num_sentences"])
            measures["right"] = asdict(right)
    else:
        measures = dict(row.get("measured", [{}])[0])
        measures |= {"mauve": row.get("mean", {}).get("mauve")}
    names: dict[str, str] = {"nll": "AR-NLL", "bleu": "BLEU", "chrf": "chrF", "mauve": "MAUVE"}
    return {
        names.get(name) or str(name).replace("_", " "): _interval(value)
        for name, value in measures.items()
        if isinstance(value, dict) and isinstance(value.get("value"), int | float)
    }


def _interval(value: Mapping[str, Any]) -> str:
    text = f"{value['value']:.4g}"
    if "low" in value:
        text += f" [{value['low']:.4g}, {value['high']:.4g}]"
    return text
