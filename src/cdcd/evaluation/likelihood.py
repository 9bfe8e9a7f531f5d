"""Likelihoods of held-out text under runs, exact ones beside bounds; no sample is drawn for them.

Each kind of model has its methods (`METHODS`). Sequence i depends on (seed, i) alone, and nothing random
depends on the tokens that are predicted, so that every chain rule is that of a proper distribution.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from rich.console import Console
from torch import Tensor

from cdcd.config import MaskPredictConfig, RunConfig
from cdcd.data.vocabulary import EOS
from cdcd.diffusion.estimator import Estimate, Estimator
from cdcd.diffusion.likelihood import (
    Noise,
    chain_rule,
    diffusion_bound,
    left_to_right,
    random_order,
    stratified,
)
from cdcd.diffusion.logits import cross_entropies
from cdcd.diffusion.sampling import SamplingConfig
from cdcd.evaluation.exact import exact_log_probs
from cdcd.evaluation.held_out import (
    KnownDocuments,
    check_comparable,
    described,
    documents_of,
    held_out_sequences,
)
from cdcd.evaluation.judge import num_bytes
from cdcd.evaluation.likelihood_report import Likelihood, LikelihoodReport, LikelihoodRow
from cdcd.evaluation.sweep import tracked
from cdcd.evaluation.systems import System, load_systems
from cdcd.evaluation.texts import Protocol, Texts, held_out_texts
from cdcd.inference.decoding import draw_uniform
from cdcd.inference.load import load
from cdcd.inference.text_model import (
    AutoregressiveTextModel,
    DiffusionTextModel,
    MaskedTextModel,
)
from cdcd.seeding import generator_for
from cdcd.settings import Batch, Bounds, Repeats, Seed, Settings

UNIFORM_SHARE = 0.1
"""Share of the bound's noise levels that are drawn uniformly in the warp's coordinate: it limits the weights
where the warp expects nothing."""


@dataclass(frozen=True, kw_only=True)
class LikelihoodConfig(Settings):
    """The held-out text whose likelihood is measured, and the effort for the bound."""

    protocol: Protocol = "none"
    """Given prefix: `none`, `half` the sequence, or a `random` length from nothing to half."""
    sequences: Literal["layout", "documents"] = "layout"
    """Held-out sequences: in the run's own `layout`, or only `documents` that fill one, cropped to it."""
    split: str = "auto"
    """Held-out part of a prepared data set; `auto`: test where there is one, else valid."""
    num_samples: Annotated[int, Bounds(2, 1_000_000)] = 256
    """Held-out sequences."""
    seed: Seed = 0
    """Seed of the noise, of the random orders and of the choice of held-out text."""
    batch_size: Batch = 256
    """Sequences at a time."""
    num_levels: Repeats = 64
    """Noise levels at which the bound of each sequence is estimated."""
    self_conditioning: bool = True
    """Show the network its own first prediction at the same noise level, for a second call."""


@dataclass(frozen=True)
class Part:
    """Some of the held-out sequences."""

    texts: Texts
    """All that is not given counts as generated, padding too."""
    is_counted: Bool[Tensor, "batch seq"]
    """The tokens among them up to the end of the document."""
    rows: range
    """The numbers of the sequences, by which they are seeded."""

    def seeds(self, seed: int) -> list[tuple[int, ...]]:
        return [(seed, row) for row in self.rows]

    def on(
        self, device: torch.device
    ) -> tuple[Int[Tensor, "batch seq"], Bool[Tensor, "batch seq"]]:
        """Returns the tokens and where they are predicted, on a device."""
        return self.texts.tokens.to(device), self.texts.is_generated.to(device)


Order = Literal["left to right", "random order"]
ORDERS: tuple[Order, ...] = get_args(Order)
Nats = dict[str, Float[Tensor, " batch"]]
"""−ln p of each sequence as the sum of named parts."""


@dataclass(frozen=True)
class Method:
    """A way to the likelihood under a model of one kind."""

    name: str
    nats: Callable[[Any, Part, LikelihoodConfig], Nats]
    is_bound: bool = False
    needs_masks: bool = False
    """True where the model must have been trained with given tokens."""

    def is_for(self, run: RunConfig, protocol: str) -> bool:
        """Returns whether a model was trained for it."""
        needs_masks = self.needs_masks or protocol != "none"
        return run.model != "diffusion" or run.objective.masking != "none" or not needs_masks


def autoregressive_nats(
    model: AutoregressiveTextModel, part: Part, config: LikelihoodConfig
) -> Nats:
    """Returns the exact −ln p of the counted tokens; an autoregressive model predicts no padding."""
    tokens = part.texts.tokens.to(model.device)
    nll = cross_entropies(model.network(tokens), tokens).cpu()
    return {"tokens": (nll.double() * part.is_counted).sum(1)}


def chain_rule_nats(
    model: DiffusionTextModel, part: Part, config: LikelihoodConfig, *, order: Order
) -> Nats:
    """Returns the exact −ln p of the decoder that draws one token after another in this order."""
    draws = model.sampler.draw(part.seeds(config.seed))
    tokens, is_noisy = part.on(model.device)
    # Under these settings only noisy positions are predicted.
    estimator_for = partial(model.sampler.estimator, settings=MaskPredictConfig())
    ranks, (x, t) = ranks_in(order, is_noisy, draws.u), model.sampler.start(draws.noise)
    asked = {"self_conditioned": config.self_conditioning}
    return counted_nats(chain_rule(estimator_for, tokens, ranks, x, t, **asked), part, order)


def ranks_in(
    order: Order, is_noisy: Bool[Tensor, "batch seq"], u: Float[Tensor, "batch seq"]
) -> Int[Tensor, "batch seq"]:
    """Returns the rank of each noisy position in an order; `u` makes a random one."""
    return left_to_right(is_noisy) if order == "left to right" else random_order(is_noisy, u)


def counted_nats(nats: Float[Tensor, "batch seq"], part: Part, order: Order) -> Nats:
    """Returns the sum over the tokens that a decoder of this order draws.

    Left to right, padding after the end of the document is not reached; in a random order it is predicted
    with the rest.
    """
    counted = part.is_counted if order == "left to right" else part.texts.is_generated
    return {"tokens": (nats.cpu().double() * counted).sum(1)}


def bound_nats(model: DiffusionTextModel, part: Part, config: LikelihoodConfig) -> Nats:
    """Returns the diffusion bound on −ln p of all that is not given, padding included."""
    sampler, table = model.sampler, model.sampler.table
    tokens, is_noisy = part.on(table.device)
    generators = [generator_for(config.seed, "bound", row) for row in part.rows]
    offsets = torch.stack([torch.rand((), generator=each) for each in generators]).to(table)
    bound = diffusion_bound(
        sampler.estimator(tokens, is_noisy, SamplingConfig()),
        table,
        tokens,
        is_noisy,
        sampler.warp.schedule().adjusted(uniformity=UNIFORM_SHARE),
        stratified(config.num_levels, offsets),
        _noise(generators, (tokens.shape[1], table.shape[1]), table),
        self_conditioned=config.self_conditioning,
    )
    return {name: value.double().cpu() for name, value in vars(bound).items()}


def masked_nats(
    model: MaskedTextModel, part: Part, config: LikelihoodConfig, *, order: Order
) -> Nats:
    """Returns the exact −ln p of the decoder that unmasks one token after another in this order.

    In a random order its expectation is the bound of masked diffusion (`diffusion/masked.py`).
    """
    tokens, is_masked = part.on(model.device)
    u = draw_uniform(part.seeds(config.seed), tokens.shape[1]).to(model.device)
    nothing = torch.zeros(*tokens.shape, 1, device=model.device)

    def estimator_for(tokens: Tensor, is_masked: Tensor) -> Estimator:
        return lambda x, t, state: Estimate(model.network(tokens, is_masked), x, None)

    ranks, t = ranks_in(order, is_masked, u), nothing[:, 0, 0]
    return counted_nats(chain_rule(estimator_for, tokens, ranks, nothing, t), part, order)


def _noise(generators: Sequence[torch.Generator], shape: tuple[int, int], like: Tensor) -> Noise:
    """Yields noise of a batch, each row from its own generator."""
    while True:
        rows = [torch.randn(shape, generator=generator) for generator in generators]
        yield torch.stack(rows).to(like)


METHODS: Mapping[str, Sequence[Method]] = {
    "diffusion": [
        *(Method(name, partial(chain_rule_nats, order=name), needs_masks=True) for name in ORDERS),
        Method("diffusion bound", bound_nats, is_bound=True),
    ],
    "autoregressive": [Method("left to right", autoregressive_nats)],
    "masked": [Method(name, partial(masked_nats, order=name)) for name in ORDERS],
}
"""The methods of each kind of model, by `RunConfig.model`."""


class LikelihoodEvaluation:
    """Runs, a baseline and the held-out text whose likelihood they give."""

    def __init__(
        self,
        runs: Sequence[Path],
        config: LikelihoodConfig,
        *,
        baseline: Path | None = None,
        data: str | None = None,
        console: Console | None = None,
        **options: Any,
    ) -> None:
        self.config, self.console = config, console or Console()
        self.systems = load_systems(load, runs, baseline, data=data, **options)
        first = self.systems[0]
        for each in self.systems:
            check_comparable(each, first)
        self.run, self.tokenizer = first.config, first.model.tokenizer
        sequences = held_out_sequences(
            self.run,
            self.tokenizer,
            split=config.split,
            whole_documents=config.sequences == "documents",
        )
        known = KnownDocuments(documents_of(self.run, config.split), [])
        self.trained_on = {
            each.run: known.shared_with(each.run, each.config).held_out for each in self.systems
        }
        texts = held_out_texts(sequences, config.num_samples, config.protocol, seed=config.seed)
        # A document that ends in what is given leaves nothing to predict.
        self.texts = texts.where(texts.counted(self.run.data.layout).is_generated.any(1))
        if len(self.texts) < 2:
            raise ValueError("the held-out text leaves nothing to predict after what is given")
        self.counted = self.texts.counted(self.run.data.layout)
        self.num_bytes = torch.tensor(num_bytes(self.counted, self.tokenizer))

    def report(self) -> LikelihoodReport:
        """Measures every system by every method of its kind."""
        jobs = [
            (system, method)
            for system in self.systems
            for method in METHODS[system.config.model]
            if method.is_for(system.config, self.config.protocol)
        ]
        if not jobs:
            raise ValueError(
                "these models were trained without masks and cannot be given a prefix: choose "
                "--protocol none"
            )
        rows: dict[tuple[str, str], LikelihoodRow] = {}
        for row in self._language():
            rows[row.system, row.method] = row
        for (system, method), done in tracked(jobs, self.console, "likelihood"):
            new = LikelihoodRow(system.kind, method.name, method.is_bound, [])
            row = rows.setdefault((system.kind, method.name), new)
            row.measured.append(self._measured(system.run, self._nats(system, method, done)))
        return LikelihoodReport(list(rows.values()), self._protocol())

    @torch.no_grad()
    def _nats(self, system: System, method: Method, done: Callable[[float], None]) -> Nats:
        parts = []
        for part in self._parts():
            parts.append(method.nats(system.model, part, self.config))
            done(part.rows.stop / len(self.texts))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _parts(self) -> Iterator[Part]:
        size = self.config.batch_size
        batches = zip(self.texts.split(size), self.counted.split(size), strict=True)
        for number, (texts, counted) in enumerate(batches):
            rows = range(number * size, number * size + len(texts))
            yield Part(texts, counted.is_generated, rows)

    def _measured(self, run: str, nats: Nats) -> Likelihood:
        tokens = self.counted.is_generated.sum(1)
        return Likelihood.of(run, nats, tokens, self.num_bytes, seed=self.config.seed)

    def _language(self) -> Iterator[LikelihoodRow]:
        """Yields the row of a built-in language itself, whose likelihood is known for whole sequences."""
        if self.config.protocol != "none":
            return
        log_probs = exact_log_probs(self.counted, self.run.data, self.tokenizer)
        if log_probs is None or any(each is None for each in log_probs):
            return
        nats = {"tokens": -torch.tensor(log_probs, dtype=torch.double)}
        yield LikelihoodRow("the language", "exact", False, [self._measured("", nats)])

    def _protocol(self) -> dict[str, Any]:
        return asdict(self.config) | {
            "num_samples": len(self.texts),
            "length": self.texts.tokens.shape[1],
            "num_tokens": int(self.counted.is_generated.sum()),
            "num_bytes": int(self.num_bytes.sum()),
            "num_ends": int((self.counted.tokens == EOS)[self.counted.is_generated].sum()),
            "held_out_documents_trained_on": self.trained_on,
            "checkpoints": {each.run: each.checkpoint for each in self.systems},
            "runs": {each.run: described(each.model.config) for each in self.systems},
        }
