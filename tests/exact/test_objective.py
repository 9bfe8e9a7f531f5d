"""The training loss: against a naive reference, and piece by piece."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.diffusion.embedding import Embedding, EmbeddingConfig, penalty
from cdcd.diffusion.logits import noisy_positions, put, take
from cdcd.diffusion.objective import (
    Draws,
    ObjectiveConfig,
    training_loss,
)
from cdcd.seeding import generator_for

BATCH, LENGTH, DIM, VOCAB = 6, 5, 4, 7
SELF_CONDITIONED = [1, 2, 5]


class Toy(nn.Module):
    """A small nonlinear network that mixes positions and remembers what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        generator = generator_for(0, "toy")
        self.inner = nn.Parameter(torch.randn(3 * DIM + 2, 16, generator=generator).double() / 3)
        self.outer = nn.Parameter(torch.randn(16, VOCAB, generator=generator).double())
        self.calls: list[dict[str, Tensor]] = []

    def forward(
        self,
        x: Tensor,
        t: Tensor,
        *,
        c: Tensor,
        x0_prev: Tensor,
        is_noisy: Tensor,
        positions: Tensor | None = None,
    ) -> Tensor:
        self.calls.append({"x": x, "t": t, "c": c, "x0_prev": x0_prev, "is_noisy": is_noisy})
        time = t.log()[:, None, None].expand(*x.shape[:2], 1)
        h = torch.cat([x, c, x0_prev, is_noisy[..., None].to(x), time], dim=-1) @ self.inner
        h = torch.tanh(h + h.mean(1, keepdim=True))
        return (h if positions is None else take(h, positions)) @ self.outer


def make_table(**settings: Any) -> Embedding:
    config = EmbeddingConfig(dim=DIM, init_scale=1.0, **settings)
    embedding = Embedding(VOCAB, config)
    weight = torch.randn(VOCAB, DIM, generator=generator_for(1, "weight"))
    embedding.weight = nn.Parameter(weight.double())
    return embedding


def make_batch() -> tuple[Tensor, Draws]:
    generator = generator_for(2, "batch")
    is_noisy = torch.rand(BATCH, LENGTH, generator=generator) < 0.6
    is_noisy[:, 0] = True
    draws = Draws(
        t=torch.rand(BATCH, generator=generator).double() * 3 + 0.5,
        eps=torch.randn(BATCH, LENGTH, DIM, generator=generator).double(),
        is_noisy=is_noisy,
        is_dropped=torch.tensor([True, False, False, True, False, False]),
        self_conditioned=torch.tensor(SELF_CONDITIONED),
    )
    return torch.randint(VOCAB, (BATCH, LENGTH), generator=generator), draws


def run(
    objective: ObjectiveConfig | None = None,
    embedding: EmbeddingConfig | None = None,
    predicted: tuple[int, int] | None = None,
):
    embedding = embedding or EmbeddingConfig(dim=DIM)
    toy, table = Toy(), make_table(normalise=embedding.normalise)
    tokens, draws = make_batch()
    if predicted is not None:
        masks = draws.is_noisy, draws.is_noisy[SELF_CONDITIONED]
        positions = (noisy_positions(m, n) for m, n in zip(masks, predicted, strict=True))
        draws = replace(draws, predicted=next(positions), predicted_first=next(positions))
    losses = training_loss(
        toy,
        table.table(),
        tokens,
        draws,
        objective=objective or ObjectiveConfig(),
        embedding=embedding,
    )
    return toy, table, tokens, draws, losses


def naive_row(toy: Toy, table: Tensor, tokens: Tensor, draws: Draws, row: int, conditioned: bool):
    """The loss of one sequence, written out position by position (§3.1, §4.1, §4.3)."""
    t = draws.t[row]
    x = torch.zeros(LENGTH, DIM).double()
    c = torch.zeros(LENGTH, DIM).double()
    for i in range(LENGTH):
        e = table[tokens[row, i]]
        if draws.is_noisy[row, i]:
            x[i] = (e + t * draws.eps[row, i]) / (t * t + 1) ** 0.5
        elif not draws.is_dropped[row]:
            c[i] = e
    inputs: dict[str, Any] = {"c": c[None], "is_noisy": draws.is_noisy[row][None]}
    p = torch.zeros(1, LENGTH, DIM).double()
    if conditioned:
        with torch.no_grad():
            probs = toy(x[None], t[None], x0_prev=p, **inputs).softmax(-1)
        for i in range(LENGTH):
            if draws.is_noisy[row, i]:
                p[0, i] = sum(probs[0, i, v] * table[v] for v in range(VOCAB))  # pyright: ignore[reportArgumentType]
    logits = toy(x[None], t[None], x0_prev=p.detach(), **inputs)[0]
    return [
        -logits[i].log_softmax(-1)[tokens[row, i]] for i in range(LENGTH) if draws.is_noisy[row, i]
    ]


def num_noisy() -> tuple[int, int]:
    is_noisy = make_batch()[1].is_noisy
    return int(is_noisy.sum()), int(is_noisy[SELF_CONDITIONED].sum())


@pytest.mark.parametrize("predicted", [None, num_noisy(), (25, 13)])
def test_loss_and_gradients_equal_a_naive_reference(predicted):
    toy, embedding, tokens, draws, losses = run(predicted=predicted)
    assert len(losses.logits) == (BATCH * LENGTH if predicted is None else predicted[0])
    rows = SELF_CONDITIONED
    (losses.total / losses.num_noisy).backward()
    found = [parameter.grad for parameter in (*toy.parameters(), embedding.weight)]

    naive, table = Toy(), make_table()
    per_row = [
        naive_row(naive, table.table(), tokens, draws, row, row in rows) for row in range(BATCH)
    ]
    flat = [value for row in per_row for value in row]
    torch.stack(flat).mean().backward()
    expected = [parameter.grad for parameter in (*naive.parameters(), table.weight)]
    assert float(losses.total.detach()) == pytest.approx(float(torch.stack(flat).detach().sum()))
    assert int(losses.num_noisy) == len(flat)
    means = torch.stack([torch.stack(row).mean() for row in per_row]).detach()
    torch.testing.assert_close(losses.per_sequence, means)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_network_sees_inputs_scaled_and_masked():
    toy, embedding, tokens, draws, _ = run()
    first, second = toy.calls
    table, noisy = embedding.table(), draws.is_noisy[..., None]
    assert len(first["x"]) == BATCH // 2
    x = (table[tokens] + draws.t[:, None, None] * draws.eps) / (draws.t**2 + 1).sqrt()[
        :, None, None
    ]
    torch.testing.assert_close(second["x"], x * noisy)
    kept = ~draws.is_dropped[:, None, None]
    torch.testing.assert_close(second["c"], table[tokens] * ~noisy * kept)
    assert torch.equal(second["is_noisy"], draws.is_noisy)
    assert (second["x0_prev"][[0, 3, 4]] == 0).all()
    assert (second["x0_prev"][SELF_CONDITIONED] * ~noisy[SELF_CONDITIONED] == 0).all()
    assert (second["x0_prev"][SELF_CONDITIONED] != 0).any()
    assert not second["x0_prev"].requires_grad


def test_gradients_reach_the_table_through_noising_conditioning_and_normalisation():
    toy, embedding, _, draws, losses = run()
    losses.total.backward()
    assert embedding.weight.grad is not None
    # Rows are normalised: the gradient is orthogonal to them.
    along = (embedding.weight.grad * embedding.weight).sum(-1)
    torch.testing.assert_close(along, torch.zeros(VOCAB).double(), atol=1e-9, rtol=0)
    # Without noise on the way, x0 itself must carry gradient: drop all conditioning.
    fresh = make_table()
    tokens, _ = make_batch()
    none = torch.tensor([], dtype=torch.long)
    is_noisy = torch.ones_like(draws.is_noisy)
    everything = replace(draws, is_noisy=is_noisy, self_conditioned=none)
    only_x = training_loss(
        toy,
        fresh.table(),
        tokens,
        everything,
        objective=ObjectiveConfig(),
        embedding=EmbeddingConfig(dim=DIM),
    )
    assert len(toy.calls) == 3, "without self-conditioned rows there is one pass"
    assert (toy.calls[2]["x0_prev"] == 0).all()
    only_x.total.backward()
    assert fresh.weight.grad is not None
    assert float(fresh.weight.grad.norm()) > 1e-3


@pytest.mark.parametrize("setting", ["renormalise", "clamp"])
def test_predictions_fed_back_are_projected_as_trained(setting):
    config = EmbeddingConfig(dim=DIM, **{setting: True})
    toy, embedding, _, draws, _ = run(embedding=config)
    fed = toy.calls[1]["x0_prev"][SELF_CONDITIONED][draws.is_noisy[SELF_CONDITIONED]]
    torch.testing.assert_close(fed.norm(dim=-1), torch.full((len(fed),), DIM**0.5).double())
    distances = (fed[:, None] - embedding.table()).norm(dim=-1).min(-1).values
    assert bool((distances < 1e-6).all()) == (setting == "clamp")


def test_score_matching_is_the_weighted_squared_error():
    _, embedding, tokens, draws, losses = run(ObjectiveConfig(loss="score_matching"))
    table = embedding.table()
    x0_hat = put(losses.logits, None, tokens.shape).softmax(-1) @ table
    error = (x0_hat - table[tokens]).square().mean(-1) / draws.t[:, None] ** 2
    torch.testing.assert_close(losses.total, (error * draws.is_noisy).sum())
    plain = run()[-1]
    torch.testing.assert_close(losses.per_sequence, plain.per_sequence)


def test_l2_penalty_is_added_per_noisy_token():
    plain = run(embedding=EmbeddingConfig(dim=DIM, normalise=False))
    config = EmbeddingConfig(dim=DIM, normalise=False, l2_penalty=0.3)
    _, embedding, *_, losses = run(embedding=config)
    extra = (losses.total - plain[-1].total) / losses.num_noisy
    assert float(extra.detach()) == pytest.approx(
        0.3 * float(embedding.weight.detach().square().mean()), rel=1e-4
    )


def test_margin_penalty_is_that_beyond_the_margin():
    table = torch.tensor([[0.5, -1.5], [3.0, -1.0]], dtype=torch.float64, requires_grad=True)
    config = EmbeddingConfig(dim=2, normalise=False, margin_penalty=0.4)
    found = penalty(table, config)
    assert found.item() == pytest.approx(0.4 * (0.5**2 + 2**2) / 4)
    (gradient,) = torch.autograd.grad(found, table)
    exact = 0.4 * 2 / 4 * torch.tensor([[0.0, -0.5], [2.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(gradient, exact)


def test_adapted_weight_penalises_the_table_and_grows_with_its_variance():
    """The gradients of a saddle: the table descends λ·mean square, ln λ ascends mean square − 1."""
    torch.manual_seed(0)
    config = EmbeddingConfig(
        dim=3, normalise=False, init_scale=2.0, l2_penalty=0.3, l2_adapted=True
    )
    embedding = Embedding(5, config).double()
    found = penalty(embedding.table(), config, embedding.log_l2_weight)
    found.backward()
    weight = embedding.weight.detach()
    assert found.item() == pytest.approx(0.3 * weight.square().mean().item())
    torch.testing.assert_close(embedding.weight.grad, 0.3 * 2 / 15 * weight)
    assert embedding.log_l2_weight is not None
    torch.testing.assert_close(embedding.log_l2_weight.grad, 1 - weight.square().mean()[None])


def test_loss_ignores_given_positions():
    *_, tokens, draws, losses = run()
    weights = F.one_hot(tokens, VOCAB).double()
    changed = torch.where(
        draws.is_noisy[..., None], put(losses.logits, None, tokens.shape), 100 * weights
    )
    entropy = F.cross_entropy(changed.flatten(0, 1), tokens.flatten(), reduction="none")
    expected = (entropy.view_as(tokens) * draws.is_noisy).sum()
    torch.testing.assert_close(losses.total, expected)
