"""Start a new exercise, and try answers to one from the command line."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import keyword
import os
import tempfile
from pathlib import Path
from string import Template
from typing import Any
from unittest import mock

import nbformat

from amp_course.checking import Exercise, Results
from amp_course.checking.differences import MISSING, alike, describe
from amp_course.checking.judging import Case
from amp_course.checking.limit import TimeUp, within
from amp_course.checking.solutions import solution_code
from amp_course.course import CHAPTERS, Chapter, find
from amp_course.kit.errors import CourseError
from amp_course.kit.paths import course_root

_HERE = Path(__file__).parent
_MOST = 12  # wrong outputs that are shown


def new(chapter_name: str, name: str) -> list[Path]:
    """Write a new exercise that works, for the author to change; return its files.

    Raises CourseError for a name that is not a Python name, or is taken.
    """
    chapter = find(chapter_name)
    if not name.isidentifier() or name != name.lower() or keyword.iskeyword(name):
        raise CourseError(f"{name!r} cannot name a function: use small letters and underscores.")
    if hasattr(builtins, name) or importlib.util.find_spec(name):
        raise CourseError(f"{name!r} would hide Python's or a library's name: choose another.")
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
    return [*made, _add_import(exercises / "__init__.py", chapter, name), _solve(chapter, name)]


def _add_import(path: Path, chapter: Chapter, name: str) -> Path:
    """Add an exercise to those of its chapter."""
    text = path.read_text("utf-8")
    line = f"from amp_course.{chapter.word}.exercises.{name} import {name}\n"
    imports = sorted([*(old for old in text.splitlines(True) if old.startswith("from ")), line])
    head, _, rest = text.partition("from ")
    _, _, rest = rest.rpartition("from ")
    rest = rest.partition("\n")[2].rstrip()
    assert rest.endswith(")"), f"{path} does not end with ALL = (…)"
    before = rest[:-1].rstrip().rstrip(",")
    path.write_text(f"{head}{''.join(imports)}{before}, {name})\n", "utf-8")
    return path


def _solve(chapter: Chapter, name: str) -> Path:
    """Add the exercise's heading and cells to the chapter's solutions, before the closing cell."""
    path = course_root() / "solutions" / f"{chapter.stem}.ipynb"
    book = nbformat.read(path, as_version=4)
    source = (
        f'def {name}(x):\n    """Return twice the numbers of x."""\n    ### BEGIN SOLUTION\n'
        f"    return 2 * x\n    ### END SOLUTION\n\n\nexercises.{name}.check({name})"
    )
    number = len(chapter.exercises()) + 1
    book.cells[-1:-1] = [
        nbformat.v4.new_markdown_cell(f"## {number}. Double it"),
        nbformat.v4.new_code_cell(f"exercises.{name}"),
        nbformat.v4.new_code_cell(source, metadata={"tags": [f"answer-{name}"]}),
    ]
    nbformat.write(book, path)
    return path


def try_answer(name: str, file: Path | None) -> str:
    """Judge an answer and say which outputs are wrong, case by case, without recording progress.

    name: "update_rule" or "scaler.update_rule"
    file: Python code that defines the answer, after the imports of the chapter's notebook; by
          default the cell of the solutions
    """
    exercise = _exercise(name)
    code = file.read_text("utf-8") if file else solution_code(exercise.chapter, exercise.name)
    with (
        tempfile.TemporaryDirectory() as work,
        mock.patch.dict(os.environ, AMP_COURSE_WORK=work),
    ):
        answer = _answer(exercise, code)
        outcome = exercise.check(answer)
    judge = exercise.judge
    lines = [] if outcome.mistake is None else [f"the mistake: {outcome.mistake}"]
    try:
        mine = _outputs(within(exercise.seconds, lambda: judge.run(answer, 0)))
    except TimeUp:
        return "\n".join([*lines, "the answer did not end, so there are no outputs to compare"])
    right = _outputs(judge.run(judge.right, 0))
    wrong = [key for key in mine if not alike(mine[key], right.get(key, MISSING), judge.tolerance)]
    agree = len(mine) - len(wrong)
    lines.append(f"{agree} of {len(right)} outputs are right, {len(wrong)} are wrong")
    for case, output, again in wrong[:_MOST]:
        want, got = right.get((case, output, again), MISSING), mine[case, output, again]
        difference = describe(output, want, got, judge.show, judge.tolerance)
        if want is MISSING:  # it raised, or returned a value of the wrong kind
            difference = f"{output}: {judge.show(got)}"
        lines.append(f"- {case or 'in every case'}{' (again)' * again}: {difference}")
    lines += [f"- … {len(wrong) - _MOST} more"] if len(wrong) > _MOST else []
    return "\n".join(lines)


def _exercise(name: str) -> Exercise:
    every = [exercise for chapter in CHAPTERS for exercise in chapter.exercises()]
    found = [exercise for exercise in every if name in (exercise.name, exercise.id)]
    if len(found) != 1:
        names = ", ".join(exercise.id for exercise in found) or "none"
        raise CourseError(f"{name!r} names no single exercise ({names}): write chapter.name.")
    return found[0]


def _imports(exercise: Exercise) -> str:
    """Return all imports of the chapter's solutions, which answers in a notebook can use."""
    path = course_root() / "solutions" / f"{find(exercise.chapter).stem}.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    lines = [ln for cell in cells if cell.cell_type == "code" for ln in cell.source.splitlines()]
    starts = ("import ", "from ")
    return "\n".join(line for line in lines if line.startswith(starts) and "(" not in line)


def _answer(exercise: Exercise, code: str) -> Any:
    """Return what the code passes to `exercises.NAME.check`, or what has the exercise's name."""
    names: dict[str, Any] = {}
    exec(_imports(exercise), names)
    tree = ast.parse(code)
    check = f"{exercise.name}.check"
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    passed = [call.args[0] for call in calls if ast.unparse(call.func).endswith(check)]
    tree.body = [statement for statement in tree.body if check not in ast.unparse(statement)]
    exec(compile(tree, "<answer>", "exec"), names)
    if passed:
        return eval(ast.unparse(passed[-1]), names)
    for name in (exercise.name, "answer"):
        if name in names:
            return names[name]
    raise CourseError(f"the code defines no {exercise.name}: define it, or hand it to {check}.")


def _outputs(cases: list[Case]) -> dict[tuple[str, str, bool], Any]:
    """Return (case, output, again) → value; each result of `Results` is a case of its own."""
    found: dict[tuple[str, str, bool], Any] = {}
    for number, case in enumerate(cases):
        for output, value in case.outputs.items():
            if isinstance(value, Results):
                found |= {(name, output, case.again): result for name, result in value.items()}
            else:
                name = case.name or (f"case {number + 1}" if len(cases) > 1 else "")
                found[name, output, case.again] = value
    return found
