"""Presets: configurations by name, of a diffusion model, its autoregressive baseline or a masked model."""

from collections.abc import Callable
from dataclasses import replace

from cdcd.config import BeamConfig, DataConfig, MaskPredictConfig, RunConfig, TrainingConfig
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


def base(model: str = "diffusion") -> RunConfig:
    """Returns the paper's base model (§6.1): 8 blocks of 1024, a million steps of 1024 × 64 tokens."""
    return RunConfig()


def large(model: str = "diffusion") -> RunConfig:
    """Returns the paper's 1.3B model (§6.5): 24 blocks of 2048, 600,000 steps of 2048 × 256 tokens.

    The baseline has as many tokens in a batch, in longer sequences: 256 × 2048.
    """
    batch_size, length = (256, 2048) if model == "autoregressive" else (2048, 256)
    return RunConfig(
        data=DataConfig(length=length),
        network=NetworkConfig(num_blocks=24, width=2048, num_heads=16),
        training=TrainingConfig(steps=600_000, batch_size=batch_size, accumulate=16),
    )


def small(model: str = "diffusion") -> RunConfig:
    """Returns a model for one GPU and a few minutes: 8 blocks of 512, vocabulary 8192."""
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


def on_cpu(steps: int, decay_steps: int) -> TrainingConfig:
    """Returns the training of a model that learns a built-in corpus in minutes."""
    return TrainingConfig(
        steps=steps,
        batch_size=64,
        optimiser="muon",
        learning_rate=8e-3,
        momentum=0.9,
        beta2=0.98,
        warmup_steps=30,
        decay_steps=decay_steps,
        average_decay=0.987,
        validate_every=500,
        valid_sequences=64,
        checkpoint_every=500,
        compile="off",
    )


def demo(model: str = "diffusion") -> RunConfig:
    """Returns a model that learns the tales in a few minutes on two CPU cores."""
    return RunConfig(
        data=DataConfig(length=44, layout="documents", num_documents=80_000, vocab_size=2048),
        process=ProcessConfig(t_min=0.5, t_max=20.0),
        embedding=EmbeddingConfig(dim=32, init_scale=0.05),
        network=NetworkConfig(num_blocks=3, width=96, num_heads=4, mlp_ratio=2, time_units=64),
        warp=WarpConfig(bins="log", learning_rate=0.02, average_decay=0.95, uniformity=0.05),
        objective=ObjectiveConfig(self_conditioned_share=0.75),
        # One in three seeds is this good in so few steps: see the README.
        training=replace(on_cpu(2_500, decay_steps=600), seed=2, validate_every=1_000),
        sampling=SamplingConfig(num_steps=100, score_temperature=0.8),
    )


def wmt(size: Seq2SeqConfig, training: TrainingConfig) -> RunConfig:
    """Returns a translator of the paper (§6.6) by its size and its training."""
    return RunConfig(
        task="translation",
        data=DataConfig(length=160, source_length=160, vocab_size=32_768),
        seq2seq=size,
        objective=ObjectiveConfig(masking="none"),
        training=replace(training, patience=20),
        sampling=SamplingConfig(score_temperature=0.8, guidance_scale=4.0),
        beam=BeamConfig(beam_size=4, length_penalty=0.6),
    )


def vaswani(size: Seq2SeqConfig, steps: int, batch_size: int) -> TrainingConfig:
    """Returns the training of the autoregressive translators, that of Vaswani et al. (2017).

    Their rate, width^-0.5 · min(step^-0.5, step · warmup^-1.5), has its peak at the end of the warm-up.

    NOTE(paper): no checkpoints are averaged, and a batch is a number of pairs, not of tokens.
    """
    warmup = 4_000
    return TrainingConfig(
        steps=steps,
        batch_size=batch_size,
        learning_rate=(size.width * warmup) ** -0.5,
        schedule="inverse_sqrt",
        warmup_steps=warmup,
        beta2=0.98,
        label_smoothing=0.1,
    )


def wmt_base(model: str = "diffusion") -> RunConfig:
    """Returns the paper's Transformer base for WMT: 6 + 6 blocks of 512, batches of 512 pairs.

    The diffusion model trains for two million steps, the baseline for 100,000 as in Vaswani et al.
    """
    size = transformer_base()
    if model == "autoregressive":
        return wmt(size, vaswani(size, steps=100_000, batch_size=512))
    return wmt(size, TrainingConfig(steps=2_000_000, batch_size=512))


def wmt_big(model: str = "diffusion") -> RunConfig:
    """Returns the paper's Transformer big for WMT: 6 + 6 blocks of 1024, batches of 1024 pairs.

    The diffusion model trains for two million steps, the baseline for 300,000 as in Vaswani et al.
    """
    size = transformer_big()
    if model == "autoregressive":
        return wmt(size, vaswani(size, steps=300_000, batch_size=1024))
    return wmt(size, TrainingConfig(steps=2_000_000, batch_size=1024))


def multi30k(model: str = "diffusion") -> RunConfig:
    """Returns a translator of captions for one GPU and a few minutes: 4 + 4 blocks of 192."""
    config = RunConfig(
        task="translation",
        # Words that are split in other ways have more pieces: hence the longer source.
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
        # With few pairs, most is to be learnt at high noise, where only the source says anything.
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
        decoder="mask-predict",
        sampling=SamplingConfig(num_steps=40, score_temperature=0.8, warp_uniformity=0.8),
        # The weight was chosen on 450 of the validation pairs.
        mask_predict=MaskPredictConfig(num_lengths=4, confidence_weight=45.0),
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
    # The baseline is best before it has seen any pair often: subword sampling costs it 0.1 BLEU.
    return replace(
        config,
        data=replace(config.data, source_length=40, subword_sampling=0.0),
        seq2seq=replace(config.seq2seq, source_dropout=0.0),
        training=training,
    )


def numerals(model: str = "diffusion") -> RunConfig:
    """Returns a translator of dates, times and prices, trained in minutes on two CPU cores."""
    return RunConfig(
        task="translation",
        data=DataConfig(source="numerals", length=32, source_length=32, num_documents=60_000),
        process=ProcessConfig(t_min=0.5, t_max=20.0),
        embedding=EmbeddingConfig(dim=32, init_scale=0.05),
        seq2seq=replace(transformer_tiny(), width=96, hidden=192, dropout=0.0, time_units=64),
        warp=WarpConfig(bins="log", learning_rate=0.02, average_decay=0.95, uniformity=0.05),
        objective=ObjectiveConfig(masking="none"),
        training=on_cpu(1_000, decay_steps=350),
        sampling=SamplingConfig(num_steps=10, score_temperature=0.8),
    )


TEXT: dict[str, Callable[[str], RunConfig]] = {
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
    """Returns a preset by its name, of a diffusion model, its autoregressive baseline or a masked model."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return override((TEXT | TRANSLATION)[name](model), {"model": model})
