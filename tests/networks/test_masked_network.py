"""The masked network: what it reads and what it predicts."""

import pytest
import torch
from torch import Tensor

from cdcd.diffusion.logits import noisy_positions, take
from cdcd.networks.diffusion_text import NetworkConfig
from cdcd.networks.masked_text import MaskedTextNetwork
from cdcd.seeding import generator_for

BATCH, LENGTH, VOCAB = 3, 6, 11
SMALL = NetworkConfig(num_blocks=2, width=16, num_heads=2)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator_for(seed, *shape))


def network() -> MaskedTextNetwork:
    """A network with nothing left at zero."""
    torch.manual_seed(0)
    model = MaskedTextNetwork(SMALL, vocab_size=VOCAB, length=LENGTH)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * normal(*parameter.shape))
    return model


def inputs() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(VOCAB, (BATCH, LENGTH), generator=generator_for("tokens"))
    return tokens, normal(BATCH, LENGTH) > 0


def test_tokens_under_a_mask_are_not_read_and_no_mask_is_predicted():
    tokens, is_masked = inputs()
    model = network()
    logits = model(tokens, is_masked)
    assert logits.shape == (BATCH, LENGTH, VOCAB)
    other = torch.where(is_masked, (tokens + 1) % VOCAB, tokens)
    assert torch.equal(model(other, is_masked), logits)


def test_visible_tokens_masks_and_positions_are_read_everywhere():
    tokens, is_masked = inputs()
    is_masked[:, 0] = False
    model = network()
    logits = model(tokens, is_masked)
    changed = tokens.clone()
    changed[:, 0] = (tokens[:, 0] + 1) % VOCAB
    hidden = is_masked.clone()
    hidden[:, 0] = True
    for other in (model(changed, is_masked), model(tokens, hidden)):
        assert ((other - logits).abs().amax(-1) > 1e-4).all()
    alike = model(tokens, torch.ones_like(is_masked))
    assert ((alike[:, 1:] - alike[:, :-1]).abs().amax(-1) > 1e-4).all()


def test_a_new_network_predicts_every_token_alike():
    model = MaskedTextNetwork(SMALL, vocab_size=VOCAB, length=LENGTH)
    assert model(*inputs()).abs().max() == 0


@pytest.mark.parametrize("spare", [0, 3])
def test_selected_logits_and_their_gradients_are_those_of_all(spare):
    tokens, is_masked = inputs()
    positions = noisy_positions(is_masked, int(is_masked.sum()) + spare)
    weights, gradients = normal(len(positions), VOCAB), []
    for chosen in (positions, None):
        model = network()
        logits = model(tokens, is_masked, positions=chosen)
        logits = logits if chosen is not None else take(logits, positions)
        (weights * logits).sum().backward()
        gradients.append([logits.detach(), *(p.grad for p in model.parameters())])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)
