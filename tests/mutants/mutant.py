"""A deliberate fault of the source, found by function name and syntax tree.

The tables `faults/*.toml` hold the faults. An entry looks like this:

    ["sign of the Euler step"]                      # the fault's name
    within = "euler_step"                           # end of the dotted name of a scope in src/cdcd
    right = "(s_next - t) * _1"                     # the code there, once
    wrong = "(t - s_next) * _1"                     # the fault that replaces it
    tests = "test_solvers.py -k enter_where"        # a test file under tests/, and which of its tests

`within` names a function, class or module wherever it lives; "solvers.euler_step" is more precise,
"euler_step" survives a move. `right` is one expression or some statements and is compared as a
syntax tree, so the layout does not matter; `_1`, `_2`, ... stand for any expression, in `wrong` for
the same one. The inside of f-strings is not searched: write the whole f-string. A fault that
matches nothing, or more than one piece of code, is an error.
"""

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

FAULTS = Path(__file__).parent / "faults"
WILDCARD = re.compile(r"\b_\d\b")
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Mutant:
    """One fault and the tests that should fail with it."""

    name: str
    within: str
    right: str
    wrong: str
    tests: str

    def faulty(self, package: Path) -> tuple[Path, bytes]:
        """Returns the file of the package that the fault is in, and its faulty text."""
        modules = [(path, *_parse(path.read_bytes())) for path in sorted(package.rglob("*.py"))]
        scopes = [
            (path, scope)
            for path, tree, names in modules
            for name, scope in names.items()
            if f".{_dotted(path, package)}.{name}".rstrip(".").endswith(f".{self.within}")
        ]
        if not scopes:
            raise ValueError(f"{self.name}: no function, class or module is named {self.within}")
        matches = {(path, m.span): m for path, scope in scopes for m in self._matches(scope)}
        if len(matches) != 1:
            files = ", ".join(sorted({str(path.relative_to(package)) for path, _ in matches}))
            raise ValueError(
                f"{self.name}: {len(matches)} matches in {self.within} ({files or 'nowhere'}) of\n"
                f"{self.right}\nThere must be exactly one: mend the entry in "
                f"{FAULTS.parent.name}/{FAULTS.name}/*.toml"
            )
        ((path, _), match), *_ = matches.items()
        source = path.read_bytes()
        faulty = match.replaced(source, self.wrong, is_expression=self._is_expression)
        if ast.dump(ast.parse(faulty)) == ast.dump(ast.parse(source)):
            raise ValueError(f"{self.name}: the fault changes nothing")
        return path, faulty

    def test_arguments(self, folder: Path) -> list[str]:
        """Returns pytest's arguments for its tests; the test file is anywhere under a folder."""
        file, *options = shlex.split(self.tests)
        paths = sorted(folder.rglob(file))
        if len(paths) != 1:
            raise ValueError(f"{self.name}: {len(paths)} files under {folder} are named {file}")
        return [str(paths[0]), *options]

    @property
    def _is_expression(self) -> bool:
        return all(_expression(text) for text in (self.right, self.wrong))

    def _matches(self, scope: ast.AST) -> Iterator["Match"]:
        """Yields every piece of code in a scope that is the right one."""
        if self._is_expression:
            pattern: list[ast.AST] = [_expression(self.right)]
            candidates = ([node] for node in _expressions(scope))
        else:
            pattern = list(_statements(self.right))
            candidates = _windows(scope, len(pattern))
        for nodes in candidates:
            bound: dict[str, ast.expr] = {}
            if all(_fits(p, node, bound) for p, node in zip(pattern, nodes, strict=True)):
                yield Match(Span.over(nodes), {k: Span.over([v]) for k, v in bound.items()})


@dataclass(frozen=True)
class Span:
    """The stretch of a file between two positions: lines from 1, columns in bytes from 0."""

    first_line: int
    first_column: int
    last_line: int
    last_column: int

    @classmethod
    def over(cls, nodes: Sequence[ast.expr | ast.stmt]) -> "Span":
        first, last = nodes[0], nodes[-1]
        assert last.end_lineno is not None
        assert last.end_col_offset is not None
        return cls(first.lineno, first.col_offset, last.end_lineno, last.end_col_offset)

    def offsets(self, source: bytes) -> tuple[int, int]:
        """Returns the positions in bytes of the first byte and of the one after the last."""
        starts = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
        return (
            starts[self.first_line - 1] + self.first_column,
            starts[self.last_line - 1] + self.last_column,
        )


@dataclass(frozen=True)
class Match:
    """The code to replace, and the expressions that `_1`, `_2`, ... stand for."""

    span: Span
    bound: dict[str, Span]

    def replaced(self, source: bytes, wrong: str, *, is_expression: bool) -> bytes:
        first, last = self.span.offsets(source)
        text = WILDCARD.sub(lambda name: self._bound_text(source, name[0]), wrong.strip("\n"))
        if is_expression:
            text = f"({text})"
        text = text.replace("\n", "\n" + " " * self.span.first_column)
        return source[:first] + text.encode() + source[last:]

    def _bound_text(self, source: bytes, name: str) -> str:
        first, last = self.bound[name].offsets(source)
        return f"({source[first:last].decode()})"


def load_mutants() -> list[Mutant]:
    """Returns the faults of all tables, in the order of the files."""
    tables = [tomllib.loads(path.read_text("utf-8")) for path in sorted(FAULTS.glob("*.toml"))]
    return [Mutant(name, **entry) for table in tables for name, entry in table.items()]


def _dotted(path: Path, package: Path) -> str:
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def _parse(source: bytes) -> tuple[ast.Module, dict[str, ast.AST]]:
    tree = ast.parse(source)
    return tree, {"": tree} | dict(_scopes(tree, ""))


def _scopes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Yields every class and function below a node under its dotted name in the module."""
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, Scope):
            name = f"{prefix}.{child.name}".lstrip(".")
            yield name, child
        yield from _scopes(child, name)


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Yields the expressions of a tree, none inside an f-string: their positions are wrong."""
    if isinstance(node, ast.expr):
        yield node
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from _expressions(child)


def _windows(scope: ast.AST, size: int) -> Iterator[list[ast.stmt]]:
    """Yields every run of so many statements that follow each other."""
    for node in ast.walk(scope):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                yield from (body[i : i + size] for i in range(len(body) - size + 1))


def _fits(pattern: object, node: object, bound: dict[str, ast.expr]) -> bool:
    """Returns whether a tree is the pattern's; `bound` gathers what the wildcards stand for."""
    if isinstance(pattern, ast.Name) and WILDCARD.fullmatch(pattern.id):
        if not isinstance(node, ast.expr):
            return False
        return ast.dump(bound.setdefault(pattern.id, node)) == ast.dump(node)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, list) and isinstance(node, list):
        return len(pattern) == len(node) and all(
            _fits(p, n, bound) for p, n in zip(pattern, node, strict=True)
        )
    if isinstance(pattern, ast.AST):
        fields = [field for field in pattern._fields if field != "ctx"]
        return all(_fits(getattr(pattern, f), getattr(node, f), bound) for f in fields)
    return pattern == node


def _statements(text: str) -> list[ast.stmt]:
    return ast.parse(text.strip("\n")).body


def _expression(text: str) -> ast.expr | None:
    """Returns the expression that a text is, or None if it is anything else."""
    statements = _statements(text)
    if len(statements) == 1 and isinstance(statements[0], ast.Expr):
        return statements[0].value
    return None
