"""Start a new exercise, and try answers to one from the command line."""

from __future__ import annotations

import ast
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import nbformat

from amp_course.checking import Exercise, Results
from amp_course.checking.differences import MISSING, alike
from amp_course.checking.judging import Case, Judge
from amp_course.checking.solutions import solution_code
from amp_course.course import CHAPTERS, Chapter, find
from amp_course.kit.errors import CourseError
from amp_course.kit.paths import course_root
from amp_course.kit.table import text_table

_HERE = Path(__file__).parent
_MOST = 12  # outputs that are shown
_WIDE = 34  # characters of each


def new(chapter_name: str, name: str) -> list[Path]:
    """Write a new exercise that works, for the author to change; return the files it is in.

    Raises CourseError for a name that is no Python name, or is taken.
    """
    chapter = find(chapter_name)
    if not name.isidentifier() or name != name.lower():
        raise CourseError(f"{name!r} cannot name a function: use small letters and underscores.")
    root = course_root()
    exercises = root / "amp_course" / chapter.word / "exercises"
    if (exercises / f"{name}.py").exists():
        raise CourseError(f"chapter {chapter.word} has an exercise {name}: choose another name.")
    facts = {
        "name": name,
        "word": chapter.word,
        "chapter": f"{chapter.number:02d}",
        "number": len(chapter.exercises()) + 1,
    }
    made = {
        exercises / f"{name}.py": "exercise.template",
        root / "tests" / "exercises" / chapter.word / f"{name}.py": "answers.template",
    }
    for path, template in made.items():
        text = (_HERE / template).read_text("utf-8")
        path.write_text(Template(text).substitute(facts), "utf-8")
    return [*made, _listed(exercises / "__init__.py", chapter, name), _solved(chapter, name)]


def _listed(path: Path, chapter: Chapter, name: str) -> Path:
    """Add an exercise to those of its chapter."""
    text = path.read_text("utf-8")
    line = f"from amp_course.{chapter.word}.exercises.{name} import {name}\n"
    imports = sorted([one for one in text.splitlines(True) if one.startswith("from ")] + [line])
    head, _, rest = text.partition("from ")
    _, _, rest = rest.rpartition("from ")
    rest = rest.partition("\n")[2].rstrip()
    assert rest.endswith(")"), f"{path} does not end with ALL = (…)"
    before = rest[:-1].rstrip().rstrip(",")
    path.write_text(f"{head}{''.join(imports)}{before}, {name})\n", "utf-8")
    return path


def _solved(chapter: Chapter, name: str) -> Path:
    """Add the exercise's two cells to the end of the chapter's solutions."""
    path = course_root() / "solutions" / f"{chapter.stem}.ipynb"
    book = nbformat.read(path, as_version=4)
    source = (
        f'def {name}(x):\n    """Return twice x."""\n    ### BEGIN SOLUTION\n    return 2 * x\n'
        f"    ### END SOLUTION\n\n\nexercises.{name}.check({name})"
    )
    answer = nbformat.v4.new_code_cell(source, metadata={"tags": [f"answer-{name}"]})
    book.cells += [nbformat.v4.new_code_cell(f"exercises.{name}"), answer]
    nbformat.write(book, path)
    return path


def try_answer(name: str, file: Path | None) -> str:
    """Return the verdict on an answer, and its outputs next to the right ones; no progress is kept.

    name: "update_rule" or "scaler.update_rule"
    file: Python code that defines the answer; by default the cell of the solutions
    """
    exercise = _exercise(name)
    code = file.read_text("utf-8") if file else _solution(exercise)
    with tempfile.TemporaryDirectory() as work:
        os.environ["AMP_COURSE_WORK"] = work
        answer = _answer(exercise, code)
        outcome = exercise.check(answer)
    lines = [] if outcome.mistake is None else [f"the mistake: {outcome.mistake}"]
    if isinstance(exercise.judge, Judge):
        right, mine = (exercise.judge.run(one, 0) for one in (exercise.judge.right, answer))
        lines.append(text_table(_rows(exercise.judge, right, mine)))
    return "\n".join(lines)


def _exercise(name: str) -> Exercise:
    every = [one for chapter in CHAPTERS for one in chapter.exercises()]
    found = [one for one in every if name in (one.name, one.id)]
    if len(found) != 1:
        names = ", ".join(one.id for one in found) or "none"
        raise CourseError(f"{name!r} names no single exercise ({names}): write chapter.name.")
    return found[0]


def _solution(exercise: Exercise) -> str:
    """Return the solved cell, after all imports of its notebook."""
    path = course_root() / "solutions" / f"{find(exercise.chapter).stem}.ipynb"
    cells = [one.source for one in nbformat.read(path, as_version=4).cells if one.cell_type == "code"]
    lines = [line for cell in cells for line in cell.splitlines()]
    imports = [line for line in lines if line.startswith(("import ", "from ")) and "(" not in line]
    return "\n".join([*imports, solution_code(exercise.chapter, exercise.name)])


def _answer(exercise: Exercise, code: str) -> Any:
    """Return what the code hands to `exercises.NAME.check`, or what bears the exercise's name."""
    names: dict[str, Any] = {}
    tree = ast.parse(code)
    ends = f"{exercise.name}.check"
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call)]
    handed = [one.args[0] for one in calls if ast.unparse(one.func).endswith(ends)]
    tree.body = [one for one in tree.body if ends not in ast.unparse(one)]
    exec(compile(tree, "<answer>", "exec"), names)
    if handed:
        return eval(ast.unparse(handed[-1]), names)
    for name in (exercise.name, "answer"):
        if name in names:
            return names[name]
    raise CourseError(f"the code defines no {exercise.name}: define it, or hand it to {ends}.")


def _rows(judge: Judge, right: list[Case], mine: list[Case]) -> list[list[str]]:
    """Return the outputs that differ, or the first ones if none does, with a head."""
    differ, agree = list[list[str]](), list[list[str]]()
    for want, got in itertools.zip_longest(_outputs(right), _outputs(mine), fillvalue=("", "", MISSING)):
        same = want[:2] == got[:2] and alike(want[2], got[2], judge.tolerance)
        shown = [" ".join(judge.show(one[2]).split())[:_WIDE] for one in (want, got)]
        case, output = (want if want[1] else got)[:2]
        (agree if same else differ).append([case, output, *shown, "" if same else "differs"])
    return [["case", "output", "right", "yours", ""], *(differ or agree)[:_MOST]]


def _outputs(cases: list[Case]) -> Iterator[tuple[str, str, Any]]:
    """Yield case, output and value, one result of many calls after the other."""
    for case in cases:
        for output, value in case.outputs.items():
            if isinstance(value, Results):
                yield from ((name, output, one) for name, one in value.items())
            else:
                yield case.name, output, value
