"""Embeddings in training: they collapse or grow where the paper says so (§3.2, App. B.1)."""

from learning import STATES, train
from torch.nn import functional as F

from cdcd.diffusion.embedding import EmbeddingConfig
from cdcd.diffusion.objective import ObjectiveConfig
from cdcd.diffusion.process import ProcessConfig
from cdcd.networks.diffusion_text import DiffusionTextNetwork

SMALL = {"batch": 32, "num_blocks": 1}
"""The size of trainings whose embeddings alone are looked at."""


def mean_cosine(model: DiffusionTextNetwork) -> float:
    """Mean cosine of the angle between two different embeddings."""
    table = model.embedding.table().detach()
    cosines = F.normalize(table, dim=-1) @ F.normalize(table, dim=-1).T
    return float((cosines.sum() - STATES) / (STATES * (STATES - 1)))


def test_score_matching_collapses_the_embeddings_and_cross_entropy_spreads_them():
    """§3.2: with score matching the task is easiest when all embeddings are the same vector.

    At noise levels where tokens cannot be told, only a collapse lowers the score-matching loss.
    """

    def cosine(loss: str) -> float:
        model, _ = train(
            250,
            embedding=EmbeddingConfig(dim=8, init_scale=0.1),
            objective=ObjectiveConfig(loss=loss),  # pyright: ignore[reportArgumentType]
            process=ProcessConfig(t_min=3.0, t_max=30.0),
            **SMALL,
        )
        return mean_cosine(model)

    assert cosine("score_matching") > 0.95
    assert cosine("cross_entropy") < 0.1


def test_embeddings_grow_without_normalisation_unless_penalised():
    """§3.2 and App. B.1: cross-entropy pushes free embeddings apart without end."""

    def size(**settings: float) -> float:
        config = EmbeddingConfig(dim=8, init_scale=1.0, normalise=False, **settings)  # pyright: ignore[reportArgumentType]
        model, _ = train(150, embedding=config, objective=ObjectiveConfig(), **SMALL)
        return float(model.embedding.weight.detach().square().mean())

    free = size()
    assert free > 1.5
    assert size(margin_penalty=1.0) < 0.7 * free
    # A weight of 1 is too large; adapted, it falls until the variance is near 1.
    assert size(l2_penalty=1.0) < 0.6
    assert abs(size(l2_penalty=1.0, l2_adapted=True) - 1) < 0.3
