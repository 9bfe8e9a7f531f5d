"""New models and the tasks that train them, by the configuration of a run."""

import torch

from cdcd.config import RunConfig
from cdcd.networks.autoregressive_text import AutoregressiveTextNetwork
from cdcd.networks.autoregressive_translation import AutoregressiveTranslationNetwork
from cdcd.networks.diffusion_text import DiffusionTextNetwork
from cdcd.networks.diffusion_translation import DiffusionTranslationNetwork
from cdcd.training.compiling import compile_blocks
from cdcd.training.distributed import ALONE, World
from cdcd.training.parallel import make_engine
from cdcd.training.tasks import AutoregressiveTextTask, DiffusionTask, Task
from cdcd.training.translation import AutoregressiveTranslationTask, DiffusionTranslationTask

AnyModel = (
    DiffusionTextNetwork
    | AutoregressiveTextNetwork
    | DiffusionTranslationNetwork
    | AutoregressiveTranslationNetwork
)


def build_model(config: RunConfig, vocab_size: int) -> AnyModel:
    """A newly initialised model, a function of the seed; the global generator is left as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(config.training.seed)
        if config.task == "translation":
            return _build_translator(config, vocab_size)
        return _build_language_model(config, vocab_size)


def _build_language_model(
    config: RunConfig, vocab_size: int
) -> DiffusionTextNetwork | AutoregressiveTextNetwork:
    sizes = {"vocab_size": vocab_size, "length": config.data.length}
    if config.model == "autoregressive":
        return AutoregressiveTextNetwork(config.network, **sizes, tied=config.network.tied_head)
    return DiffusionTextNetwork(config.network, config.embedding, config.process, **sizes)


def _build_translator(
    config: RunConfig, vocab_size: int
) -> DiffusionTranslationNetwork | AutoregressiveTranslationNetwork:
    sizes = {
        "vocab_size": vocab_size,
        "source_length": config.data.source_length,
        "length": config.data.length,
    }
    if config.model == "autoregressive":
        return AutoregressiveTranslationNetwork(config.seq2seq, **sizes)
    return DiffusionTranslationNetwork(config.seq2seq, config.embedding, config.process, **sizes)


def make_task(
    config: RunConfig,
    vocab_size: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    world: World = ALONE,
) -> Task:
    """The task of a run, its model spread over the ranks."""
    model = build_model(config, vocab_size).to(device)
    engine = make_engine(config.training.strategy, world, model, model.blocks, device)
    if engine.is_sharded:
        compile_blocks(model.blocks, config.training.compile, device)
    where = {"device": device, "dtype": dtype, "engine": engine, "world": world}
    match model:
        case DiffusionTranslationNetwork():
            return DiffusionTranslationTask(config, model, **where)
        case AutoregressiveTranslationNetwork():
            return AutoregressiveTranslationTask(config, model, **where)
        case AutoregressiveTextNetwork():
            return AutoregressiveTextTask(config, model, **where)
        case DiffusionTextNetwork():
            return DiffusionTask(config, model, **where)
