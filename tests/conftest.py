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
    "cdcd.generation",
    "cdcd.text_model",
    "cdcd.translation",
    "cdcd.translator",
]
with install_import_hook(CHECKED, "typecheck.check"):
    import cdcd.cli
    import cdcd.demo
    import cdcd.display
    import cdcd.evaluation.evaluate
    import cdcd.evaluation.mbr
    import cdcd.evaluation.oracle
    import cdcd.evaluation.translate
    import cdcd.evaluation.translation_plots
    import cdcd.evaluation.translation_report
    import cdcd.generation
    import cdcd.networks.beam
    import cdcd.networks.translation
    import cdcd.training.run  # noqa: F401
