"""New models and the tasks that train them, by the configuration of a run."""

import torch
from torch import Tensor

from cdcd.config import RunConfig
from cdcd.diffusion.warping import TimeWarp
from cdcd.networks.autoregressive_text import AutoregressiveTextNetwork
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork
from cdcd.networks.diffusion_text import DiffusionTextNetwork
from cdcd.networks.diffusion_translation import DiffusionTranslationNetwork
from cdcd.networks.masked_text import MaskedTextNetwork
from cdcd.training.compiling import compile_blocks
from cdcd.training.distillation import DistillationTask
from cdcd.training.distributed import ALONE, World
from cdcd.training.parallel import make_engine
from cdcd.training.tasks import (
    AnyNetwork,
    AutoregressiveTextTask,
    AutoregressiveTranslationTask,
    DiffusionTextTask,
    DiffusionTranslationTask,
    MaskedTextTask,
    Task,
)


def build_model(config: RunConfig, vocab_size: int) -> AnyNetwork:
    """Returns a newly initialised network, a function of the seed; the global generator is left as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(config.training.seed)
        sizes = {"vocab_size": vocab_size, "length": config.data.length}
        if config.task == "translation":
            sizes["source_length"] = config.data.source_length
        diffusion = (config.embedding, config.process)
        match config.task, config.model:
            case "text", "diffusion":
                return DiffusionTextNetwork(config.network, *diffusion, **sizes)
            case "text", "autoregressive":
                return AutoregressiveTextNetwork(config.network, **sizes)
            case "text", "masked":
                return MaskedTextNetwork(config.network, **sizes)
            case "translation", "diffusion":
                return DiffusionTranslationNetwork(config.seq2seq, *diffusion, **sizes)
            case _:
                return AutoregressiveTranslationNetwork(config.seq2seq, **sizes)


def meta_weights(config: RunConfig, vocab_size: int) -> dict[str, Tensor]:
    """Returns the tensors that a run's checkpoints hold as weights, on the meta device."""
    with torch.device("meta"):
        model = build_model(config, vocab_size)
        groups = {"model": model.state_dict()}
        if config.training.average_decay:
            groups["average"] = dict(model.named_parameters())
        if config.model == "diffusion":
            groups["warp"] = TimeWarp(config.warp, config.process).state_dict()
        if config.distillation.teacher_steps:
            groups["teacher"] = model.state_dict()
    return {f"{group}.{n}": tensor for group, ts in groups.items() for n, tensor in ts.items()}


def make_task(
    config: RunConfig,
    vocab_size: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    world: World = ALONE,
) -> Task:
    """Returns the task of a run, its network spread over the ranks."""
    model = build_model(config, vocab_size).to(device)
    is_distilled = config.distillation.teacher_steps > 0
    if is_distilled:
        model.embedding.requires_grad_(False)
    engine = make_engine(config.training.strategy, world, model, device)
    if engine.is_sharded:
        compile_blocks(model.blocks, config.training.compile, device)
    settings = {"device": device, "dtype": dtype, "engine": engine, "world": world}
    match model:
        case DiffusionTextNetwork() if is_distilled:
            return DistillationTask(config, model, **settings)
        case DiffusionTextNetwork():
            return DiffusionTextTask(config, model, **settings)
        case DiffusionTranslationNetwork():
            return DiffusionTranslationTask(config, model, **settings)
        case AutoregressiveTextNetwork():
            return AutoregressiveTextTask(config, model, **settings)
        case MaskedTextNetwork():
            return MaskedTextTask(config, model, **settings)
        case AutoregressiveTranslationNetwork():
            return AutoregressiveTranslationTask(config, model, **settings)
