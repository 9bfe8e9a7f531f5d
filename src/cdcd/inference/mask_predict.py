"""Mask-predict decoding: predictions become given tokens, the most confident first.

A model that was trained on masks (§4.1) predicts every token from those that are given. So it can be asked
for all of them at full noise, be given the predictions that it is most confident of, and be asked again,
as masked language models are (Ghazvininejad et al., 2019). A sample of the ODE is one of many texts that are
likely together; this decoder looks for a text that is likely by itself, where one is wanted, as in
translation.

NOTE(paper): this is not in the paper. No score is followed: the noise only fills the positions of tokens
that are not given yet. Predictions are fed back from one round to the next, as they are between steps.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from cdcd.config import MaskPredictConfig
from cdcd.data.vocabulary import PAD
from cdcd.diffusion.estimator import EstimatorFor
from cdcd.diffusion.sampling import StepInfo
from cdcd.inference.rounds import Predicted, choose, fill_in_rounds


@torch.no_grad()
def mask_predict(
    estimator_for: EstimatorFor,
    tokens: Int[Tensor, "batch seq"],
    is_noisy: Bool[Tensor, "batch seq"],
    x: Float[Tensor, "batch seq embed"],
    t: Float[Tensor, " batch"],
    config: MaskPredictConfig,
    *,
    u: Float[Tensor, "batch seq"],
    never: Sequence[int] = (),
    state: Any = None,
    callback: Callable[[StepInfo], None] | None = None,
) -> Predicted:
    """Predicts the noisy tokens, an equal share in each round; x is noise at the highest level t.

    `u` is uniform in [0, 1), for tokens drawn at a temperature; tokens in `never` are not predicted.
    """
    level = 0.0 if callback is None else float(t[0])

    def predict(
        index: int, tokens: Int[Tensor, "batch seq"], is_noisy: Bool[Tensor, "batch seq"]
    ) -> Float[Tensor, "noisy vocab"]:
        nonlocal state
        estimate = estimator_for(tokens, is_noisy)(x, t, state)
        state = estimate.state
        if callback is not None:
            callback(StepInfo(index, config.num_rounds, level, estimate))
        logits = estimate.logits[is_noisy].to(u.dtype)
        logits[:, list(never)] = -torch.inf
        return logits

    chosen = partial(choose, temperature=config.temperature)
    return fill_in_rounds(predict, chosen, tokens, is_noisy, u, config.num_rounds)


def ends_at(
    logits: Float[Tensor, "batch seq vocab"],
    quantiles: Float[Tensor, " batch"],
    temperature: float = 1.0,
) -> Int[Tensor, "batch 1"]:
    """Returns the position of each target's end, at a quantile of its length by the probabilities of padding.

    The end is at or before position i if i + 1 is padding; it is at the last position at the latest. At a
    temperature T the probabilities of the lengths are p^(1/T), normalised.
    """
    p = torch.softmax(logits.to(quantiles.dtype), dim=-1)[..., PAD]
    # There is at least an end, and no text after padding.
    before = F.pad(p.cummax(1).values[:, 1:], (0, 1), value=1.0)
    if temperature != 1.0:
        likely = before.diff(dim=1, prepend=torch.zeros_like(before[:, :1]))
        before = torch.softmax(likely.log() / temperature, dim=1).cumsum(1)
    is_before_end = before[:, :-1] < quantiles[:, None]
    return is_before_end.sum(1, keepdim=True)
