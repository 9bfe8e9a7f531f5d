"""Presets: configurations by name."""

from collections.abc import Callable
from dataclasses import replace

from cdcd.config import BeamConfig, DataConfig, RunConfig, TrainingConfig
from cdcd.diffusion.embedding import EmbeddingConfig
from cdcd.diffusion.objective import ObjectiveConfig
from cdcd.diffusion.process import ProcessConfig
from cdcd.diffusion.sampling import SamplingConfig
from cdcd.diffusion.warping import WarpConfig
from cdcd.networks.diffusion_text import NetworkConfig
from cdcd.networks.encoder_decoder import (
    Seq2SeqConfig,
    transformer_base,
    transformer_big,
    transformer_tiny,
)
from cdcd.settings import override, unknown


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
        embedding=EmbeddingConfig(dim=128, init_scale=0.05),
        network=NetworkConfig(num_blocks=8, width=512, num_heads=8),
        warp=WarpConfig(bins="log"),
        training=TrainingConfig(
            steps=20_000,
            batch_size=512,
            optimiser="muon",
            learning_rate=2e-3,
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


def wmt(size: Seq2SeqConfig, training: TrainingConfig, model: str) -> RunConfig:
    """What the paper's translators have in common (§6.6)."""
    config = RunConfig(
        task="translation",
        data=DataConfig(length=160, source_length=160, vocab_size=32_768),
        seq2seq=size,
        objective=ObjectiveConfig(masking="none"),
        training=replace(training, patience=20),
        sampling=SamplingConfig(score_temperature=0.8, guidance_scale=4.0),
        beam=BeamConfig(beam_size=4, length_penalty=0.6),
    )
    return vaswani(config) if model == "autoregressive" else config


def vaswani(config: RunConfig) -> RunConfig:
    """The autoregressive translator of the same size and data, trained as in Vaswani et al. (2017).

    Their rate, width^-0.5 · min(step^-0.5, step · warmup^-1.5), has its peak at the end of the warm-up.
    """
    warmup = 4_000
    training = replace(
        config.training,
        learning_rate=(config.seq2seq.width * warmup) ** -0.5,
        schedule="inverse_sqrt",
        warmup_steps=warmup,
        beta2=0.98,
        label_smoothing=0.1,
        steps=min(config.training.steps, 300_000),
    )
    return replace(config, model="autoregressive", training=training)


def wmt_base(model: str = "diffusion") -> RunConfig:
    """The paper's Transformer base for WMT: 6 + 6 blocks of 512, two million steps of 512 sentences."""
    return wmt(transformer_base(), TrainingConfig(steps=2_000_000, batch_size=512), model)


def wmt_big(model: str = "diffusion") -> RunConfig:
    """The paper's Transformer big for WMT: 6 + 6 blocks of 1024, two million steps of 1024 sentences."""
    return wmt(transformer_big(), TrainingConfig(steps=2_000_000, batch_size=1024), model)


def multi30k(model: str = "diffusion") -> RunConfig:
    """A translator of captions for one GPU and a few minutes: 4 + 4 blocks of 192."""
    config = RunConfig(
        task="translation",
        # Words in other pieces are longer; the room is for them.
        data=DataConfig(length=40, source_length=48, vocab_size=8192, subword_sampling=0.2),
        embedding=EmbeddingConfig(dim=64, init_scale=0.05),
        seq2seq=Seq2SeqConfig(
            num_encoder_blocks=4,
            num_decoder_blocks=4,
            width=192,
            hidden=512,
            num_heads=4,
            dropout=0.3,
            source_dropout=0.2,
            relative_positions=True,
        ),
        # Most of what is to be learnt from few pairs is told from the source alone, at high noise.
        warp=WarpConfig(bins="log", uniformity=0.8),
        objective=ObjectiveConfig(masking="random"),
        training=TrainingConfig(
            steps=8_500,
            batch_size=512,
            optimiser="muon",
            learning_rate=2e-3,
            warmup_steps=500,
            decay_steps=4_500,
            average_decay=0.999,
            validate_every=1_500,
            valid_sequences=1_024,
            checkpoint_every=1_500,
        ),
        sampling=SamplingConfig(
            solver="settle",
            num_steps=40,
            settle_lengths=4,
            score_temperature=0.8,
            warp_uniformity=0.8,
        ),
        beam=BeamConfig(length_penalty=1.0),
    )
    if model == "diffusion":
        return config
    training = replace(
        config.training,
        steps=2_100,
        warmup_steps=200,
        decay_steps=1_500,
        average_decay=0.99,
        label_smoothing=0.1,
        validate_every=300,
        checkpoint_every=300,
    )
    # The baseline is at its best before it sees a pair often: 0.1 BLEU worse with drawn pieces.
    return replace(
        config,
        model="autoregressive",
        data=replace(config.data, source_length=40, subword_sampling=0.0),
        seq2seq=replace(config.seq2seq, source_dropout=0.0),
        training=training,
    )


def numerals(model: str = "diffusion") -> RunConfig:
    """Dates, times and prices from English to German, in a few minutes on two CPU cores."""
    config = RunConfig(
        task="translation",
        data=DataConfig(source="numerals", length=32, source_length=32, num_documents=60_000),
        process=ProcessConfig(t_min=0.5, t_max=20.0),
        embedding=EmbeddingConfig(dim=32, init_scale=0.05),
        seq2seq=replace(transformer_tiny(), width=96, hidden=192, dropout=0.0, time_units=64),
        warp=WarpConfig(bins="log", learning_rate=0.02, average_decay=0.95, uniformity=0.05),
        objective=ObjectiveConfig(masking="none"),
        training=TrainingConfig(
            steps=1_000,
            batch_size=64,
            optimiser="muon",
            learning_rate=8e-3,
            momentum=0.9,
            beta2=0.98,
            warmup_steps=30,
            decay_steps=350,
            average_decay=0.987,
            validate_every=500,
            valid_sequences=64,
            checkpoint_every=500,
            compile="off",
        ),
        sampling=SamplingConfig(num_steps=10, score_temperature=0.8),
    )
    return replace(config, model="autoregressive") if model == "autoregressive" else config


TEXT: dict[str, Callable[[], RunConfig]] = {
    "demo": demo,
    "small": small,
    "base": base,
    "large": large,
}
TRANSLATION: dict[str, Callable[[str], RunConfig]] = {
    "numerals": numerals,
    "multi30k": multi30k,
    "wmt-base": wmt_base,
    "wmt-big": wmt_big,
}
PRESETS = (*TEXT, *TRANSLATION)


def preset(name: str, model: str = "diffusion") -> RunConfig:
    """A preset by its name, of a diffusion model or of its autoregressive baseline."""
    if name in TRANSLATION:
        return TRANSLATION[name](model)
    if name not in TEXT:
        raise unknown("preset", name, PRESETS)
    return override(TEXT[name](), {"model": model})
