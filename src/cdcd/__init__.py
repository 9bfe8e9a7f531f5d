"""Continuous diffusion for categorical data: train, sample and study diffusion language models."""

import os

# Some CPUs die of an illegal instruction in bfloat16 matrix products unless oneDNN is held back.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Loaded on first use: `cdcd --help` should not wait for torch.
    if name == "load":
        from cdcd import generation

        return generation.load
    if name == "load_translator":
        from cdcd import translation

        return translation.load_translator
    raise AttributeError(f"module 'cdcd' has no attribute {name!r}")
