"""The configuration of a run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from cdcd.diffusion.distillation import DistillationConfig
from cdcd.diffusion.embedding import EmbeddingConfig
from cdcd.diffusion.masked import UnmaskingConfig
from cdcd.diffusion.objective import ObjectiveConfig
from cdcd.diffusion.process import ProcessConfig
from cdcd.diffusion.sampling import SamplingConfig
from cdcd.diffusion.warping import WarpConfig
from cdcd.networks.diffusion_text import NetworkConfig
from cdcd.networks.encoder_decoder import Seq2SeqConfig
from cdcd.settings import (
    Batch,
    BelowOne,
    Bounds,
    Count,
    Greedy,
    Length,
    OpenShare,
    PositiveShare,
    Rate,
    Repeats,
    Seed,
    Settings,
    Share,
    Size,
    Steps,
    VocabSize,
    Weight,
    from_dict,
)


@dataclass(frozen=True, kw_only=True)
class DataConfig(Settings, section="data"):
    """The corpus, and how it becomes sequences of tokens."""

    source: str = "tales"
    """A built-in corpus (`tales`, `markov`), a prepared data set, the address of one (`s3://…`, `hf://…`), a
    text file (one document a line) or a folder (one document a file). For translation: `numerals` or a
    prepared data set of pairs."""
    split: str = "train"
    """Split of a prepared data set that is trained on; a judge is trained on `judge`."""
    tokenizer: Literal["auto", "words", "sentencepiece", "symbols", "bytes"] = "auto"
    """Tokenizer of a corpus that is not prepared: `words` splits at spaces and punctuation, `symbols` at
    spaces; `auto`: words for built-in corpora, else sentencepiece."""
    vocab_size: VocabSize = 32_000
    """Largest size of a vocabulary that is learnt from the corpus."""
    length: Length = 64
    """Tokens in a sequence; for translation, in the target, with its EOS and padding."""
    source_length: Length = 64
    """Largest number of tokens in a source, with its EOS; longer pairs are left out."""
    languages: str = "en-de"
    """Language tags of the pairs' sources and targets."""
    subword_sampling: Share = 0.0
    """Subword regularisation: in training, words of sources are split into pieces at random, each split with
    its probability to this power (0.2 where pairs are few); 0: always the likeliest split."""
    random_length_share: Share = 0.0
    """Share of the batches whose sequences are cut to one random length, from 2 tokens up; for texts."""
    reverse: bool = False
    """Translate from the targets of a prepared data set to its sources."""
    layout: Literal["documents", "stream"] = "stream"
    """`documents`: every document starts a sequence, which is padded; `stream`: documents follow one another,
    cut into sequences."""
    num_documents: Annotated[int, Bounds(2, 1_000_000_000)] = 60_000
    """Documents drawn from a built-in corpus."""
    num_states: Annotated[int, Bounds(2, 4_096)] = 12
    """Words of the `markov` language."""
    valid_share: OpenShare = 0.05
    """Share of the documents held out for validation, if the corpus is not prepared."""
    split_seed: Seed | None = None
    """Seed of the split into documents to train on and held-out ones, if the corpus is not prepared, and
    of the documents of a built-in corpus; none: `training.seed`. With `--init-from`, the other run's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[a-z]{2,3}-[a-z]{2,3}", self.languages):
            raise ValueError(
                f"data.languages is {self.languages!r}; give two language tags, such as en-de"
            )

    @property
    def direction(self) -> tuple[str, str]:
        """The language that is translated, and the language of the translation."""
        source, _, target = self.languages.partition("-")
        return (target, source) if self.reverse else (source, target)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Settings, section="training"):
    """Optimisation, precision, validation and checkpoints."""

    steps: Steps = 1_000_000
    """Number of optimiser steps."""
    batch_size: Batch = 1024
    """Sequences in a step, over all ranks."""
    accumulate: Batch = 1
    """Parts that every rank's share of the batch is computed in, to save memory; the result is the same."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """Placement of the model under torchrun: the whole model on every rank (`ddp`), or a part on each (`fsdp`),
    for models that do not fit one GPU; `auto`: ddp. A single process holds the whole model."""
    optimiser: Literal["adam", "muon"] = "adam"
    """`adam` (the paper) or `muon` for the blocks' matrices, with Adam for the rest."""
    learning_rate: Rate = 1e-4
    """Peak learning rate."""
    beta1: BelowOne = 0.9
    """Adam's decay of the first moment."""
    beta2: BelowOne = 0.99
    """Adam's decay of the second moment."""
    momentum: BelowOne = 0.95
    """Muon's momentum."""
    weight_decay: Annotated[float, Bounds(0, 100)] = 0.0
    """Decoupled weight decay: the matrices of linear layers shrink by this share of the learning rate, each
    step; embeddings, biases and norms do not."""
    label_smoothing: BelowOne = 0.0
    """Probability that the training target spreads evenly over all tokens; for autoregressive translators."""
    schedule: Literal["constant", "inverse_sqrt"] = "constant"
    """Learning rate after its warm-up: constant, or falling with the square root of the step."""
    warmup_steps: Steps = 0
    """First steps, over which the learning rate rises linearly."""
    decay_steps: Steps = 0
    """Last steps, over which the learning rate falls linearly to zero."""
    clip_norm: Weight = 1.0
    """Largest norm of the gradient, without the warp's; 0: no clipping."""
    average_decay: BelowOne = 0.0
    """Decay of the moving average of the weights, which sampling uses; 0: no average."""
    seed: Seed = 0
    """Seed of everything random."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on; `auto`: the GPU if there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the network; `auto`: bfloat16 autocast on a GPU, float32 on a CPU."""
    compile: Literal["auto", "on", "graphs", "off"] = "auto"
    """`on`: compile the loss with torch.compile; `graphs`: also capture whole steps as a CUDA graph, which saves
    the time of launching small kernels (on one GPU; on several as `on`); `auto`: `graphs` on a GPU, else `off`."""
    log_every: Count = 10
    """Steps between lines of metrics.jsonl."""
    tracker: Literal["auto", "off", "tensorboard", "wandb", "trackio"] = "auto"
    """Program that shows the numbers of metrics.jsonl too; `auto`: TensorBoard where it is installed."""
    validate_every: Steps = 5_000
    """Steps between validations; 0: only at the end."""
    valid_sequences: Repeats = 256
    """Held-out sequences that a validation reads, at every noise level."""
    checkpoint_every: Steps = 5_000
    """Steps between checkpoints; 0: only at the end."""
    keep_checkpoints: Repeats = 3
    """Number of checkpoints that are kept."""
    patience: Steps = 0
    """Validations without a new best loss after which training stops and keeps the best; 0: never stop early."""
    keep_best: bool = False
    """Train to the last step and then go back to the checkpoint of the best validation, as with `patience`."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
        for name, verb in (("patience", "counts"), ("keep_best", "compares")):
            if getattr(self, name) and not self.validate_every:
                raise ValueError(
                    f"training.{name} {verb} validations: set training.validate_every above 0"
                )


@dataclass(frozen=True, kw_only=True)
class DecodingConfig(Settings):
    """Autoregressive sampling: logits are divided by the temperature, then the top k, then the nucleus is kept."""

    temperature: Greedy = 1.0
    """Divisor of the logits; 0: always the most likely token."""
    top_k: Annotated[int, Bounds(0, 1 << 24)] = 0
    """Number of the most likely tokens that are kept; 0: all."""
    nucleus: PositiveShare = 1.0
    """Probability mass of the most likely tokens that are kept."""
    suppress_eos: bool = False
    """Never end a document: every sequence is filled, as the paper does for MAUVE (§6.5)."""


@dataclass(frozen=True, kw_only=True)
class BeamConfig(Settings):
    """Beam search of autoregressive translators."""

    beam_size: Annotated[int, Bounds(1, 1_000)] = 4
    """Hypotheses that are kept for a sentence."""
    length_penalty: Annotated[float, Bounds(-50, 50)] = 0.6
    """Exponent α of the length penalty: 0 compares plain ln p, larger values prefer longer targets."""
    max_length: Size | None = None
    """Largest number of tokens in a target, with its EOS; none: the model's."""

    def penalty(self, length: int) -> float:
        """Returns the divisor of ln p of a target of this length."""
        return ((5 + length) / 6) ** self.length_penalty


Decoder = Literal["ode", "mask-predict"]


@dataclass(frozen=True, kw_only=True)
class MaskPredictConfig(Settings):
    """Mask-predict decoding of diffusion models trained with masks: confident predictions become given tokens."""

    num_rounds: Repeats = 40
    """Largest number of network calls; in each, an equal share of the tokens becomes given."""
    temperature: Greedy = 0.0
    """Temperature at which tokens, and lengths of translations, are drawn; 0: the most probable tokens, and
    lengths from the middle of their distribution, or spread evenly over it for several samples."""
    num_lengths: Size = 1
    """Lengths at which a translation is tried; the one with the highest confidence is kept. By default 1 where
    several samples are drawn, since they differ in length."""
    confidence_weight: Weight = 0.0
    """Points of BLEU or chrF for each nat of confidence a token, where one of several translations is chosen;
    0: the likeness of the translations alone."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings):
    """Everything that defines a run."""

    task: Literal["text", "translation"] = "text"
    """`text`: a language model; `translation`: an encoder-decoder."""
    model: Literal["diffusion", "autoregressive", "masked"] = "diffusion"
    """`diffusion`, or of the same blocks: `autoregressive`, the baseline and the judge, or `masked`, diffusion
    that hides tokens, of texts alone."""
    data: DataConfig = field(default_factory=DataConfig)
    process: ProcessConfig = field(default_factory=ProcessConfig)
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    seq2seq: Seq2SeqConfig = field(default_factory=Seq2SeqConfig)
    warp: WarpConfig = field(default_factory=WarpConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    decoder: Decoder = "ode"
    """Decoder of a diffusion model: `ode` (the paper's sampling) or `mask-predict` (no diffusion; see
    docs/translation.md)."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    mask_predict: MaskPredictConfig = field(default_factory=MaskPredictConfig)
    unmasking: UnmaskingConfig = field(default_factory=UnmaskingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    beam: BeamConfig = field(default_factory=BeamConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        prefix = self.objective.prefix_length
        if prefix is not None and prefix >= self.data.length:
            raise ValueError(
                f"objective.prefix_length ({prefix}) must be below data.length ({self.data.length})"
            )
        if self.network.tied_head and self.model != "autoregressive":
            raise ValueError("network.tied_head is for autoregressive models; leave it off")
        if self.network.output_prior and not self.embedding.normalise:
            raise ValueError(
                "network.output_prior needs embeddings of one norm: set embedding.normalise true, or "
                "network.output_prior false"
            )
        is_whole = self.task == "translation" or self.distillation.teacher_steps
        if is_whole and self.training.strategy == "fsdp":
            kind = "distilled" if self.distillation.teacher_steps else "translation"
            raise ValueError(f"{kind} models are not sharded (fsdp): choose ddp")
        if self.task == "translation" and self.model == "masked":
            raise ValueError(
                "model masked is of texts alone: for task translation choose diffusion or autoregressive"
            )


REMOVED = {"data.extra_padding": 0.0, "objective.self_conditioning_lag": 0.0}
"""Settings of earlier versions, with the values at which they did nothing."""


def read_config(values: Mapping[str, Any]) -> RunConfig:
    """Builds a run's configuration from JSON, also from that of an earlier version."""
    if not isinstance(values, Mapping):
        return from_dict(RunConfig, values)
    values = {name: dict(v) if isinstance(v, Mapping) else v for name, v in values.items()}
    for name in ("sampling", *(name.partition(".")[0] for name in REMOVED)):
        if not isinstance(values.get(name, {}), dict):
            raise ValueError(f"{name} is {values[name]!r:.40}, not a section of settings")
    for name, neutral in REMOVED.items():
        section, _, field_name = name.partition(".")
        fields = values.get(section)
        value = fields.pop(field_name, neutral) if isinstance(fields, dict) else neutral
        if value != neutral:
            raise ValueError(
                f"the run was trained with {name} {value}, which this version of cdcd no longer has; "
                f"use the version that trained it (cdcd_version in its config.json)"
            )
    return from_dict(RunConfig, _with_decoder(values))


def _with_decoder(values: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration in which mask-predict decoding is no solver, called `settle`, any more."""
    sampling = values.get("sampling")
    if not isinstance(sampling, dict):
        return values
    former = {"temperature": "settle_temperature", "num_lengths": "settle_lengths"}
    moved = {new: sampling.pop(old) for new, old in former.items() if old in sampling}
    if sampling.get("solver") == "settle":
        values["decoder"] = "mask-predict"
        moved["num_rounds"] = sampling.get("num_steps", SamplingConfig.num_steps)
        sampling["solver"] = "euler"
    return values | ({"mask_predict": moved} if moved else {})
