"""Write the answers in a solution notebook from the files of its exercises.

A solution stands once. Where the file of an exercise defines what its cell does (a class or a
function of the same name, or `right` for the function that the exercise is named for), the lines
between `### BEGIN SOLUTION` and `### END SOLUTION` are made of that, without its annotations.
Where the right answer is something else (values, or a function of another name, `reference`, which
may use what learners do not have), the cell is its own source.
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
    defined: dict[str, Any] = {one.name: one for one in inner_first if isinstance(one, _NAMED)}
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
    for one in node.body:
        if isinstance(one, _NAMED):
            yield from _blanks(one, *path, one)
        elif ast.unparse(one) == "...":
            yield [*path]


def _rows(node: Any, given: Any, method: list[Any], lines: list[str], indent: int) -> list[str]:
    """Return the body of a definition, or of one of its methods with what follows up to the next
    one that is given to the learner.
    """
    last = node.end_lineno
    if method:
        names = [getattr(one, "name", "") for one in node.body]
        headings = {one.name for one in given.body if isinstance(one, _NAMED)}
        place = names.index(method[0].name)
        later = [one for one in node.body[place + 1 :] if getattr(one, "name", "") in headings]
        last = _first_row(later[0], lines) if later else last
        node = node.body[place]
    body = node.body[ast.get_docstring(node) is not None :]
    rows = "\n".join(lines[_first_row(body[0], lines) : last]).rstrip().split("\n")
    shift = indent - body[0].col_offset
    return [" " * shift + row if shift > 0 and row else row[max(-shift, 0) :] for row in rows]


def _first_row(node: Any, lines: list[str]) -> int:
    """Return the index of a statement's first line, with its decorators and the comment above."""
    row = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))]) - 1
    while lines[row - 1].lstrip().startswith("#"):
        row -= 1
    return int(row)


def _without_annotations(code: str) -> list[str]:
    lines = [line.encode() for line in code.split("\n")]
    cuts = []
    for one in ast.walk(ast.parse(code)):
        if isinstance(one, ast.arg) and one.annotation:
            cuts.append((one.annotation, one.col_offset + len(one.arg.encode())))
        elif isinstance(one, ast.AnnAssign) and one.value:
            cuts.append((one.annotation, one.target.end_col_offset or 0))
        elif isinstance(one, ast.FunctionDef) and one.returns:
            before = lines[one.returns.lineno - 1][: one.returns.col_offset]
            cuts.append((one.returns, before.rindex(b" ->")))
    for node, start in sorted(cuts, key=lambda cut: -cut[1]):
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = line[:start] + line[node.end_col_offset :]
    return [line.decode() for line in lines]
