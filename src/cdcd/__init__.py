"""Continuous diffusion for categorical data: train, sample and study diffusion language models."""

from cdcd._version import __version__

TYPE_CHECKING = False
if (
    TYPE_CHECKING
):  # A type checker reads this; `typing` would be the slowest import before Ctrl-C is answered.
    from cdcd.inference.load import load, load_translator

__all__ = ["__version__", "load", "load_translator"]


def __getattr__(name: str) -> object:
    # Loaded on first use: `cdcd --help` should not wait for torch.
    if name in ("load", "load_translator"):
        from cdcd.inference import load

        return getattr(load, name)
    raise AttributeError(f"module 'cdcd' has no attribute {name!r}")
