"""Imports point one way through the layers of the package, and no modules import each other."""

import pytest
from imports import LAYERS, LEAVES, PACKAGE, cycles, imports_of, package_of

IMPORTS = imports_of()
# To be mended; strict, so that an entry goes as soon as its package is right.
KNOWN: set[str] = set()
PACKAGES = sorted({package_of(each.importer) for each in IMPORTS} | {"diffusion"})


@pytest.mark.parametrize(
    "package",
    [
        pytest.param(name, marks=[pytest.mark.xfail(strict=True)] if name in KNOWN else [])
        for name in PACKAGES
    ],
)
def test_imports_point_one_way(package):
    wrong = [str(each) for each in IMPORTS if each.packages[0] == package and not each.is_allowed]
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other():
    groups = [", ".join(group) for group in cycles(IMPORTS)]
    assert not groups, "\n".join(groups)


def test_every_package_has_its_layer():
    names = {
        path.stem for path in PACKAGE.iterdir() if path.name not in ("__init__.py", "py.typed")
    }
    layered = {name for layer in LAYERS for name in layer} | set(LEAVES)
    assert names - {"__pycache__"} <= layered
