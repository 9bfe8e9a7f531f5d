"""The settings of a run that have an effect only together with others, so that the others are refused."""

from cdcd.config import RunConfig
from cdcd.data.corpus import BUILT_IN, BUILT_IN_PAIRS
from cdcd.data.sequences import is_dataset
from cdcd.settings import Effects


def effects(config: RunConfig) -> Effects:
    """Lists the settings of a run that have an effect only together with others."""
    data, objective = config.data, config.objective
    is_diffusion, is_text = config.model == "diffusion", config.task == "text"
    is_autoregressive, is_masked = config.model == "autoregressive", config.model == "masked"
    is_built_in, is_prepared = data.source in BUILT_IN, is_dataset(data.source)
    has_own_words = is_built_in and data.tokenizer in ("auto", "words")
    learns_words = is_text and not (is_prepared or has_own_words or data.tokenizer == "bytes")
    is_drawn = is_built_in or data.source == BUILT_IN_PAIRS
    has_given_tokens = objective.masking != "none" or not is_text
    searches = is_autoregressive and not is_text
    built_in = f"a built-in corpus ({', '.join((*BUILT_IN, BUILT_IN_PAIRS))})"
    return [
        (condition, text, names.split())
        for condition, text, names in (
            (is_diffusion, "model diffusion", "process embedding warp"),
            (is_diffusion, "model diffusion", "objective.loss objective.conditioning_dropout"),
            (
                is_diffusion,
                "model diffusion",
                "objective.self_conditioning objective.self_conditioned_share",
            ),
            (not is_autoregressive, "model diffusion or masked", "objective"),
            (is_diffusion, "model diffusion", "decoder sampling mask_predict"),
            (is_masked, "model masked", "unmasking"),
            (is_diffusion, "model diffusion", "network.time_input network.time_units"),
            (is_diffusion, "model diffusion", "seq2seq.time_units network.output_prior"),
            (is_diffusion, "model diffusion", "network.learnt_positions"),
            (
                is_diffusion and config.network.output_prior,
                "network.output_prior true",
                "network.output_prior_warmup network.output_prior_clip",
            ),
            (is_autoregressive, "model autoregressive", "decoding"),
            (is_text, "task text", "network data.tokenizer data.layout data.num_states"),
            (is_text, "task text", "data.random_length_share"),
            (not is_text, "task translation", "seq2seq data.source_length data.languages"),
            (not is_text, "task translation", "data.subword_sampling data.reverse"),
            (
                searches,
                "model autoregressive with task translation",
                "beam training.label_smoothing",
            ),
            (not is_prepared, "a corpus that is not prepared", "data.tokenizer data.valid_share"),
            (not is_prepared, "a corpus that is not prepared", "data.split_seed"),
            (learns_words, "a vocabulary that is learnt from the corpus", "data.vocab_size"),
            (is_drawn, built_in, "data.num_documents"),
            (data.source == "markov", "data.source markov", "data.num_states"),
            (objective.masking == "mixed", "objective.masking mixed", "objective.prefix_share"),
            (
                objective.masking in ("mixed", "prefix"),
                "objective.masking mixed or prefix",
                "objective.prefix_length",
            ),
            (
                has_given_tokens,
                "given tokens: another objective.masking than none",
                "objective.conditioning_dropout",
            ),
            (
                objective.self_conditioning,
                "objective.self_conditioning true",
                "objective.self_conditioned_share",
            ),
            (config.warp.train, "warp.train true", "warp.temperature warp.uniformity"),
            (
                config.sampling.warp,
                "sampling.warp true",
                "sampling.warp_temperature sampling.warp_uniformity",
            ),
            (
                config.sampling.is_stochastic,
                "sampling.solver ancestral or bridge",
                "sampling.eta sampling.noise_above sampling.noise_below",
            ),
            (
                config.sampling.solver in ("euler", "heun"),
                "sampling.solver euler or heun",
                "sampling.exact_temperature",
            ),
            (
                not is_text,
                "task translation",
                "mask_predict.num_lengths mask_predict.confidence_weight",
            ),
            (
                not config.embedding.normalise,
                "embedding.normalise false (normalised rows have a constant norm)",
                "embedding.l2_penalty embedding.l2_adapted embedding.margin_penalty",
            ),
            (config.training.optimiser == "muon", "training.optimiser muon", "training.momentum"),
            (config.distillation.teacher_steps > 0, "cdcd distill", "distillation"),
        )
    ]
