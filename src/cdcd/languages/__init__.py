"""Languages whose law is known: a Markov chain with an exact oracle, tales, numerals, and their judges.

The oracle predicts as a perfect network would. It is an estimator like a network, so it shows what a
solver, a mask or a setting does to samples when nothing else is wrong:

    import torch
    from cdcd.diffusion.process import ProcessConfig
    from cdcd.diffusion.sampling import SamplingConfig, rho_levels, sample
    from cdcd.languages import MarkovOracle, markov_chain

    chain = markov_chain(num_states=6)
    table = 4 * torch.nn.functional.normalize(torch.randn(6, 16), dim=-1)  # embeddings of length sqrt(16)
    tokens = torch.zeros(1000, 12, dtype=torch.long)
    oracle = MarkovOracle(chain, table, tokens, is_noisy=torch.ones_like(tokens, dtype=torch.bool))
    times = rho_levels(50, ProcessConfig(t_min=0.2, t_max=300.0), rho=7.0)
    samples = sample(oracle, table, torch.randn(1000, 12, 16), times, SamplingConfig(solver="heun"))
    data = chain.sample(1000, 12, generator=torch.default_generator)
    print(chain.log_prob(samples.tokens).mean(), chain.log_prob(data).mean())
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdcd.languages.markov import MarkovChain, markov_chain
    from cdcd.languages.oracle import MarkovOracle, MaskedMarkovOracle

__all__ = ["MarkovChain", "MarkovOracle", "MaskedMarkovOracle", "markov_chain"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the words of a tale do not need torch.
    if name not in __all__:
        raise AttributeError(f"module 'cdcd.languages' has no attribute {name!r}")
    module = "oracle" if name.endswith("Oracle") else "markov"
    return getattr(import_module(f"cdcd.languages.{module}"), name)
