"""Tests check types and shapes at run time; the library itself does not (helpers/typecheck.py)."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jaxtyping
import pytest
import typecheck

CHECKED = [
    "cdcd.diffusion",
    "cdcd.networks",
    "cdcd.training",
    "cdcd.evaluation",
    "cdcd.inference",
    "cdcd.languages.oracle",
    "cdcd.metrics",
]
jaxtyping.jaxtyped = typecheck.jaxtyped
jaxtyping.install_import_hook(CHECKED, "typecheck.check")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    typecheck.check_anew()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    typecheck.check_anew()
