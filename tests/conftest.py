"""Tests check every annotated shape at run time; the library itself does not."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from jaxtyping import install_import_hook

CHECKED = [
    "cdcd.diffusion",
    "cdcd.networks",
    "cdcd.training",
    "cdcd.evaluation",
    "cdcd.inference",
    "cdcd.languages.oracle",
    "cdcd.metrics",
]
with install_import_hook(CHECKED, "typecheck.check"):
    import cdcd.cli
    import cdcd.cli.demo
    import cdcd.cli.display
    import cdcd.evaluation.evaluate
    import cdcd.evaluation.translate
    import cdcd.evaluation.translation_plots
    import cdcd.evaluation.translation_report
    import cdcd.inference.beam
    import cdcd.inference.generation
    import cdcd.languages.oracle
    import cdcd.metrics.mbr
    import cdcd.networks.diffusion_translation
    import cdcd.training.run  # noqa: F401
