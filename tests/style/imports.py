"""The imports between the packages of `cdcd`, read from the source.

    python tests/style/imports.py PICTURE     draws them into a picture

Imports inside functions count like all others.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "cdcd"
LAYERS = [
    ["diffusion", "metrics"],
    ["languages"],
    ["data"],
    ["networks"],
    ["config", "presets"],
    ["training"],
    ["inference"],
    ["cdcd"],
    ["evaluation", "benchmarks"],
    ["reproduction", "serving"],
    ["cli"],
    ["__main__"],
]
"""From the bottom up: a package imports from lower layers alone. `cdcd` is the root's `__init__`,
which gives `inference` to users."""
LEAVES = ["seeding", "settings", "files", "lock", "memory", "_version"]
"""Modules that everything may import; they import nothing but each other."""
SAME_LAYER = {("presets", "config")}
"""Imports allowed within a layer."""
RANKS = {name: i for i, names in enumerate(LAYERS) for name in names} | dict.fromkeys(LEAVES, -1)


@dataclass(frozen=True)
class Import:
    """One import: the line that does it, and the modules at both ends, as dotted names."""

    path: Path
    line: int
    importer: str
    imported: str
    is_for_types: bool

    @property
    def packages(self) -> tuple[str, str]:
        return package_of(self.importer), package_of(self.imported)

    @property
    def is_allowed(self) -> bool:
        """Leads from a higher layer to a lower one, or stays within a package."""
        return _is_allowed(*self.packages)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.importer} imports {self.imported}"


def _is_allowed(importer: str, imported: str) -> bool:
    if importer == imported or (importer, imported) in SAME_LAYER:
        return True
    return RANKS[imported] < RANKS[importer] or (importer in LEAVES and imported in LEAVES)


def package_of(module: str) -> str:
    """Returns the package or top-level module that a module belongs to; `cdcd` for the root."""
    return module.split(".")[1] if "." in module else module


def imports_of(package: Path = PACKAGE) -> list[Import]:
    """Returns every import between the modules of the package, type-checking ones included."""
    modules = {_module_name(path, package): path for path in sorted(package.rglob("*.py"))}
    return [
        Import(path.relative_to(package.parents[1]), line, importer, imported, is_for_types)
        for importer, path in modules.items()
        for line, imported, is_for_types in _imported_by(path, modules)
        if imported != importer
    ]


def _module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def _imported_by(path: Path, modules: dict[str, Path]) -> Iterator[tuple[int, str, bool]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # `from cdcd.data import pairs` imports a module, or a name that the package defines.
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = list(dict.fromkeys(n if n in modules else str(node.module) for n in full))
        else:
            continue
        yield from ((node.lineno, n, node in for_types) for n in names if n in modules)


def cycles(imports: list[Import]) -> list[list[str]]:
    """Returns the groups of modules that import each other, directly or through others.

    Imports for type checkers alone do not run, so they close no cycle.
    """
    following: dict[str, set[str]] = {}
    for each in imports:
        if not each.is_for_types:
            following.setdefault(each.importer, set()).add(each.imported)
    reached = {module: _reached_from(module, following) for module in following}
    groups = {
        tuple(sorted(other for other in reached[module] if module in reached.get(other, ())))
        for module in following
        if module in reached[module]
    }
    return [list(group) for group in sorted(groups)]


def _reached_from(module: str, following: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        new = following.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached


def draw(picture: Path) -> None:
    """Draws the layers of the packages, and the number of imports from each to each other."""
    from matplotlib import pyplot as plt

    layers = [layer for layer in LAYERS if not {"cdcd", "__main__"} & set(layer)]
    names = [name for layer in layers for name in layer]
    counts = Counter(each.packages for each in imports_of())
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 6.5), width_ratios=[1, 1.35])
    _draw_layers(left, layers, {pair for pair in counts if {*pair} <= {*names}})
    _draw_counts(right, names, counts)
    figure.tight_layout(w_pad=3)
    figure.savefig(picture, dpi=100)


def _draw_layers(axes: Any, layers: list[list[str]], edges: set[tuple[str, str]]) -> None:
    axes.set_title("imports, without those that follow from others")
    positions = {
        name: (2.4 * (i - (len(layer) - 1) / 2), height)
        for height, layer in enumerate(layers)
        for i, name in enumerate(layer)
    }
    box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": "0.4"}
    texts = {
        name: axes.text(x, y, name, ha="center", va="center", fontsize=12, bbox=box, zorder=3)
        for name, (x, y) in positions.items()
    }
    following = {start: {end for s, end in edges if s == start} - {start} for start, _ in edges}
    for importer, imported in sorted(edges):
        others = following[importer] - {imported}
        is_implied = any(imported in _reached_from(other, following) for other in others)
        if importer == imported or is_implied:
            continue
        axes.annotate(
            "",
            xy=positions[imported],
            xytext=positions[importer],
            arrowprops={
                "arrowstyle": "-|>",
                "color": "0.3" if _is_allowed(importer, imported) else "tab:red",
                "patchA": texts[importer].get_bbox_patch(),
                "patchB": texts[imported].get_bbox_patch(),
            },
        )
    axes.set_xlim(-2.6, 2.6)
    axes.set_ylim(-0.5, len(layers) - 0.5)
    axes.axis("off")


def _draw_counts(axes: Any, names: list[str], counts: Counter[tuple[str, str]]) -> None:
    axes.set_title("number of imports: a row imports from a column")
    for y, importer in enumerate(names):
        for x, imported in enumerate(names):
            count = counts[importer, imported]
            is_wrong = not _is_allowed(importer, imported)
            if count and x != y:
                axes.text(
                    x, y, count, ha="center", va="center", color="tab:red" if is_wrong else "black"
                )
            shade = "0.8" if x == y else "tab:red" if is_wrong else "tab:blue"
            alpha = 1.0 if x == y else min(0.06 + 0.02 * count, 0.5) if count else 0.0
            axes.axvspan(
                x - 0.5,
                x + 0.5,
                1 - (y + 1) / len(names),
                1 - y / len(names),
                color=shade,
                alpha=alpha,
                linewidth=0,
            )
    axes.set_xticks(range(len(names)), names, rotation=40, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.xaxis.tick_top()
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_aspect("equal")
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_color("0.8")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
