"""Tables of results beside the paper's, the verdicts on its findings, and the cost of what is planned."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from cdcd.config import RunConfig
from cdcd.files import write_atomically, write_json
from cdcd.metrics.intervals import mean_and_error
from cdcd.reproduction.findings import FINDINGS, Values
from cdcd.reproduction.plan import Plan
from cdcd.reproduction.rows import ROWS, Row, base_of
from cdcd.settings import override
from cdcd.training.build import build_model

METRICS = ("mauve", "nll", "entropy")
HEADINGS = {"mauve": "MAUVE", "nll": "AR-NLL", "entropy": "entropy"}
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
    seeds = {s: v for s, v in values.get(row.name, {}).items() if metric in v}
    if not seeds:
        return None
    each = [numbers[metric] for numbers in seeds.values()]
    if len(each) > 1:
        mean, error = mean_and_error(each)
        return {"mean": mean, "error": error, "over": "seeds", "values": each}
    error = next(iter(seeds.values())).get(f"{metric}_error")
    return {"mean": each[0], "error": error, "over": "samples", "values": each}


def difference(row: Row, values: Values, metric: str) -> dict[str, float | None] | None:
    """Returns the mean difference from the base row over the seeds that both have, with its error."""
    ours, base = values.get(row.name, {}), values.get(base_of(row.name), {})
    each = [
        ours[seed][metric] - base[seed][metric]
        for seed in sorted(ours)
        if seed in base and metric in ours[seed] and metric in base[seed]
    ]
    if not each:
        return None
    if len(each) == 1:
        return {"mean": each[0], "error": None}
    mean, error = mean_and_error(each)
    return {"mean": mean, "error": error}


def table(plan: Plan, name: str, values: Values) -> dict[str, Any]:
    """Returns a table as JSON."""
    return {
        "table": name,
        "protocol": plan.scale.protocol(plan.data),
        "rows": [
            {
                "row": row.name,
                "paper": row.paper,
                "paper_base": ROWS[base_of(row.name)].paper if base_of(row.name) else {},
                "ours": {m: summary(row, values, m) for m in (*METRICS, "repetition")},
                "difference": {m: difference(row, values, m) for m in METRICS},
                "states": [plan.state(r, seed) for r, seed in plan.results if r is row],
            }
            for row in plan.rows
            if row.table == name
        ],
    }


def as_markdown(content: Mapping[str, Any]) -> str:
    """Returns a table as markdown: paper, ours ± standard error, differences from the base row."""
    metrics = [m for m in METRICS if any(r["ours"][m] or m in r["paper"] for r in content["rows"])]
    heads = ["row"]
    for metric in metrics:
        head = HEADINGS[metric]
        heads += [f"{head}, paper", f"{head}, ours", f"{head} less base, paper", "ours"]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in content["rows"]:
        cells = [row["row"].split("/", 1)[1]]
        for metric in metrics:
            paper, ours = row["paper"].get(metric), row["ours"][metric]
            cells += [_number(paper, row["paper"].get(f"{metric}_error")), _mean(ours)]
            base = row["paper_base"].get(metric)
            apart = None if paper is None or base is None else paper - base
            cells += [_number(apart, None, "+"), _mean(row["difference"][metric], "+")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _mean(value: Mapping[str, Any] | None, sign: str = "") -> str:
    if value is None:
        return ""
    number = _number(value["mean"], value["error"], sign)
    return f"{number} ({len(value['values'])})" if "values" in value else number


def _number(value: float | None, error: float | None, sign: str = "") -> str:
    if value is None:
        return ""
    return f"{value:{sign}.3f}" if error is None else f"{value:{sign}.3f} ± {error:.3f}"


def verdicts(values: Values) -> list[dict[str, Any]]:
    """Returns every finding with its claims, the paper's differences and ours."""
    findings = []
    for finding in FINDINGS:
        claims = []
        for claim in finding.claims:
            verdict, mean, error = claim.verdict(values)
            seeds = len(claim.differences(values))
            ours = {"ours": mean, "error": error, "seeds": seeds, "verdict": verdict}
            claims.append(asdict(claim) | {"paper": claim.paper()} | ours)
        facts = {"finding": finding.name, "sentence": finding.sentence}
        findings.append(facts | {"verdict": finding.verdict(values), "claims": claims})
    return findings


def verdicts_as_markdown(findings: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table of the findings: what they say, the paper's differences, ours, the verdict."""
    lines = ["| finding | claim | paper | ours | verdict |", "| --- " * 5 + "|"]
    for finding in findings:
        lines.append(f"| {finding['sentence']} | | | | **{finding['verdict']}** |")
        for claim in finding["claims"]:
            sides = f"{claim['left']} {claim['relation']} {claim['right']}, {claim['metric']}"
            ours = _number(claim["ours"], claim["error"], "+")
            ours += f" ({claim['seeds']})" if ours else ""
            paper = _number(claim["paper"], None, "+")
            lines.append(f"| | `{sides}` | {paper} | {ours} | {claim['verdict']} |")
    return "\n".join(lines) + "\n"


def write(plan: Plan) -> list[Path]:
    """Writes tables and verdicts from everything that the folder has; returns the markdown files."""
    values, written = read_values(plan), []
    for name in dict.fromkeys(row.table for row in plan.rows):
        content = table(plan, name, values)
        write_json(plan.out / f"{name}.json", content)
        written.append(plan.out / f"{name}.md")
        write_atomically(written[-1], as_markdown(content).encode())
    findings = verdicts(values)
    write_json(plan.out / "verdicts.json", {"findings": findings})
    written.append(plan.out / "verdicts.md")
    write_atomically(written[-1], verdicts_as_markdown(findings).encode())
    return written


def costs(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yields the estimated cost of every training and of all samples from it, on one H200.

    Training has six operations for each parameter and token, and one more on average for
    self-conditioning; an evaluation in sampling has two.
    """
    for job in plan.jobs():
        config, parameters = job.config, num_parameters(job.config, plan.scale.vocab_size)
        if not job.rows:
            training = config.training
            flops = 7 * parameters * training.steps * training.batch_size * config.data.length
            cost = {"steps": training.steps, "gigabytes": _gigabytes(config, parameters)}
        else:
            flops, cost = 0, {"rows": len(job.rows)}
            for row, _ in job.rows:
                if row.system == "diffusion":
                    calls = override(config.sampling, row.sampling).num_evaluations
                    calls *= 1 + (float(row.sampling.get("guidance_scale", 1)) != 1)
                    flops += (
                        2 * parameters * plan.scale.samples_of(row) * config.data.length * calls
                    )
        yield {"job": job.name, "minutes": flops / H200_FLOPS / 60} | cost


def num_parameters(config: RunConfig, vocab_size: int) -> int:
    """Counts the parameters of a model."""
    with torch.device("meta"):
        return sum(p.numel() for p in build_model(config, vocab_size).parameters())


def _gigabytes(config: RunConfig, parameters: int) -> float:
    """Returns weights, gradients, moments, their average, and activations in bfloat16."""
    training, network = config.training, config.network
    tokens = training.batch_size // training.accumulate * config.data.length
    states = 4 * parameters * (4 + bool(training.average_decay))
    return (states + 34 * tokens * network.width * network.num_blocks) / 1e9
