"""Every row of the paper's Tables 1 and 2, and of its appendix, has an effect, in the direction that is known."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Beta

from cdcd.benchmarks.shapes import synthetic_tokenizer
from cdcd.config import RunConfig
from cdcd.diffusion.draws import Draws, draw_for_step
from cdcd.diffusion.embedding import Embedding, nearest_token
from cdcd.diffusion.objective import training_loss
from cdcd.diffusion.sampling import sample, time_grid
from cdcd.diffusion.solvers import SOLVERS, Slope, euler_step
from cdcd.diffusion.warping import TimeWarp
from cdcd.inference.text_model import DiffusionTextModel
from cdcd.presets import base
from cdcd.reproduction.rows import ROWS, Row, rows_of
from cdcd.seeding import generator_for
from cdcd.settings import override
from cdcd.training.build import build_model

VOCAB, LENGTH = 30, 64
SMALL = {
    "network.width": 32,
    "network.num_heads": 2,
    "network.num_blocks": 1,
    "network.time_units": 8,
    "embedding.dim": 16,
}


def config_of(row: str | Row) -> RunConfig:
    changes = (ROWS[row] if isinstance(row, str) else row).changes
    return override(base(), SMALL | changes)


def fitted_warp(config: RunConfig) -> TimeWarp:
    """A warp whose averaged density falls from low noise to high noise."""
    warp = TimeWarp(config.warp, config.process)
    warp.average_out.copy_(torch.linspace(0, -4, config.warp.num_bins))
    return warp


@cache
def model_of(config: RunConfig) -> DiffusionTextModel:
    network = build_model(config, VOCAB)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    warp = fitted_warp(config)
    return DiffusionTextModel(config, synthetic_tokenizer(VOCAB), network, warp)  # pyright: ignore[reportArgumentType]


def draws_of(config: RunConfig, batch: int = 256) -> Draws:
    shape = (batch, LENGTH, config.embedding.dim)
    schedule = fitted_warp(config).training_schedule()
    return draw_for_step(shape, config.objective, schedule, seed=0, step=0)


def inputs() -> tuple[Tensor, Tensor]:
    """Tokens, of which the first few are given."""
    tokens = torch.randint(VOCAB, (3, LENGTH), generator=generator_for("tokens"))
    return tokens, (torch.arange(LENGTH) >= 5).expand(3, -1)


@torch.no_grad()
def estimate(config: RunConfig, t: float = 3.0) -> Any:
    """A prediction, the second in a row; at noisy positions."""
    model, (tokens, is_noisy) = model_of(config), inputs()
    noise = torch.randn(3, LENGTH, config.embedding.dim, generator=generator_for("noise"))
    estimator = model.sampler.estimator(tokens, is_noisy, model.settings({}), noise=noise)
    level = torch.full((3,), t)
    return estimator(t * noise, level, estimator(t * noise, level, None).state)


def noisy(values: Tensor) -> Tensor:
    return values[inputs()[1]]


def contrast(levels: Tensor) -> float:
    """The largest step between noise levels over the smallest: 1 where they are uniform."""
    steps = levels.double().diff().abs()
    return float(steps.max() / steps.min())


def training_contrast(config: RunConfig) -> float:
    """Of training noise levels, at uniform u."""
    return contrast(fitted_warp(config).noise_levels(torch.linspace(0, 1, 201)))


def grid_of(config: RunConfig) -> Tensor:
    return time_grid(config.sampling, config.process, fitted_warp(config).schedule())


def sampling_contrast(config: RunConfig) -> float:
    return contrast(grid_of(config))


def embedding_deviation(config: RunConfig) -> float:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return float(Embedding(VOCAB, config.embedding).weight.detach().std())


def share_of_prefixes(config: RunConfig) -> float:
    """The share of masks that give a beginning alone."""
    is_noisy = draws_of(config).is_noisy
    return float((is_noisy.sort(1).values == is_noisy).all(1).float().mean())


def first_step(config: RunConfig) -> float:
    grid = grid_of(config)
    return float(grid[0] - grid[1])


def step_length(config: RunConfig) -> float:
    """The length of a step of the ODE."""
    x = torch.ones(3, LENGTH, config.embedding.dim)
    fixed = estimate(config)
    slope = Slope(lambda *_: fixed, config.sampling.score_temperature)
    step = euler_step(slope, x, torch.tensor(3.0), torch.tensor(2.0), None)
    return float((step.x - x).norm())


def vagueness(config: RunConfig) -> float:
    """How near x0_hat is to the mean of all embeddings."""
    table = model_of(config).sampler.table
    return -float((noisy(estimate(config).x0_hat) - table.mean(0)).norm())


def starting_noise(config: RunConfig) -> float:
    seen = []

    def estimator(x: Tensor, t: Tensor, state: Any) -> Any:
        seen.append(x.norm())
        return estimate(config)

    noise = torch.ones(3, LENGTH, config.embedding.dim)
    table = model_of(config).sampler.table
    sample(estimator, table, noise, torch.tensor([300.0, 1.0]), config.sampling)
    return float(seen[0])


def effect_of_guidance(config: RunConfig) -> float:
    unguided = estimate(config_of("table2/guidance/guidance=1.0"))
    return float((noisy(estimate(config).x0_hat) - noisy(unguided.x0_hat)).norm())


def evaluations(config: RunConfig) -> float:
    return config.sampling.num_evaluations


RISES, FALLS = 1, -1
EFFECTS: list[tuple[str, Callable[[RunConfig], float], int]] = [
    ("table1/dimensionality", lambda config: model_of(config).sampler.table.shape[1], RISES),
    ("table1/init-scale", embedding_deviation, RISES),
    ("table1/warp-temperature", training_contrast, FALLS),
    ("table1/warp-temperature", sampling_contrast, FALLS),
    ("table1/warp-uniformity", training_contrast, FALLS),
    ("table1/warp-uniformity", sampling_contrast, FALLS),
    ("table2/euler-steps", evaluations, RISES),
    ("table2/heun-steps", evaluations, RISES),
    ("table2/score-temperature", step_length, FALLS),
    ("table2/softmax-temperature", vagueness, RISES),
    ("table2/initial-noise", starting_noise, RISES),
    ("table2/nucleus", vagueness, RISES),
    ("table2/rho-unwarped", first_step, RISES),
    ("table2/rho-warped", first_step, RISES),
    ("table2/warp-temperature", sampling_contrast, FALLS),
    ("table2/warp-uniformity", sampling_contrast, FALLS),
    ("table2/guidance", effect_of_guidance, RISES),
    ("table2/final-prediction", evaluations, RISES),
]


@pytest.mark.parametrize(
    ("group", "effect", "sign"), EFFECTS, ids=lambda each: getattr(each, "__name__", str(each))
)
def test_the_effect_of_a_group_rises_or_falls_from_row_to_row(group, effect, sign):
    values = [sign * float(effect(config_of(row))) for row in rows_of([group])]
    assert all(one < other for one, other in pairwise(values)), values


def test_a_training_setting_alone_leaves_the_grid_and_a_sampling_setting_the_draws():
    """Rows of Table 1 change both, those of Table 2 the grid alone."""
    unchanged = config_of("table1/base/base")
    for name in ("warp-temperature/T=5.0", "warp-uniformity/mu=0.5"):
        row = ROWS[f"table1/{name}"]
        training = override(unchanged, row.training)
        assert sampling_contrast(training) == sampling_contrast(unchanged)
        assert training_contrast(training) == training_contrast(config_of(row))
        sampling = config_of(f"table2/{name}")
        assert training_contrast(sampling) == training_contrast(unchanged)
        assert sampling_contrast(sampling) == sampling_contrast(config_of(row))


def test_without_warping_levels_are_uniform():
    neither, training_only, both = map(config_of, rows_of(["table1/warping"]))
    assert training_contrast(neither) < 1.01 < training_contrast(training_only)
    assert training_contrast(training_only) == training_contrast(both)
    assert max(map(sampling_contrast, (neither, training_only))) < 1.01 < sampling_contrast(both)


def test_uniformity_one_is_no_warping():
    uniform, off = config_of("table1/warp-uniformity/mu=1.0"), config_of("table1/warping/neither")
    torch.testing.assert_close(grid_of(uniform), grid_of(off))


def test_renormalised_and_clamped_predictions():
    """In the estimate, and in the last prediction that is fed back."""
    for row, (is_renormalised, is_clamped) in zip(
        rows_of(["table1/renormalise-clamp"]),
        ((False, False), (True, False), (False, True), (True, True)),
        strict=True,
    ):
        config = config_of(row)
        found, table = estimate(config), model_of(config).sampler.table
        for x0_hat in (noisy(found.x0_hat), noisy(found.state)):
            on_sphere = (x0_hat.norm(dim=-1) - 4.0).abs().max() < 1e-4
            on_table = (x0_hat - table[nearest_token(x0_hat, table)]).abs().max() < 1e-5
            assert bool(on_sphere) == (is_renormalised or is_clamped)
            assert bool(on_table) == is_clamped


def test_masks():
    shares = {
        r.name.split("/")[2]: share_of_prefixes(config_of(r)) for r in rows_of(["table1/masking"])
    }
    assert shares["prefix"] == shares["prefix-fixed"] == 1.0
    assert shares["random"] < 0.1 < shares["mixed-20"] < shares["mixed-50"] < shares["mixed-80"] < 1
    fixed = draws_of(config_of("table1/masking/prefix-fixed")).is_noisy
    assert torch.equal(fixed[0], torch.arange(LENGTH) >= 32)
    assert (fixed == fixed[0]).all()


def test_self_conditioning():
    neither, training_only, both = map(config_of, rows_of(["table1/self-conditioning"]))
    assert [len(draws_of(c).self_conditioned) for c in (neither, training_only, both)] == [
        0,
        128,
        128,
    ]
    states = [estimate(config).state for config in (neither, training_only, both)]
    assert states[0] is states[1] is None
    assert (estimate(both).x0_hat - estimate(training_only).x0_hat).abs().max() > 1e-3


@pytest.mark.parametrize("row", rows_of(["table1/warp-beta"]), ids=lambda row: row.name)
def test_target_shapes(row):
    """The fitted loss is the CDF of a Beta distribution in u; at its own, the fitting loss is least."""
    config = config_of(row)
    warp = fitted_warp(config)
    with torch.no_grad():
        warp.logits_in.copy_(warp.average_in)
        warp.logits_out.copy_(warp.average_out)
    u = torch.linspace(0.05, 0.95, 7)
    shares = warp.expected_loss(warp.schedule().noise_levels(u)) / warp.logits_out.exp().sum()
    a, b = config.warp.beta_a, config.warp.beta_b
    grid = (torch.arange(400_000).double() + 0.5) / 400_000
    density = Beta(torch.tensor(a).double(), torch.tensor(b).double()).log_prob(grid).exp()
    cdf = density.cumsum(0) / density.sum()
    expected = cdf[(u.double() * 400_000).long()]
    torch.testing.assert_close(shares.double(), expected, atol=2e-3, rtol=0)


def test_the_two_solvers_spend_equal_evaluations():
    """Table 2 halves Heun's steps so that the number of network calls stays the same."""
    pairs = zip(rows_of(["table2/euler-steps"]), rows_of(["table2/heun-steps"]), strict=True)
    for pair in pairs:
        euler, heun = (config_of(row).sampling for row in pair)
        assert (euler.solver, heun.solver) == ("euler", "heun")
        assert SOLVERS[heun.solver].order == 2
        assert euler.num_evaluations == heun.num_evaluations


def loss_of(config: RunConfig) -> float:
    model, draws = model_of(config), draws_of(config, batch=3)
    table = model.model.embedding.table()
    objective, embedding = config.objective, config.embedding
    found = training_loss(
        model.model, table, inputs()[0], draws, objective=objective, embedding=embedding
    )
    return float(found.total)


NEGATIVE = [
    {"network.time_input": False},
    {"embedding.normalise": False, "embedding.l2_penalty": 1.0},
    {"embedding.normalise": False, "embedding.margin_penalty": 1.0},
    {"embedding.normalise": False, "embedding.l2_penalty": 1.0, "embedding.l2_adapted": True},
    {"objective.loss": "score_matching"},
    {"objective.masking": "none", "sampling.replacement": True},
    {"objective.self_conditioning": False, "sampling.renormalise": True, "sampling.clamp": True},
]


@pytest.mark.parametrize("changes", NEGATIVE, ids=str)
def test_a_negative_result_changes_the_loss_and_the_prediction(changes):
    """Appendix B, and the choices of §4.1 and §6.3 for other models."""
    other, unchanged = override(base(), SMALL | changes), override(base(), SMALL)
    assert loss_of(other) != loss_of(unchanged)
    if "objective.loss" not in changes:
        assert not torch.equal(estimate(other).x0_hat, estimate(unchanged).x0_hat)
