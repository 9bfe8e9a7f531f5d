"""The configuration of a run."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from cdcd.diffusion.embedding import EmbeddingConfig
from cdcd.diffusion.objective import ObjectiveConfig
from cdcd.diffusion.process import ProcessConfig
from cdcd.diffusion.sampling import SamplingConfig
from cdcd.diffusion.warping import WarpConfig
from cdcd.networks.diffusion_text import NetworkConfig
from cdcd.networks.encoder_decoder import Seq2SeqConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is learnt from."""

    source: str = "tales"
    """A built-in corpus (`tales`, `markov`), a prepared data set, a text file (one document a line) or a
    folder (one a file). For translation: `numerals` or a prepared data set of pairs."""
    split: str = "train"
    """Which part of a prepared data set is trained on; a judge is trained on `judge`."""
    tokenizer: Literal["auto", "words", "sentencepiece", "symbols", "bytes"] = "auto"
    """`words` splits at spaces and punctuation, `symbols` at spaces; `auto`: words for built-in corpora,
    else sentencepiece. A prepared data set brings its own."""
    vocab_size: int = 32_000
    """Largest size of the vocabulary that is learnt from the corpus."""
    length: int = 64
    """Tokens in a sequence; of a translation: in the target, its end and padding included."""
    source_length: int = 64
    """Most tokens of a text to translate, its end included."""
    languages: str = "en-de"
    """The languages of the pairs' sources and targets, as two tags."""
    extra_padding: float = 0.0
    """Padding put at random places among the tokens of a target in training: up to so much for each token. It
    is dropped from translations."""
    subword_sampling: float = 0.0
    """Split the words of sources into pieces at random in training, and for every settled sample but the first,
    each way with its probability to this power (0.2 where pairs are few); 0: always the likeliest way."""
    reverse: bool = False
    """Translate the other way: from the targets of a prepared data set to its sources."""
    layout: Literal["documents", "stream"] = "stream"
    """`documents`: each starts a sequence of its own, the rest is padding; `stream`: one after another."""
    num_documents: int = 60_000
    """Documents drawn from a built-in corpus."""
    num_states: int = 12
    """Number of tokens of the `markov` language."""
    valid_share: float = 0.05
    """Share of the documents held out for validation."""

    def __post_init__(self) -> None:
        for name in ("length", "source_length"):
            if getattr(self, name) < 2:
                raise ValueError(f"data.{name} is {getattr(self, name)}, it must be at least 2")
        for name in ("extra_padding", "subword_sampling"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"data.{name} is {getattr(self, name)}, it must be between 0 and 1"
                )
        if not re.fullmatch(r"[a-z]{2,3}-[a-z]{2,3}", self.languages):
            raise ValueError(
                f"data.languages is {self.languages!r}; give two tags of languages, such as en-de"
            )
        if not 0 < self.valid_share < 1:
            raise ValueError(f"data.valid_share is {self.valid_share}, it must be between 0 and 1")
        for name in ("vocab_size", "num_documents", "num_states"):
            if getattr(self, name) < 2:
                raise ValueError(f"data.{name} is {getattr(self, name)}, it must be at least 2")

    @property
    def direction(self) -> tuple[str, str]:
        """The language that is translated, and the one into which."""
        source, _, target = self.languages.partition("-")
        return (target, source) if self.reverse else (source, target)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How it is learnt."""

    steps: int = 1_000_000
    """Optimiser steps in all."""
    batch_size: int = 1024
    """Sequences a step, over all ranks."""
    accumulate: int = 1
    """Parts that each rank's share of the batch is cut into to save memory; the result is the same."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """How several ranks (torchrun) hold the model: each all of it (`ddp`), or each a part (`fsdp`), for
    models that do not fit one GPU; `auto`: ddp. Without torchrun it has no effect."""
    optimiser: Literal["adam", "muon"] = "adam"
    """`adam` (the paper) or `muon` for the blocks' matrices, with Adam for the rest."""
    learning_rate: float = 1e-4
    """Peak learning rate."""
    beta1: float = 0.9
    """Adam's decay of the first moment."""
    beta2: float = 0.99
    """Adam's decay of the second moment."""
    momentum: float = 0.95
    """Muon's momentum."""
    label_smoothing: float = 0.0
    """Share of the target that goes to all tokens alike; autoregressive translators only."""
    schedule: Literal["constant", "inverse_sqrt"] = "constant"
    """The learning rate after its warm-up: constant, or falling with the root of the steps."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly."""
    decay_steps: int = 0
    """Last steps, over which the learning rate falls linearly to zero."""
    clip_norm: float = 1.0
    """Largest norm of the gradient; 0 is off. The warp is outside of it."""
    average_decay: float = 0.0
    """Decay of the moving average of the weights that sampling uses; 0: the weights themselves."""
    seed: int = 0
    """Seed of everything random."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; `auto`: on the GPU if there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the network; `auto`: bfloat16 autocast on a GPU, float32 on a CPU."""
    compile: Literal["auto", "on", "graphs", "off"] = "auto"
    """Compile the loss with torch.compile; `graphs`: and capture whole steps as a CUDA graph, which saves
    the time of launching many small kernels (on one GPU; on several it is `on`); `auto`: `graphs` on
    a GPU, `off` elsewhere."""
    log_every: int = 10
    """Steps between lines of metrics.jsonl."""
    validate_every: int = 5_000
    """Steps between validations; 0: only at the end."""
    valid_sequences: int = 256
    """Held-out sequences that are validated, at each noise level."""
    checkpoint_every: int = 5_000
    """Steps between checkpoints; 0: only at the end."""
    keep_checkpoints: int = 3
    """How many checkpoints are kept."""
    patience: int = 0
    """Stop after this many validations without a new best loss, and keep the best; 0: never stop early."""

    def __post_init__(self) -> None:
        for name in (
            "batch_size",
            "accumulate",
            "log_every",
            "valid_sequences",
            "keep_checkpoints",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"training.{name} is {getattr(self, name)}, it must be at least 1")
        for name in (
            "steps",
            "warmup_steps",
            "decay_steps",
            "clip_norm",
            "validate_every",
            "patience",
        ):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"training.{name} is {getattr(self, name)}, it must not be negative"
                )
        if self.learning_rate <= 0:
            raise ValueError(f"training.learning_rate is {self.learning_rate}, it must be positive")
        for name in ("average_decay", "momentum", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"training.{name} is {getattr(self, name)}, it must be in [0, 1)")
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"training.batch_size ({self.batch_size}) must be a multiple of "
                f"training.accumulate ({self.accumulate})"
            )
        if self.compile == "graphs" and self.strategy == "fsdp":
            raise ValueError("training.compile graphs cannot shard the model (fsdp): choose on")
        if self.schedule == "inverse_sqrt" and not self.warmup_steps:
            raise ValueError(
                "training.schedule inverse_sqrt falls from the end of the warm-up: set "
                "training.warmup_steps above 0"
            )
        if self.patience and not self.validate_every:
            raise ValueError(
                "training.patience counts validations: set training.validate_every above 0"
            )


@dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """How tokens are drawn: temperature, then the top k, then the nucleus."""

    temperature: float = 1.0
    """Divides the logits; 0 always takes the most likely token."""
    top_k: int = 0
    """Keep this many of the most likely tokens; 0 keeps all."""
    nucleus: float = 1.0
    """Keep the most likely tokens up to this mass."""
    suppress_eos: bool = False
    """Never end a document: every sequence is filled, as the paper does for MAUVE (§6.5)."""

    def __post_init__(self) -> None:
        for name in ("temperature", "top_k"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, it must not be negative")
        if not 0 < self.nucleus <= 1:
            raise ValueError(f"nucleus is {self.nucleus}, it must be above 0 and at most 1")


@dataclass(frozen=True, kw_only=True)
class BeamConfig:
    """How widely is searched, and for what."""

    beam_size: int = 4
    """Hypotheses kept a sentence."""
    length_penalty: float = 0.6
    """α; 0 compares plain ln p, larger values prefer longer targets."""
    max_length: int | None = None
    """Most tokens of a target, with its EOS; none: as many as the model's."""

    def __post_init__(self) -> None:
        if self.beam_size < 1:
            raise ValueError(f"beam_size is {self.beam_size}, it must be at least 1")
        if self.max_length is not None and self.max_length < 1:
            raise ValueError(f"max_length is {self.max_length}, it must be at least 1")

    def penalty(self, length: int) -> float:
        """What ln p of a target of this length is divided by."""
        return ((5 + length) / 6) ** self.length_penalty


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that defines a run."""

    task: Literal["text", "translation"] = "text"
    """`text`: a language model; `translation`: an encoder-decoder."""
    model: Literal["diffusion", "autoregressive"] = "diffusion"
    """`diffusion`, or `autoregressive`: the baseline and the judge, of the same blocks."""
    data: DataConfig = field(default_factory=DataConfig)
    process: ProcessConfig = field(default_factory=ProcessConfig)
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    seq2seq: Seq2SeqConfig = field(default_factory=Seq2SeqConfig)
    warp: WarpConfig = field(default_factory=WarpConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    beam: BeamConfig = field(default_factory=BeamConfig)

    def __post_init__(self) -> None:
        prefix = self.objective.prefix_length
        if prefix is not None and prefix >= self.data.length:
            raise ValueError(
                f"objective.prefix_length ({prefix}) must be below data.length ({self.data.length})"
            )
        if self.network.tied_head and self.model != "autoregressive":
            raise ValueError("network.tied_head is for autoregressive models; leave it off")
        if self.task == "translation" and self.training.strategy == "fsdp":
            raise ValueError("translation models are not sharded (fsdp): choose ddp")

    @property
    def unused(self) -> tuple[str, ...]:
        """Sections and settings that a model of this kind does not have."""
        autoregressive, translates = self.model == "autoregressive", self.task == "translation"
        return (
            *(DIFFUSION_ONLY if autoregressive else ("decoding",)),
            *(TEXT_ONLY if translates else TRANSLATION_ONLY),
            *(("data.extra_padding",) if autoregressive else ()),
            *(() if autoregressive and translates else ("beam", "training.label_smoothing")),
        )


DIFFUSION_ONLY = ("process", "embedding", "warp", "objective", "sampling")
TEXT_ONLY = ("network", "data.tokenizer", "data.layout", "data.num_states")
TRANSLATION_ONLY = (
    "seq2seq",
    "data.source_length",
    "data.languages",
    "data.extra_padding",
    "data.subword_sampling",
    "data.reverse",
)


def refuse_unused(config: RunConfig, changes: Iterable[str]) -> None:
    """A setting that a run's model does not have is a mistake, not a thing to ignore."""
    for name in changes:
        if name in config.unused or name.split(".")[0] in config.unused:
            raise ValueError(
                f"{name} is no setting of {config.model} models for {config.task}; leave it out"
            )
