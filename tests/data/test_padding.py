"""Padding put among the tokens of a target (`data.extra_padding`)."""

import torch
from tiny import start_tiny

from cdcd.data.vocabulary import EOS, PAD
from cdcd.seeding import generator_for
from cdcd.training.distributed import World
from cdcd.training.translation import spread

LENGTH, SHARE = 20, 0.5


def padded(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets of 3 to 20 tokens, the last of them EOS, before and after."""
    generator = generator_for(0, "targets")
    tokens = torch.randint(3, 50, (count, LENGTH), generator=generator)
    lengths = torch.randint(3, LENGTH + 1, (count, 1), generator=generator)
    places = torch.arange(LENGTH)
    target = tokens.masked_fill(places == lengths - 1, EOS).masked_fill(places >= lengths, PAD)
    return target, spread(target, SHARE, torch.rand(count, LENGTH + 1, generator=generator))


def test_the_tokens_and_their_order_stay():
    for before, after in zip(*padded(500), strict=True):
        assert after[after != PAD].tolist() == before[before != PAD].tolist()


def test_there_is_as_much_padding_as_allowed_and_at_every_place():
    target, found = padded(4000)
    counts = (target != PAD).sum(1)
    ends = LENGTH - (found.flip(1) != PAD).int().argmax(1)
    inserted = ends - counts
    most = torch.minimum((SHARE * counts).long(), LENGTH - counts)
    # An insertion behind the EOS cannot be told from the padding that was there.
    assert (inserted >= 0).all()
    assert (inserted <= most).all()
    for size in (6, 10):
        rows = counts == size
        assert inserted[rows].unique().tolist() == list(range(int(most[rows][0]) + 1))
        assert (found[rows, 0] == PAD).any()
        share = float((found[rows][:, :size] == PAD).float().mean())
        assert 0.05 < share < 0.35


def test_a_full_target_stays_as_it_is():
    target = torch.arange(3, 3 + LENGTH)[None]
    assert torch.equal(spread(target, 1.0, torch.full((1, LENGTH + 1), 0.99)), target)


def test_it_is_put_into_the_targets_that_are_trained_on(tmp_path):
    trainer = start_tiny(tmp_path / "run", {"task": "translation", "data.extra_padding": 0.9})
    seen = []
    really = trainer.learn

    def learn(tokens, drawn):
        seen.append(tokens)
        return really(tokens, drawn)

    trainer.learn = learn
    trainer.train_step()
    before, room = trainer.data.batch(0), trainer.config.data.source_length
    assert torch.equal(seen[0][:, :room], before[:, :room])
    changed = (seen[0][:, room:] != before[:, room:]).any(1)
    assert changed.float().mean() > 0.5
    for row, padded_row in zip(before[:, room:], seen[0][:, room:], strict=True):
        assert padded_row[padded_row != PAD].tolist() == row[row != PAD].tolist()
    assert torch.equal(trainer.task.vary(before, 0), seen[0])
    assert not torch.equal(trainer.task.vary(before, 1), seen[0])


def test_ranks_put_it_where_one_process_would(tmp_path):
    trainer = start_tiny(tmp_path / "run", {"task": "translation", "data.extra_padding": 0.5})
    batch, whole = trainer.data.batch(0), trainer.task.vary(trainer.data.batch(0), 3)
    half = len(batch) // 2
    for rank in (0, 1):
        trainer.task.world = World(rank=rank, size=2)
        rows = slice(rank * half, (rank + 1) * half)
        assert torch.equal(trainer.task.vary(batch[rows], 3), whole[rows])
