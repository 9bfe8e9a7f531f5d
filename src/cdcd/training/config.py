"""The configuration of a run, and the presets."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from cdcd.diffusion.embedding import EmbeddingConfig
from cdcd.diffusion.objective import ObjectiveConfig
from cdcd.diffusion.process import ProcessConfig
from cdcd.diffusion.sampling import SamplingConfig
from cdcd.diffusion.warping import WarpConfig
from cdcd.networks.decoding import DecodingConfig
from cdcd.networks.language_model import NetworkConfig
from cdcd.settings import unknown


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is learnt from."""

    source: str = "tales"
    """A built-in corpus (`tales`, `markov`), a prepared data set, a text file (one document a line) or a
    folder (one a file)."""
    split: str = "train"
    """Which part of a prepared data set is trained on; a judge is trained on `judge`."""
    tokenizer: Literal["auto", "words", "sentencepiece", "symbols", "bytes"] = "auto"
    """`words` splits at spaces and punctuation, `symbols` at spaces; `auto`: words for built-in corpora,
    else sentencepiece. A prepared data set brings its own."""
    vocab_size: int = 32_000
    """Largest size of the vocabulary that is learnt from the corpus."""
    length: int = 64
    """Tokens in a sequence."""
    layout: Literal["documents", "stream"] = "stream"
    """`documents`: each starts a sequence of its own, the rest is padding; `stream`: one after another."""
    num_documents: int = 60_000
    """Documents drawn from a built-in corpus."""
    num_states: int = 12
    """Number of tokens of the `markov` language."""
    valid_share: float = 0.05
    """Share of the documents held out for validation."""

    def __post_init__(self) -> None:
        if self.length < 2:
            raise ValueError(f"data.length is {self.length}, it must be at least 2")
        if not 0 < self.valid_share < 1:
            raise ValueError(f"data.valid_share is {self.valid_share}, it must be between 0 and 1")
        for name in ("vocab_size", "num_documents", "num_states"):
            if getattr(self, name) < 2:
                raise ValueError(f"data.{name} is {getattr(self, name)}, it must be at least 2")


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
        for name in ("average_decay", "momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"training.{name} is {getattr(self, name)}, it must be in [0, 1)")
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"training.batch_size ({self.batch_size}) must be a multiple of "
                f"training.accumulate ({self.accumulate})"
            )
        if self.compile == "graphs" and self.strategy == "fsdp":
            raise ValueError("training.compile graphs cannot shard the model (fsdp): choose on")
        if self.patience and not self.validate_every:
            raise ValueError(
                "training.patience counts validations: set training.validate_every above 0"
            )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that defines a run."""

    model: Literal["diffusion", "autoregressive"] = "diffusion"
    """`diffusion`, or `autoregressive`: the baseline and the judge, of the same blocks."""
    data: DataConfig = field(default_factory=DataConfig)
    process: ProcessConfig = field(default_factory=ProcessConfig)
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    warp: WarpConfig = field(default_factory=WarpConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)

    def __post_init__(self) -> None:
        prefix = self.objective.prefix_length
        if prefix is not None and prefix >= self.data.length:
            raise ValueError(
                f"objective.prefix_length ({prefix}) must be below data.length ({self.data.length})"
            )
        if self.network.tied_head and self.model != "autoregressive":
            raise ValueError("network.tied_head is for autoregressive models; leave it off")


DIFFUSION_ONLY = ("process", "embedding", "warp", "objective", "sampling")
AUTOREGRESSIVE_ONLY = ("decoding",)


def refuse_unused(config: RunConfig, changes: Iterable[str]) -> None:
    """A setting that a run's model does not have is a mistake, not a thing to ignore."""
    autoregressive = config.model == "autoregressive"
    unused = DIFFUSION_ONLY if autoregressive else AUTOREGRESSIVE_ONLY
    for name in changes:
        if name.split(".")[0] in unused:
            raise ValueError(f"{name} is no setting of {config.model} models; leave it out")


def base() -> RunConfig:
    """The paper's base model (§6.1): 8 blocks of 1024, one million steps of 1024 × 64 tokens."""
    return RunConfig()


def large() -> RunConfig:
    """The paper's 1.3B model (§6.5): 24 blocks of 2048, 600,000 steps of 2048 × 256 tokens."""
    return RunConfig(
        data=DataConfig(length=256),
        network=NetworkConfig(num_blocks=24, width=2048, num_heads=16),
        training=TrainingConfig(steps=600_000, batch_size=2048, accumulate=16),
    )


def small() -> RunConfig:
    """A model for one GPU and a few minutes: 8 blocks of 512, vocabulary 8192."""
    return RunConfig(
        data=DataConfig(vocab_size=8192),
        embedding=EmbeddingConfig(dim=128),
        network=NetworkConfig(num_blocks=8, width=512, num_heads=8),
        warp=WarpConfig(bins="log"),
        training=TrainingConfig(
            steps=20_000,
            batch_size=512,
            learning_rate=5e-4,
            warmup_steps=500,
            decay_steps=4_000,
            average_decay=0.999,
            validate_every=1_000,
            checkpoint_every=1_000,
        ),
    )


def demo() -> RunConfig:
    """The tales in a few minutes on two CPU cores."""
    return RunConfig(
        data=DataConfig(length=44, layout="documents", num_documents=80_000, vocab_size=2048),
        process=ProcessConfig(t_min=0.5, t_max=20.0),
        embedding=EmbeddingConfig(dim=32, init_scale=0.05),
        network=NetworkConfig(num_blocks=3, width=96, num_heads=4, mlp_ratio=2, time_units=64),
        warp=WarpConfig(bins="log", learning_rate=0.02, average_decay=0.95, uniformity=0.05),
        objective=ObjectiveConfig(self_conditioned_share=0.75),
        training=TrainingConfig(
            steps=2_500,
            batch_size=64,
            optimiser="muon",
            learning_rate=8e-3,
            momentum=0.9,
            beta2=0.98,
            warmup_steps=30,
            decay_steps=600,
            average_decay=0.987,
            seed=2,  # One in three seeds is this good in so few steps: see the README.
            validate_every=1_000,
            valid_sequences=64,
            checkpoint_every=500,
            compile="off",
        ),
        sampling=SamplingConfig(num_steps=100, score_temperature=0.8),
    )


PRESETS: dict[str, Callable[[], RunConfig]] = {
    "demo": demo,
    "small": small,
    "base": base,
    "large": large,
}


def preset(name: str) -> RunConfig:
    """A preset by its name."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]()
