"""Write the answers in a solution notebook from the files of its exercises.

Each solution is defined once. Where an exercise's file defines what its cell does (a class or
function of the same name, or `right` for the function that the exercise is named for), the lines
between `### BEGIN SOLUTION` and `### END SOLUTION` are copied from it, without annotations. Any
other right answer (values, or a function `reference` that uses what learners do not have) is
defined in the cell.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from nbformat import NotebookNode

from amp_course.checking.solutions import BEGIN, END
from amp_course.kit.paths import course_root

_BLOCK = re.compile(rf"^( *){BEGIN}(.*?)(\n+ *{END})", re.DOTALL | re.MULTILINE)
_NAMED = ast.FunctionDef | ast.ClassDef


def write_answers(book: NotebookNode, chapter: str) -> None:
    """Write into a chapter's solutions the answers that the files of its exercises define."""
    folder = course_root() / "amp_course" / chapter / "exercises"
    for cell in book.cells:
        for tag in cell.metadata.get("tags", []):
            if (file := folder / f"{tag.removeprefix('answer-')}.py").is_file():
                cell.source = filled(cell.source, file.read_text("utf-8"), file.stem)


def filled(cell: str, file: str, name: str) -> str:
    """Return a cell's source with the solutions that the exercise's file defines."""
    lines = _without_annotations(file)
    inner_first = reversed([*ast.walk(ast.parse("\n".join(lines)))])
    defined: dict[str, Any] = {node.name: node for node in inner_first if isinstance(node, _NAMED)}
    defined[name] = defined.get("right", defined.get(name))
    blanks = _blanks(ast.parse(_BLOCK.sub(r"\1...", cell)))

    def solution(block: re.Match[str]) -> str:
        indent, old, end = block.groups()
        first, *rest = next(blanks) or [None]
        node = defined.get(first.name) if first else None
        if node:
            old = "\n".join(["", *_rows(node, first, rest, lines, len(indent))])
        return f"{indent}{BEGIN}{old}{end}"

    return _BLOCK.sub(solution, cell)


def _blanks(node: Any, *path: Any) -> Iterator[list[Any]]:
    """Yield for each `...` the definitions that it is in: [the class, its method]."""
    for statement in node.body:
        if isinstance(statement, _NAMED):
            yield from _blanks(statement, *path, statement)
        elif ast.unparse(statement) == "...":
            yield [*path]


def _rows(node: Any, outline: Any, method: list[Any], lines: list[str], indent: int) -> list[str]:
    """Return the body of a definition, or of one of its methods with what follows up to the next
    method of the learner's outline.
    """
    last = node.end_lineno
    if method:
        names = [getattr(part, "name", "") for part in node.body]
        headings = {part.name for part in outline.body if isinstance(part, _NAMED)}
        place = names.index(method[0].name)
        later = [row for row in range(place + 1, len(names)) if names[row] in headings]
        last = _first_row(node.body[later[0]], lines) if later else last
        node = node.body[place]
    body = node.body[ast.get_docstring(node) is not None :]
    rows = "\n".join(lines[_first_row(body[0], lines) : last]).rstrip().split("\n")
    shift = indent - body[0].col_offset
    return [" " * shift + row if shift > 0 and row else row[max(-shift, 0) :] for row in rows]


def _first_row(node: Any, lines: list[str]) -> int:
    """Return the index of a statement's first line, with its decorators and the comment above."""
    row = min([node.lineno, *(line.lineno for line in getattr(node, "decorator_list", []))]) - 1
    while lines[row - 1].lstrip().startswith("#"):
        row -= 1
    return int(row)


def _without_annotations(code: str) -> list[str]:
    lines = [line.encode() for line in code.split("\n")]
    cuts = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.arg) and node.annotation:
            cuts.append((node.annotation, node.col_offset + len(node.arg.encode())))
        elif isinstance(node, ast.AnnAssign) and node.value:
            cuts.append((node.annotation, node.target.end_col_offset or 0))
        elif isinstance(node, ast.FunctionDef) and node.returns:
            before = lines[node.returns.lineno - 1][: node.returns.col_offset]
            cuts.append((node.returns, before.rindex(b" ->")))
    for annotation, start in sorted(cuts, key=lambda cut: -cut[1]):
        line = lines[annotation.lineno - 1]
        lines[annotation.lineno - 1] = line[:start] + line[annotation.end_col_offset :]
    return [line.decode() for line in lines]
