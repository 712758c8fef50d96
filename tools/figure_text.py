"""The smallest text of a stored figure, in points, read from the code that draws it; nothing is
drawn or run.

A PNG does not say how large its letters are. The functions of `figures.py` do: each size is a
number after `fontsize=` or `labelsize=`, in the function that the cell calls or in one that it
calls in turn. Raised exponents, on logarithmic axes, are RAISED times as large as the label that
they belong to.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TICKS = 8.0  # what kit.style gives the labels of every axis
RAISED = 0.7  # what matplotlib makes of an exponent
SIZES = {"fontsize", "labelsize", "title_fontsize"}


def smallest_text(source: str, chapter: str) -> float:
    """Return the smallest size of text, in points, that a cell's figure may have, but for raised
    exponents.

    chapter: its word, such as "bits": a name in the cell is looked for in that chapter's figures
             first
    """
    return min([TICKS, *(size for node in _drawing(source, chapter) for size in _written(node))])


def has_exponents(source: str, chapter: str) -> bool:
    """Return True if an axis of a cell's figure may be logarithmic,
    with its labels written as powers.
    """
    return any(
        _is_logarithmic(part) for node in _drawing(source, chapter) for part in ast.walk(node)
    )


@cache
def _drawing(source: str, chapter: str) -> tuple[ast.AST, ...]:
    """Return the functions and classes that draw a cell's figure:
    those it names, and those that they name in turn.
    """
    found: dict[int, ast.AST] = {}
    waiting = []
    for name in _names(ast.parse(source)):
        every = _definitions().get(name, ())
        waiting += [one for one in every if chapter in one[0].parts] or every
    while waiting:
        path, node = waiting.pop()
        if id(node) not in found:
            found[id(node)] = node
            waiting += [
                (where, called)
                for name in _names(node)
                for where, called in _definitions().get(name, ())
                if where == path or where == _imported(path).get(name)
            ]
    return tuple(found.values())


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


@cache
def _imported(path: Path) -> dict[str, Path]:
    """Return the names that a module imports, with the files that they are from."""
    imports = [
        node
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
    ]
    return {
        alias.name: ROOT.joinpath(*(node.module or "").split(".")).with_suffix(".py")
        for node in imports
        for alias in node.names
    }


def _is_logarithmic(part: ast.AST) -> bool:
    called = isinstance(part, ast.Attribute) and part.attr in ("set_xscale", "set_yscale", "loglog")
    written = (
        isinstance(part, ast.Constant)
        and isinstance(part.value, str)
        and "mathdefault" in part.value
    )
    return called or written


def _written(node: ast.AST) -> Iterator[float]:
    """Give the numbers that are written down as sizes;
    of `7 if narrow else 8` both, and of a name what it was set to.
    """
    names = {
        target.id: part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Assign)
        for target in part.targets
        if isinstance(target, ast.Name)
    }
    for part in ast.walk(node):
        if isinstance(part, ast.keyword) and part.arg in SIZES:
            given = (
                names.get(part.value.id, part.value)
                if isinstance(part.value, ast.Name)
                else part.value
            )
            for choice in (given.body, given.orelse) if isinstance(given, ast.IfExp) else (given,):
                if isinstance(choice, ast.Constant) and isinstance(choice.value, int | float):
                    yield choice.value


@cache
def _definitions() -> dict[str, tuple[tuple[Path, ast.AST], ...]]:
    """Return the functions and classes of all modules of figures and panels, by name."""
    found: dict[str, list[tuple[Path, ast.AST]]] = {}
    for path in sorted((ROOT / "amp_course").rglob("*.py")):
        if path.stem.endswith("figures") or path.stem == "panel":
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    found.setdefault(node.name, []).append((path, node))
    return {name: tuple(those) for name, those in found.items()}
