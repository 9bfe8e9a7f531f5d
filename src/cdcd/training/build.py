"""New models and the tasks that train them, by the configuration of a run."""

import torch

from cdcd.networks.autoregressive import AutoregressiveModel
from cdcd.networks.language_model import LanguageModel
from cdcd.networks.translation import TranslationModel
from cdcd.networks.translator import AutoregressiveTranslator
from cdcd.training.compiling import compile_blocks
from cdcd.training.config import RunConfig
from cdcd.training.distributed import ALONE, World
from cdcd.training.parallel import make_engine
from cdcd.training.tasks import AutoregressiveTask, DiffusionTask, Task
from cdcd.training.translation import AutoregressiveTranslationTask, TranslationTask

AnyModel = LanguageModel | AutoregressiveModel | TranslationModel | AutoregressiveTranslator


def build_model(config: RunConfig, vocab_size: int) -> AnyModel:
    """A newly initialised model, a function of the seed; the global generator is left as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(config.training.seed)
        if config.task == "translation":
            return _build_translator(config, vocab_size)
        return _build_language_model(config, vocab_size)


def _build_language_model(
    config: RunConfig, vocab_size: int
) -> LanguageModel | AutoregressiveModel:
    sizes = {"vocab_size": vocab_size, "length": config.data.length}
    if config.model == "autoregressive":
        return AutoregressiveModel(config.network, **sizes, tied=config.network.tied_head)
    return LanguageModel(config.network, config.embedding, config.process, **sizes)


def _build_translator(
    config: RunConfig, vocab_size: int
) -> TranslationModel | AutoregressiveTranslator:
    sizes = {
        "vocab_size": vocab_size,
        "source_length": config.data.source_length,
        "length": config.data.length,
    }
    if config.model == "autoregressive":
        return AutoregressiveTranslator(config.seq2seq, **sizes)
    return TranslationModel(config.seq2seq, config.embedding, config.process, **sizes)


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
        case TranslationModel():
            return TranslationTask(config, model, **where)
        case AutoregressiveTranslator():
            return AutoregressiveTranslationTask(config, model, **where)
        case AutoregressiveModel():
            return AutoregressiveTask(config, model, **where)
        case LanguageModel():
            return DiffusionTask(config, model, **where)
