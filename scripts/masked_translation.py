"""What helps a network to tell the tokens of a translation from any others, each idea at equal cost.

    python scripts/masked_translation.py DATASET OUT [IDEA …]

Trains the networks of the preset `multi30k` on masked targets at full noise alone (no other noise
level, no self-conditioning), for as many steps as each other, and asks them for the validation set of a
prepared DATASET: nats a token in random order and from left to right, with the length known, and BLEU of
the surest token first, at the median length and as the surest of four. Each idea is a process's work of
minutes on a GPU; several can run at the same time. OUT/IDEA.json has its numbers, and is not made again.
"""

import copy
import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import sacrebleu
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cdcd.config import BeamConfig
from cdcd.data.pairs import PreparedPairs
from cdcd.data.vocabulary import EOS, PAD
from cdcd.diffusion.masking import clean_counts, random_masks
from cdcd.inference.beam import beam_search
from cdcd.inference.translation import ends_at
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork
from cdcd.networks.diffusion_translation import DiffusionTranslationNetwork
from cdcd.presets import multi30k
from cdcd.training.optimiser import learning_rate_at, make_muon


@dataclass(frozen=True)
class Idea:
    """One change to the training of a masked translator."""

    positions: str = "absolute"
    """Or relative in the decoder, or in both stacks."""
    tied: bool = False
    """The output layer has the weights of the source's embedding."""
    smoothing: float = 0.0
    text_masks: float = 0.0
    """Share of rows whose length is given, and so many of their tokens, as in settling."""
    both_ways: bool = False
    """German to English too, told apart by a token before the source."""
    twice: float = 0.0
    """Weight of the divergence of two passes with different dropout (R-Drop), of half as many rows."""
    corrupted: float = 0.0
    """Share of given tokens that are others from the batch."""
    autoregressive: bool = False


IDEAS = {
    "none": Idea(),
    "relative-decoder": Idea(positions="decoder"),
    "relative": Idea(positions="both"),
    "tied": Idea(tied=True),
    "smoothing": Idea(smoothing=0.1),
    "text-masks": Idea(text_masks=0.7),
    "both-ways": Idea(both_ways=True),
    "twice": Idea(twice=1.0),
    "corrupted": Idea(corrupted=0.1),
    "autoregressive": Idea(autoregressive=True),
}
LENGTH, BATCH, AVERAGE = 36, 256, 0.998
T_MAX = 300.0
QUANTILES = (0.125, 0.375, 0.625, 0.875)
TAGS = 257, 258
"""The bytes FE and FF, which are in no text: they stand before the sources of either direction."""


class Study:
    """A network, its data, and what is asked of it."""

    def __init__(self, idea: Idea, dataset: Path, steps: int) -> None:
        self.idea, self.steps = idea, steps
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.generator = torch.Generator(self.device).manual_seed(0)
        self.data = PreparedPairs(dataset)
        self.train, self.valid = self.load("train"), self.load("valid")
        if idea.both_ways:
            self.train = torch.cat([tagged(self.train, way) for way in (0, 1)])
            self.valid = tagged(self.valid, 0)
        torch.manual_seed(0)
        self.model = self.build().to(self.device)
        self.average = copy.deepcopy(self.model)

    def load(self, split: str) -> Tensor:
        """The pairs that fit, as rows of [source | target]."""
        sequences = self.data.sequences(split, source_length=LENGTH, target_length=LENGTH)
        return sequences.rows(np.arange(len(sequences))).long().to(self.device)

    def build(self) -> DiffusionTranslationNetwork | AutoregressiveTranslationNetwork:
        config = multi30k()
        network = replace(config.seq2seq, relative_positions=self.idea.positions != "absolute")
        sizes = {
            "vocab_size": self.data.vocab_size,
            "source_length": LENGTH,
            "length": LENGTH,
        }
        if self.idea.autoregressive:
            return AutoregressiveTranslationNetwork(network, **sizes)
        model = DiffusionTranslationNetwork(network, config.embedding, config.process, **sizes)
        if self.idea.positions == "decoder":
            model.encoder.rotary = None
        if self.idea.tied:
            model.head.weight = model.source_embedding.weight
        return model

    def masks(self, target: Tensor) -> Tensor:
        """What is noisy: as in `objective.masking random`, or within texts of known length."""
        counts = clean_counts(len(target), LENGTH, generator=self.generator)
        masks = random_masks(counts, LENGTH, generator=self.generator)
        if not self.idea.text_masks:
            return masks
        u = torch.rand(len(target), LENGTH + 2, generator=self.generator, device=self.device)
        inside = within(target)
        ranks = u[:, 2:].masked_fill(~inside, 2.0).argsort(1).argsort(1)
        few = inside & (ranks >= (u[:, :1] * inside.sum(1, keepdim=True)).floor())
        is_known = (u[:, 1:2] < self.idea.text_masks) & few.any(1, keepdim=True)
        return torch.where(is_known, few, masks)

    def log_p(
        self, model: DiffusionTranslationNetwork, source: Tensor, target: Tensor, noisy: Tensor
    ) -> Tensor:
        """ln p of every token at full noise, of which the network sees the direction alone."""
        table, given = model.embedding.table(), target
        if model.training and self.idea.corrupted:
            other = target.flatten()[
                torch.randint(target.numel(), target.shape, device=self.device)
            ]
            is_text = (torch.minimum(target, other) > max(PAD, EOS)) & ~noisy
            is_other = is_text & (
                torch.rand(target.shape, device=self.device) < self.idea.corrupted
            )
            given = torch.where(is_other, other, target)
        x0, is_given = F.embedding(given, table), (~noisy)[..., None]
        noise = torch.randn(x0.shape, generator=self.generator, device=self.device)
        t = torch.full((len(target),), T_MAX, device=self.device)
        logits = model(
            noise * ~is_given,
            t,
            c=x0 * is_given,
            x0_prev=torch.zeros_like(x0),
            is_noisy=noisy,
            source=model.encode(source),
        )
        return logits.float().log_softmax(-1)

    def loss(self, rows: Tensor) -> Tensor:
        source, target = rows.split(LENGTH, dim=1)
        if isinstance(self.model, AutoregressiveTranslationNetwork):
            return self.model.loss(source, target).smoothed.sum() / (target != PAD).sum()
        if self.idea.twice:
            rows = rows[: len(rows) // 2].repeat(2, 1)
            source, target = rows.split(LENGTH, dim=1)
        noisy = self.masks(target)
        if self.idea.twice:
            noisy = noisy[: len(noisy) // 2].repeat(2, 1)
        log_p = self.log_p(self.model, source, target, noisy)[noisy]
        loss = F.nll_loss(log_p, target[noisy])
        loss = (1 - self.idea.smoothing) * loss - self.idea.smoothing * log_p.mean()
        if self.idea.twice:
            one, two = log_p.chunk(2)
            divergence = sum(
                F.kl_div(a, b, log_target=True, reduction="batchmean")
                for a, b in ((one, two), (two, one))
            )
            loss = loss + self.idea.twice / 4 * divergence
        return loss

    def learn(self) -> None:
        training = replace(
            multi30k().training,
            steps=self.steps,
            learning_rate=2.5e-3,
            warmup_steps=200,
            decay_steps=self.steps // 2,
        )
        blocks = nn.ModuleList([self.model.encoder.blocks, self.model.blocks])
        optimiser = make_muon(self.model, blocks, (0.9, 0.98), 0.95)
        self.model.train()
        for step in range(self.steps):
            rows = torch.randint(
                len(self.train), (BATCH,), generator=self.generator, device=self.device
            )
            with self.precision():
                loss = self.loss(self.train[rows])
            loss.backward()
            optimiser.set_rate(learning_rate_at(step, training))
            optimiser.step()
            decay = min(AVERAGE, (step + 1) / (step + 10))
            with torch.no_grad():
                pairs = zip(self.average.parameters(), self.model.parameters(), strict=True)
                for mean, weight in pairs:
                    mean.lerp_(weight, 1 - decay)
            if (step + 1) % 100 == 0:
                print(f"step {step + 1}/{self.steps}, loss {loss.item():.3f}", flush=True)

    def precision(self) -> torch.autocast:
        kind = self.device.type
        return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda")

    @torch.no_grad()
    def ask(
        self, model: DiffusionTranslationNetwork | AutoregressiveTranslationNetwork
    ) -> dict[str, float]:
        model.eval()
        with self.precision():
            if isinstance(model, AutoregressiveTranslationNetwork):
                return self.ask_baseline(model)
            orders = {
                "random": torch.rand(
                    self.valid.shape[0], LENGTH, generator=self.generator, device=self.device
                ),
                "left to right": self.places().expand(len(self.valid), -1).float(),
            }
            nats = {f"nats, {name}": self.nats(model, order) for name, order in orders.items()}
            return nats | self.settled(model)

    def places(self) -> Tensor:
        return torch.arange(LENGTH, device=self.device)

    def ask_baseline(self, model: AutoregressiveTranslationNetwork) -> dict[str, float]:
        source, target = self.valid.split(LENGTH, dim=1)
        nll = model.loss(source, target, 0.0).nll.sum() / (target != PAD).sum()
        found = {"nats, left to right": float(nll)}
        for name, size in (("greedy", 1), ("beam 4", 4)):
            beam = BeamConfig(beam_size=size, length_penalty=1.0)
            made = torch.cat([beam_search(model, part, beam).best() for part in source.split(256)])
            found[f"BLEU, {name}"] = self.bleu(made)
        return found

    def nats(self, model: DiffusionTranslationNetwork, order: Tensor) -> float:
        """The mean −ln p of a token, given those before it in an order, and the length."""
        source, target = self.valid.split(LENGTH, dim=1)
        inside = within(target)
        ranks = order.masked_fill(~inside, torch.inf).argsort(1).argsort(1)
        total = 0.0
        for k in range(int(inside.sum(1).max())):
            noisy = inside & (ranks >= k)
            log_p = self.log_p(model, source, target, noisy).gather(-1, target[..., None])[..., 0]
            total -= float(log_p[noisy & (ranks == k)].sum())
        return total / int(inside.sum())

    def settled(self, model: DiffusionTranslationNetwork) -> dict[str, float]:
        source = self.valid[:, :LENGTH]
        nothing = torch.full_like(source, PAD)
        first = self.log_p(model, source, nothing, torch.ones_like(nothing, dtype=torch.bool))
        one, _ = self.settle(model, source, first, 0.5)
        several = [self.settle(model, source, first, quantile) for quantile in QUANTILES]
        surest = torch.stack([score for _, score in several]).argmax(0)
        rows = torch.arange(len(surest), device=self.device)
        four = torch.stack([tokens for tokens, _ in several])[surest, rows]
        return {"BLEU, median length": self.bleu(one), "BLEU, four lengths": self.bleu(four)}

    def settle(
        self, model: DiffusionTranslationNetwork, source: Tensor, first: Tensor, quantile: float
    ) -> tuple[Tensor, Tensor]:
        """The surest token first; its mean ln p."""
        end = ends_at(first, torch.full((len(source),), quantile, device=self.device))
        tokens = torch.full_like(source, PAD).masked_fill(self.places() == end, EOS)
        noisy, total = self.places() < end, torch.zeros(len(source), device=self.device)
        while noisy.any():
            log_p = self.log_p(model, source, tokens, noisy)
            log_p[..., [PAD, EOS]] = -torch.inf
            best = log_p.max(-1)
            values = best.values.masked_fill(~noisy, -torch.inf)
            is_new = noisy & (self.places() == values.argmax(1, keepdim=True))
            tokens = torch.where(is_new, best.indices, tokens)
            total = total + best.values.masked_fill(~is_new, 0.0).sum(1)
            noisy = noisy & ~is_new
        return tokens, total / end[:, 0].clamp(min=1)

    def bleu(self, made: Tensor) -> float:
        found, wanted = (
            [self.read(row) for row in rows.tolist()] for rows in (made, self.valid[:, LENGTH:])
        )
        return sacrebleu.corpus_bleu(found, [wanted], tokenize="intl").score

    def read(self, row: list[int]) -> str:
        end = row.index(EOS) if EOS in row else len(row)
        return self.data.tokenizer.decode([token for token in row[:end] if token != PAD])


def within(target: Tensor) -> Tensor:
    """The tokens before the end."""
    lengths = (target != PAD).sum(1, keepdim=True)
    return torch.arange(target.shape[1], device=target.device) < lengths - 1


def tagged(rows: Tensor, way: int) -> Tensor:
    """Pairs of one direction, where there is room for its tag."""
    sides = list(rows.split(LENGTH, dim=1))
    source, target = sides[::-1] if way else sides
    tag = torch.full_like(source[:, :1], TAGS[way])
    has_room = source[:, -1] == PAD
    return torch.cat([tag, source[:, :-1], target], dim=1)[has_room]


def main() -> None:
    dataset, out, *names = sys.argv[1:]
    steps = 2000
    for name in names or IDEAS:
        kept = Path(out) / f"{name}.json"
        if kept.is_file():
            continue
        began = time.monotonic()
        study = Study(IDEAS[name], Path(dataset), steps)
        study.learn()
        found = {
            "idea": name,
            "steps": steps,
            "averaged weights": study.ask(study.average),
            "last weights": study.ask(study.model),
            "seconds": round(time.monotonic() - began),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
            "torch": torch.__version__,
        }
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found, indent=1))
        print(json.dumps(found))


if __name__ == "__main__":
    main()
