"""Tables of results beside the paper's, the verdicts on its findings, and the cost of what is planned."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from cdcd.config import RunConfig
from cdcd.files import write_atomically, write_json
from cdcd.reproduction import samples
from cdcd.reproduction.findings import (
    FINDINGS,
    PAPER,
    Claim,
    Finding,
    Values,
    at_equal_entropy,
    averaged,
)
from cdcd.reproduction.plan import LACKING, Plan
from cdcd.reproduction.rows import ROWS, Row, base_of
from cdcd.reproduction.scales import Scale
from cdcd.settings import override
from cdcd.training.build import build_model

HEADINGS = {"mauve": "MAUVE", "nll": "AR-NLL", "entropy": "entropy", "bleu": "BLEU"}
DIGITS = {"bleu": 2}
"""Decimals of a metric, where they are not 3."""
H200_FLOPS = 3e14
"""Operations a second that training at the small scale reaches on one H200, for estimates."""


def read_values(plan: Plan) -> Values:
    """Returns all numbers that a plan's folder has, by row and training seed."""
    values: dict[str, dict[int, dict[str, float]]] = {}
    for row, seed in plan.results:
        result = plan.result(row, seed)
        if result is not None and "error" not in result:
            numbers = {name: v for name, v in result.items() if isinstance(v, float)}
            values.setdefault(row.name, {})[seed] = numbers
    return values


def summary(row: Row, values: Values, metric: str) -> dict[str, Any] | None:
    """Returns a metric's mean over the seeds and its error: over samples where there is one seed."""
    seeds = [numbers for numbers in values.get(row.name, {}).values() if metric in numbers]
    if not seeds:
        return None
    each = [numbers[metric] for numbers in seeds]
    mean, error = averaged(each)
    if len(each) == 1:
        error = seeds[0].get(f"{metric}_error")
    over = "samples" if len(each) == 1 else "seeds"
    return {"mean": mean, "error": error, "over": over, "values": each}


Average = dict[str, float | None]


def difference(row: Row, values: Values, metric: str) -> Average | None:
    """Returns the mean difference from the base row over the seeds that both have, with its error."""
    base = base_of(row.name)
    return _average(Claim(row.name, "~", base, metric).differences(values) if base else [])


def equal_entropy(row: Row, values: Values) -> Average | None:
    """Returns the mean difference from the base model at the row's entropy; of Tables 1 and 2."""
    has_one = row.table in ("table1", "table2", "appendix") and row.system == "diffusion"
    return _average(at_equal_entropy(row.name, values) if has_one else [])


def _average(each: Sequence[float]) -> Average | None:
    mean, error = averaged(each)
    return {"mean": mean, "error": error} if each else None


def table(plan: Plan, name: str, values: Values) -> dict[str, Any]:
    """Returns a table as JSON."""
    return {
        "table": name,
        "protocol": plan.scale.protocol(plan.corpora),
        "rows": [
            {
                "row": row.name,
                "paper": row.paper,
                "paper_base": ROWS[base_of(row.name)].paper if base_of(row.name) else {},
                "ours": {m: summary(row, values, m) for m in (*HEADINGS, "repetition")},
                "difference": {m: difference(row, values, m) for m in HEADINGS},
                "equal_entropy": equal_entropy(row, values),
                "paper_equal_entropy": equal_entropy(row, PAPER),
                "states": plan.states(row),
            }
            for row in plan.rows
            if row.table == name
        ],
    }


def as_markdown(content: Mapping[str, Any]) -> str:
    """Returns a table as markdown: paper, ours ± standard error, differences from the base row."""
    rows = content["rows"]
    metrics = [m for m in HEADINGS if any(row["ours"][m] or m in row["paper"] for row in rows)]
    lines = [["row"]]
    for metric in metrics:
        head = HEADINGS[metric]
        lines[0] += [f"{head}, paper", f"{head}, ours", f"{head} less base, paper", "ours"]
    has_frontier = any(row["equal_entropy"] for row in rows)
    if has_frontier:
        lines[0] += ["AR-NLL less base at equal entropy, paper", "ours"]
    for row in rows:
        cells = [row["row"].split("/", 1)[1]]
        for metric in metrics:
            paper, base = row["paper"].get(metric), row["paper_base"].get(metric)
            digits = DIGITS.get(metric, 3)
            apart = None if paper is None or base is None else paper - base
            cells += [
                _number(paper, row["paper"].get(f"{metric}_error"), digits=digits) or "-",
                LACKING if LACKING in row["states"] else _mean(row["ours"][metric], digits=digits),
                _number(apart, None, "+", digits) or "-",
                _mean(row["difference"][metric], "+", digits),
            ]
        if has_frontier:
            cells += [_mean(row[key], "+") for key in ("paper_equal_entropy", "equal_entropy")]
        lines.append(cells)
    return _markdown(lines)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(cells)} |" for cells in (lines[0], ["---"] * len(lines[0]), *lines[1:])]
    return "\n".join(rows) + "\n"


def _mean(value: Mapping[str, Any] | None, sign: str = "", digits: int = 3) -> str:
    if value is None:
        return ""
    number = _number(value["mean"], value["error"], sign, digits)
    return f"{number} ({len(value['values'])})" if "values" in value else number


def _number(value: float | None, error: float | None, sign: str = "", digits: int = 3) -> str:
    if value is None:
        return ""
    number = f"{value:{sign}.{digits}f}"
    return number if error is None else f"{number} ± {error:.{digits}f}"


def verdicts(values: Values, scale: Scale) -> list[dict[str, Any]]:
    """Returns every finding with its claims, the paper's differences and ours.

    Claims about rows that the scale lacks decide nothing.
    """
    return [
        {
            "finding": finding.name,
            "sentence": finding.sentence,
            "verdict": _verdict(finding, values, scale),
            "claims": [_judged(claim, values, scale) for claim in finding.claims],
        }
        for finding in FINDINGS
    ]


def _is_present(claim: Claim, scale: Scale) -> bool:
    return all(scale.has(ROWS[name]) for name in claim.rows())


def _verdict(finding: Finding, values: Values, scale: Scale) -> str:
    present = [claim for claim in finding.claims if _is_present(claim, scale)]
    return replace(finding, claims=present).verdict(values) if present else LACKING


def _judged(claim: Claim, values: Values, scale: Scale) -> dict[str, Any]:
    result = claim.result(values)
    if not _is_present(claim, scale):
        result["verdict"] = LACKING
    return asdict(claim) | {"paper": claim.result(PAPER)["ours"]} | result


def verdicts_as_markdown(findings: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table of the findings: what they say, the paper's differences, ours, the verdict."""
    lines = [["finding", "claim", "paper", "ours", "verdict"]]
    for finding in findings:
        lines.append([finding["sentence"], "", "", "", f"**{finding['verdict']}**"])
        for claim in finding["claims"]:
            sides = f"`{claim['left']} {claim['relation']} {claim['right']}, {claim['metric']}`"
            ours = _number(claim["ours"], claim["error"], "+")
            ours += f" ({claim['seeds']})" if ours else ""
            lines.append(["", sides, _number(claim["paper"], None, "+"), ours, claim["verdict"]])
    return _markdown(lines)


def write(plan: Plan) -> list[Path]:
    """Writes tables and verdicts from everything that the folder has; returns the markdown files."""
    values = read_values(plan)
    findings = verdicts(values, plan.scale)
    tables = [table(plan, name, values) for name in dict.fromkeys(row.table for row in plan.rows)]
    texts = {"verdicts": verdicts_as_markdown(findings)}
    for content in tables:
        texts[content["table"]] = as_markdown(content)
        write_json(plan.out / f"{content['table']}.json", content)
    write_json(plan.out / "verdicts.json", {"findings": findings})
    if results := _samples(plan):
        texts["figure7"] = samples.as_markdown(results)
        write_atomically(plan.out / "figure7.txt", samples.as_text(results).encode())
    for name, text in texts.items():
        write_atomically(plan.out / f"{name}.md", text.encode())
    return [plan.out / f"{name}.md" for name in texts]


def _samples(plan: Plan) -> dict[str, dict[str, Any]]:
    """Returns the results of Figure 7 that are there, by the kind of their samples."""
    rows = (row for row in plan.rows if row.table == "figure7")
    results = {row.name.rpartition("/")[2]: plan.result(row, 0) for row in rows}
    return {kind: each for kind, each in results.items() if each and "error" not in each}


def costs(plan: Plan) -> Iterator[tuple[float, str]]:
    """Yields the estimated minutes of every training and of all samples from it, on one H200, and its name.

    Training has six operations for each parameter and token, and one more on average for
    self-conditioning; an evaluation in sampling has two.
    """
    for job in plan.jobs():
        config, training = job.config, job.config.training
        parameters = num_parameters(config, plan.scale.vocab_size_of(config))
        if job.rows:
            about = f"{len(job.rows)} rows"
            calls = sum(plan.scale.samples_of(row) * _calls(config, row) for row, _ in job.rows)
            flops = 2 * parameters * config.data.length * calls
        else:
            about = f"{training.steps:,} steps, about {_gigabytes(config, parameters):.1f} GB"
            flops = 7 * parameters * training.steps * training.batch_size * config.data.length
        yield flops / H200_FLOPS / 60, f"{job.name}: {about}"


def _calls(config: RunConfig, row: Row) -> int:
    """Counts the network calls for a sample, which cost little where no diffusion model draws it."""
    if row.system != "diffusion":
        return 0
    changes = row.sampling
    num_samples = int(changes.pop("num_samples", 1))
    if changes.pop("decoder", config.decoder) == "mask-predict":
        return num_samples * override(config.mask_predict, changes).num_rounds
    sampling = override(config.sampling, changes)
    return num_samples * sampling.num_evaluations * (1 + (sampling.guidance_scale != 1))


def num_parameters(config: RunConfig, vocab_size: int) -> int:
    """Counts the parameters of a model."""
    with torch.device("meta"):
        return sum(p.numel() for p in build_model(config, vocab_size).parameters())


def _gigabytes(config: RunConfig, parameters: int) -> float:
    """Returns weights, gradients, moments, their average, and activations in bfloat16."""
    training, network = config.training, config.network
    width, num_blocks = network.width, network.num_blocks
    if config.task == "translation":
        width = config.seq2seq.width
        num_blocks = config.seq2seq.num_encoder_blocks + config.seq2seq.num_decoder_blocks
    tokens = training.batch_size // training.accumulate * config.data.length
    states = 4 * parameters * (4 + bool(training.average_decay))
    return (states + 34 * tokens * width * num_blocks) / 1e9
