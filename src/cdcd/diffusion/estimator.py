"""Estimators predict the clean tokens at each step of the sampler.

An estimator has its conditioning bound and maps (x, t, state) to an `Estimate`. The state carries the
self-conditioning input from one call to the next and is None at the start. Guidance and the
replacement method are estimators that wrap estimators; an exact oracle is one too.

Two estimators are equal only if they are the same one (`eq=False`): comparing their tensors has no use,
and torch.compile cannot call an object whose hash is made from its fields.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from cdcd.diffusion.embedding import Projection
from cdcd.diffusion.interpolation import expected_embedding
from cdcd.diffusion.logits import noisy_positions, put
from cdcd.diffusion.process import scale_input


@dataclass(frozen=True)
class Estimate:
    """A prediction: logits over tokens, the embedding estimate they imply, and the state to pass on.

    Logits are in the network's precision.
    """

    logits: Float[Tensor, "batch seq vocab"]
    x0_hat: Float[Tensor, "batch seq embed"]
    state: Any


@runtime_checkable
class Estimator(Protocol):
    """Predicts the clean sequence from a noisy one."""

    def __call__(
        self, x: Float[Tensor, "batch seq embed"], t: Float[Tensor, " batch"], state: Any
    ) -> Estimate: ...


EstimatorFor = Callable[[Int[Tensor, "batch seq"], Bool[Tensor, "batch seq"]], Estimator]
"""Returns the estimator that is given these tokens, but for the noisy ones."""


@runtime_checkable
class Network(Protocol):
    """A denoising network: the stacked input sequences of §4.1 and §4.3 to logits at all positions.

    Ours take two more keywords: `positions` of the flattened batch, to predict these alone ([predicted
    vocab]), and, in translation, a `condition`. They are given only where draws or callers have them.
    """

    def __call__(
        self,
        x: Float[Tensor, "batch seq embed"],
        t: Float[Tensor, " batch"],
        *,
        c: Float[Tensor, "batch seq embed"],
        x0_prev: Float[Tensor, "batch seq embed"],
        is_noisy: Bool[Tensor, "batch seq"],
    ) -> Float[Tensor, "*positions vocab"]: ...


@runtime_checkable
class Condition(Protocol):
    """An input of a network besides the sequence, row by row: an encoded source sentence."""

    def rows(self, rows: Int[Tensor, " chosen"]) -> "Condition":
        """Returns the condition of some rows."""
        ...


@dataclass(frozen=True, eq=False)
class Inputs:
    """Noisy sequences with their conditioning, not yet scaled and masked."""

    x: Float[Tensor, "batch seq embed"]
    t: Float[Tensor, " batch"]
    given: Float[Tensor, "batch seq embed"]
    """Embeddings of the clean tokens; those at noisy positions are not read."""
    _: KW_ONLY
    is_noisy: Bool[Tensor, "batch seq"]
    is_dropped: Bool[Tensor, " batch"] | None = None
    """Rows whose given tokens are hidden."""
    condition: Condition | None = None

    def rows(self, rows: Int[Tensor, " chosen"]) -> "Inputs":
        """Returns the inputs of some rows."""
        return Inputs(
            self.x[rows],
            self.t[rows],
            self.given[rows],
            is_noisy=self.is_noisy[rows],
            is_dropped=None if self.is_dropped is None else self.is_dropped[rows],
            condition=None if self.condition is None else self.condition.rows(rows),
        )


def predict_logits(
    network: Network,
    inputs: Inputs,
    *,
    x0_prev: Float[Tensor, "batch seq embed"] | None,
    positions: Int[Tensor, " predicted"] | None,
) -> Float[Tensor, "predicted vocab"]:
    """Calls the network on inputs stacked as in §4.1: the one place where they are scaled and masked.

    `x` and `x0_prev` are zero at given positions, `given` at noisy ones, where it would leak the
    answer, and everywhere in rows with dropped conditioning. Only `x` is scaled. The logits are of
    some positions of the flattened batch, or of all.
    """
    x, t, noisy = inputs.x, inputs.t, inputs.is_noisy[..., None]
    c = inputs.given.masked_fill(noisy, 0.0)
    if inputs.is_dropped is not None:
        c = c.masked_fill(inputs.is_dropped[:, None, None], 0.0)
    x0_prev = torch.zeros_like(x) if x0_prev is None else x0_prev.masked_fill(~noisy, 0.0)
    x = scale_input(x, t).masked_fill(~noisy, 0.0)
    optional = {"positions": positions, "condition": inputs.condition}
    optional = {name: value for name, value in optional.items() if value is not None}
    logits = network(x, t, c=c, x0_prev=x0_prev, is_noisy=inputs.is_noisy, **optional)
    return logits.flatten(0, -2)


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkEstimator:
    """A trained network with its conditioning: the given tokens, and the mask of the others."""

    network: Network
    table: Float[Tensor, "vocab embed"]
    tokens: Int[Tensor, "batch seq"]
    is_noisy: Bool[Tensor, "batch seq"]
    self_conditioning: bool = True
    """Feed the last prediction back."""
    is_dropped: Bool[Tensor, " batch"] | None = None
    """Rows whose given tokens are hidden: the unconditional branch of guidance."""
    softmax_temperature: float = 1.0
    nucleus: float = 1.0
    trained: Projection = field(default_factory=Projection)
    """The projection of the network's own last prediction, as in training (§3.2)."""
    projection: Projection = field(default_factory=Projection)
    """The projection of x0_hat in sampling."""
    only_noisy: bool = False
    """Compute the logits of noisy positions alone, which changes shapes from call to call; others are zero."""
    condition: Condition | None = None
    """Source sentences, for a network that takes them."""

    def __call__(
        self, x: Float[Tensor, "batch seq embed"], t: Float[Tensor, " batch"], state: Tensor | None
    ) -> Estimate:
        given = F.embedding(self.tokens, self.table)
        positions = None
        if self.only_noisy:
            positions = noisy_positions(self.is_noisy, int(self.is_noisy.sum()))
        inputs = Inputs(
            x,
            t,
            given,
            is_noisy=self.is_noisy,
            is_dropped=self.is_dropped,
            condition=self.condition,
        )
        logits = predict_logits(self.network, inputs, x0_prev=state, positions=positions)
        plain = self.trained(expected_embedding(logits, self.table), self.table)
        shaped = self._shape(logits, plain)
        logits, plain, shaped = (
            put(values, positions, self.is_noisy.shape) for values in (logits, plain, shaped)
        )
        x0_hat = torch.where(self.is_noisy[..., None], shaped, given)
        return Estimate(logits, x0_hat, plain if self.self_conditioning else None)

    def _shape(self, logits: Tensor, plain: Tensor) -> Float[Tensor, "positions embed"]:
        """Returns x0_hat under the sampling settings; `plain` where they change nothing."""
        unshaped = self.softmax_temperature == 1.0 and self.nucleus == 1.0
        if unshaped and self.projection == self.trained:
            return plain
        x0_hat = expected_embedding(
            logits,
            self.table,
            softmax_temperature=self.softmax_temperature,
            nucleus=self.nucleus,
        )
        return self.projection(x0_hat, self.table)


@dataclass(frozen=True, eq=False)
class OtherNoiseLevel:
    """An estimator that is told another noise level than the solver's: a multiple of it, up to t_max."""

    estimator: Estimator
    scale: float
    t_max: float

    def __call__(
        self, x: Float[Tensor, "batch seq embed"], t: Float[Tensor, " batch"], state: Any
    ) -> Estimate:
        return self.estimator(x, (self.scale * t).clamp(max=self.t_max), state)


@dataclass(frozen=True, eq=False)
class Guided:
    """Classifier-free guidance (§6.4): extrapolate from the unconditional to the conditional x0_hat.

    `both` has every row twice, the second time with its given tokens hidden, so that one call of the
    network serves both branches; its state is that of both.
    """

    both: Estimator
    guidance_scale: float

    def __call__(
        self, x: Float[Tensor, "batch seq embed"], t: Float[Tensor, " batch"], state: Any
    ) -> Estimate:
        estimate = self.both(torch.cat([x, x]), torch.cat([t, t]), state)
        conditional, unconditional = estimate.x0_hat.chunk(2)
        x0_hat = torch.lerp(unconditional, conditional, self.guidance_scale)
        return Estimate(estimate.logits[: len(x)], x0_hat, estimate.state)


@dataclass(frozen=True, eq=False)
class Replacement:
    """The replacement method (§4.1): condition a model that was trained without masks.

    Given tokens are put into x at every call, at the call's noise level. The noise is fixed over the
    steps, so that the given positions follow the straight line e + t·eps and every solver sees a
    smooth problem.
    """

    estimator: Estimator
    given: Float[Tensor, "batch seq embed"]
    is_noisy: Bool[Tensor, "batch seq"]
    eps: Float[Tensor, "batch seq embed"]

    def __call__(
        self, x: Float[Tensor, "batch seq embed"], t: Float[Tensor, " batch"], state: Any
    ) -> Estimate:
        noisy = self.is_noisy[..., None]
        x = torch.where(noisy, x, self.given + t[:, None, None] * self.eps)
        estimate = self.estimator(x, t, state)
        x0_hat = torch.where(noisy, estimate.x0_hat, self.given)
        return Estimate(estimate.logits, x0_hat, estimate.state)
