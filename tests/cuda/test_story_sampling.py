"""Stories drawn by captured steps are those of plain steps."""

import pytest
import torch
from tiny_stories import tiny_model

from cdcd.languages.story_model import StoryModel
from cdcd.languages.story_sampling import StorySampler, uniform_numbers
from cdcd.networks.capture import record_graph

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_captured_steps_draw_the_same_stories():
    plain = tiny_model(50)
    weights = {"emb": plain.embedding, **plain.norms, **plain.matrices}
    model = StoryModel(weights, plain.num_heads, device="cuda", dtype=torch.float64)
    captured = StorySampler(model, 128, record=record_graph)
    for first in (0, 128):
        uniform = uniform_numbers(0, first, 128)
        expected = StorySampler(plain, 128).draw(uniform)
        drawn = captured.draw(uniform)
        assert torch.equal(drawn.tokens.cpu(), expected.tokens)
        torch.testing.assert_close(drawn.log_probs.cpu(), expected.log_probs)
