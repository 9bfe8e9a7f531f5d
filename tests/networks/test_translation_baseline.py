"""The autoregressive translator: parity with a naive one, what it sees, its losses and its one table."""

import cmath
import math
from dataclasses import replace

import pytest
import torch
from small_translators import (
    BATCH,
    LENGTH,
    RELATIVE,
    SMALL,
    SOURCE_LENGTHS,
    VOCAB,
    baseline,
    close,
    sources,
    targets,
)
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.data.vocabulary import EOS, PAD
from cdcd.networks.autoregressive_text import token_losses
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork
from cdcd.networks.encoder_decoder import (
    sinusoids,
)
from cdcd.seeding import generator_for

# Parity with a naive encoder-decoder


def naive_norm(h: Tensor, norm: nn.LayerNorm) -> Tensor:
    centred = h - h.mean()
    return centred / (centred.square().mean() + 1e-5).sqrt() * norm.weight + norm.bias


def naive_attention(qs: list[Tensor], ks: list[Tensor], vs: list[Tensor], heads: int) -> Tensor:
    """What the last of the queries attends to, by loops."""
    size = len(qs[0]) // heads
    parts = []
    for head in range(heads):
        where = slice(head * size, (head + 1) * size)
        scores = [float(qs[-1][where] @ k[where]) / math.sqrt(size) for k in ks]
        total = sum(math.exp(score) for score in scores)
        parts.append(sum(math.exp(s) / total * v[where] for s, v in zip(scores, vs, strict=True)))
    return torch.cat(parts)


def naive_turn(vector: Tensor, position: int) -> Tensor:
    """Numbers i and i + size/2 of each head, as one complex number, turned by position · 10,000^(−2i/size)."""
    size = SMALL.width // SMALL.num_heads
    found, half = vector.clone(), size // 2
    for head in range(SMALL.num_heads):
        for i in range(head * size, head * size + half):
            number = complex(vector[i], vector[i + half])
            number *= cmath.exp(1j * position * 10_000 ** (-2 * (i - head * size) / size))
            found[i], found[i + half] = number.real, number.imag
    return found


def naive_self_attention(
    hs: list[Tensor], block: nn.Module, *, causal: bool, relative: bool
) -> list[Tensor]:
    normed = [naive_norm(h, block.attention_norm) for h in hs]
    q, k, v = zip(*[block.attention.qkv(h).chunk(3) for h in normed], strict=True)
    if relative:
        q, k = ([naive_turn(h, i) for i, h in enumerate(part)] for part in (q, k))
    mixed = []
    for i in range(len(hs)):
        seen = i + 1 if causal else len(hs)
        mixed.append(naive_attention([q[i]], k[:seen], v[:seen], SMALL.num_heads))
    return [h + block.attention.out(m) for h, m in zip(hs, mixed, strict=True)]


def naive_mlp(h: Tensor, block: nn.Module) -> Tensor:
    inner = block.mlp.hidden(naive_norm(h, block.mlp_norm))
    return h + block.mlp.out(torch.where(inner > 0, inner, 0.0))


def naive_input(tokens: list[int], table: Tensor) -> list[Tensor]:
    """Embeddings times sqrt(width), plus sines and cosines."""
    half, found = SMALL.width // 2, []
    for position, token in enumerate(tokens):
        rates = [10_000 ** -(i / (half - 1)) for i in range(half)]
        waves = [f(position * r) for f in (math.sin, math.cos) for r in rates]
        found.append(table[token] * math.sqrt(SMALL.width) + torch.tensor(waves).double())
    return found


def naive_logits(
    model: AutoregressiveTranslationNetwork, source: list[int], target: list[int], *, relative: bool
) -> Tensor:
    """Logits of one pair without padding, from the weights alone."""
    table = model.embedding.weight
    read = naive_input(source, table)
    for block in model.encoder.blocks:
        read = naive_self_attention(read, block, causal=False, relative=relative)
        read = [naive_mlp(h, block) for h in read]
    read = [naive_norm(h, model.encoder.norm) for h in read]
    hs = naive_input([VOCAB, *target[:-1]], table)
    for block in model.blocks:
        hs = naive_self_attention(hs, block, causal=True, relative=relative)
        k, v = zip(*[block.source.key_value(h).chunk(2) for h in read], strict=True)
        for i, h in enumerate(hs):
            q = block.source.query(naive_norm(h, block.source_norm))
            mixed = naive_attention([q], list(k), list(v), SMALL.num_heads)
            hs[i] = naive_mlp(h + block.source.out(mixed), block)
    return torch.stack([table[:VOCAB] @ naive_norm(h, model.norm) for h in hs])


@pytest.mark.parametrize("relative", [False, True])
@torch.no_grad()
def test_logits_equal_naive_ones(relative):
    model, source, target = baseline(RELATIVE if relative else SMALL), sources(), targets()
    found = model(source, target)
    for row, length in enumerate(SOURCE_LENGTHS):
        pair = source[row, :length].tolist(), target[row].tolist()
        expected = naive_logits(model, *pair, relative=relative)
        # The model's sinusoids were rounded to float32.
        torch.testing.assert_close(found[row], expected, rtol=0, atol=1e-5)


def test_sinusoids_are_those_of_the_original():
    found = sinusoids(50, 8)
    for position in (0, 7, 49):
        for i in range(4):
            angle = position / 10_000 ** (i / 3)
            assert float(found[position, i]) == pytest.approx(math.sin(angle), abs=1e-6)
            assert float(found[position, 4 + i]) == pytest.approx(math.cos(angle), abs=1e-6)


# The baseline


@torch.no_grad()
def test_logits_do_not_see_their_token_or_later_ones():
    model, source, target = baseline(), sources(), targets()
    logits = model(source, target)
    for j in range(LENGTH):
        changed = target.clone()
        changed[:, j] = (changed[:, j] + 1) % VOCAB
        difference = (model(source, changed) - logits).abs().amax((0, 2))
        assert (difference[: j + 1] == 0).all()
        assert (difference[j + 1 :] > 1e-4).all()


@pytest.mark.parametrize("config", [SMALL, RELATIVE])
@torch.no_grad()
def test_reading_piece_by_piece_equals_reading_at_once(config):
    model, source, target = baseline(config), sources(), targets()
    logits, positions = model(source, target), torch.arange(LENGTH)
    read = torch.cat([model.start(BATCH), target[:, :-1]], dim=1)
    memory = model.encode(source)
    for sizes in ([1] * LENGTH, [3, 1, 2], [LENGTH]):
        caches, start = model.new_caches(BATCH, LENGTH), 0
        for size in sizes:
            part = slice(start, start + size)
            found = model.next_logits(read[:, part], positions[part], memory, caches)
            start += size
            close(found, logits[:, start - 1])


@torch.no_grad()
def test_rows_of_one_source_share_its_memory():
    """Several targets a source are as several copies of the source."""
    model, source, copies = baseline(), sources(), 3
    rows = torch.cat([targets(seed) for seed in range(copies)])
    read, positions = torch.cat([model.start(len(rows)), rows[:, :-1]], 1), torch.arange(LENGTH)
    found, expected = (
        model.next_logits(read, positions, model.encode(s), model.new_caches(len(rows), LENGTH))
        for s in (source, source.repeat_interleave(copies, 0))
    )
    close(found, expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_label_smoothing_is_that_of_torch_and_padding_is_ignored(smoothing):
    model, source, target = baseline(), sources(), targets()
    target[0, 2:], target[1, 4:] = PAD, PAD
    target[0, 1] = target[1, 3] = EOS
    found = token_losses(model(source, target), target, smoothing)
    flat = model(source, target).flatten(0, 1), target.flatten()
    settings = {"reduction": "none", "ignore_index": PAD}
    expected = F.cross_entropy(*flat, label_smoothing=smoothing, **settings)
    close(found[0].flatten(), expected)
    close(found[1].flatten(), F.cross_entropy(*flat, **settings))
    grads = [
        torch.autograd.grad(loss.sum(), model.embedding.weight)[0] for loss in (found[0], expected)
    ]
    close(*grads)
    assert (found[0][target == PAD] == 0).all()


def test_one_table_embeds_both_sides_and_gives_the_logits():
    model = baseline()
    names = [name for name, p in model.named_parameters() if VOCAB + 1 in p.shape]
    assert names == ["embedding.weight"]
    torch.manual_seed(0)
    fresh = AutoregressiveTranslationNetwork(
        replace(SMALL, width=64, num_heads=4), vocab_size=300, source_length=8, length=32
    )
    tokens = torch.randint(3, 300, (16, 32), generator=generator_for(0))
    with torch.no_grad():
        loss = float(token_losses(fresh(tokens[:, :8], tokens), tokens)[1].mean())
    assert loss == pytest.approx(math.log(300) + 0.5, abs=0.5)
