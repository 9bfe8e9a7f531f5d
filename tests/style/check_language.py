"""Checks that docstrings and names read as CONTRIBUTING.md asks: `python tests/style/check_language.py PATH …`.

A function's docstring begins with a verb in the third person ("Returns the noise levels"); that of a
property, class, field or module says what the thing is. Words that mean many things are no names.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FRAGMENTS = {"What", "Of", "Where", "Whether", "How", "Told", "Which", "Whose", "Who", "When", "At"}
"""First words of fragments, which leave out who does what."""
NOUNS = """
Tokens Settings Losses Rows Words Texts Logits Columns Options Pairs Lines Files Weights Names Sums
Gradients Probabilities Levels Lengths Steps Sequences Documents Numbers Positions Translations
Statistics Intervals Batches Blocks Sources Targets Features Its This Is Has Was As
Parts Sentences Corpora Things Checkpoints Tables Values Nats Bytes Symbols Characters
"""
VAGUE = {
    "found", "place", "places", "told", "sureness", "surest", "settle", "settled", "settling", "fates",
    "fate", "telling", "learn_beside", "remember", "is_real", "made", "shown",
}  # fmt: skip
"""Names that mean many things, or that the field calls otherwise."""


def problems_in(path: Path) -> Iterator[str]:
    """Yields one line for each docstring or name that should read otherwise."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _function_problems(path, node)
        if isinstance(node, ast.Module | ast.ClassDef):
            yield from _noun_problems(path, node)
        yield from _name_problems(path, node)


def _function_problems(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    text = ast.get_docstring(node)
    if text is None:
        return
    first = re.split(r"[\s,:;.]", text, maxsplit=1)[0]
    decorators = {ast.unparse(each).rsplit(".")[-1] for each in node.decorator_list}
    if decorators & {"property", "cached_property"}:
        if first in FRAGMENTS:
            yield f"{path}:{node.lineno}: property {node.name}: begins with {first!r}"
    elif (
        not re.fullmatch(r"[A-Z][a-z-]*[a-rt-z]s|[A-Z][a-z]+sses|Focuses|Does", first)
        or first in NOUNS.split()
    ):
        yield f"{path}:{node.lineno}: {node.name}: begins with {first!r}, no verb in the third person"


def _noun_problems(path: Path, node: ast.Module | ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        match statement:
            case ast.Expr(value=ast.Constant(value=str(text))):
                first = re.split(r"[\s,:;.]", text.strip(), maxsplit=1)[0]
                if first in FRAGMENTS:
                    yield f"{path}:{statement.lineno}: begins with {first!r}, a fragment"


def _name_problems(path: Path, node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            pass
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            pass
        case _:
            return
    if name.strip("_") in VAGUE:
        yield f"{path}:{getattr(node, 'lineno', 0)}: the name {name!r} says too little"


def python_files(paths: list[Path]) -> Iterator[Path]:
    """Yields the Python files among paths and below them."""
    for path in paths:
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def main(arguments: list[str]) -> int:
    """Prints every problem below the given paths; returns 1 where there is one."""
    lines = [
        line for path in python_files([Path(a) for a in arguments]) for line in problems_in(path)
    ]
    print("\n".join([*lines, f"{len(lines)} problems"]))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
