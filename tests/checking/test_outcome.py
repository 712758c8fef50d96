"""How outcomes state: plain text, HTML with nothing of the learner's in it as markup,
and once each in a real kernel.
"""

import html.parser
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from amp_course.checking import outcome as outcomes
from amp_course.checking.outcome import Note, Outcome, box_html

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert('a & b')</script> `<img src=x onerror=y>` \"quoted\""


class Tags(html.parser.HTMLParser):
    """Collects the tags, and the text between them as a browser would show it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    tags.close()
    return tags


SHOWN = [
    Outcome("not yet", HOSTILE, (HOSTILE,)),
    Outcome("correct", f"{HOSTILE}\n{HOSTILE}"),
    Outcome("not attempted", HOSTILE),
    Note("hint", HOSTILE, (HOSTILE,)),
    Note("solution", HOSTILE, (HOSTILE,), HOSTILE),
]


@pytest.mark.parametrize("shown", SHOWN)
def test_nothing_of_the_learners_becomes_markup(shown: Outcome | Note) -> None:
    page = read(shown._html())
    assert set(page.tags) <= {"div", "b", "code", "pre"}
    assert page.text.count("<script>alert('a & b')</script> ") == str(shown).count("<script>")


def test_the_three_states_differ_without_colour() -> None:
    states = ("not attempted", "not yet", "correct")
    assert len({read(box_html(state, "", [])).text for state in states}) == 3


def test_plain_text() -> None:
    assert (
        str(Outcome("not yet", "it is wrong", ("mind this",)))
        == "Not quite: it is wrong\nNote: mind this"
    )
    assert repr(Outcome("correct", "well")) == "Correct. well"
    assert str(Outcome("not attempted", "Write it.")) == "Not attempted. Write it."
    assert (
        str(Note("solution", "One answer", ("Also right: b",), "a = 1"))
        == "One answer\nAlso right: b\na = 1"
    )


def test_truth() -> None:
    assert Outcome("correct", "")
    assert not Outcome("not yet", "") and not Outcome("not attempted", "")


def test_an_outcome_is_shown_once_in_a_cell_with_how_it_came_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell, shown = types.SimpleNamespace(execution_count=1), []
    monkeypatch.setattr(outcomes, "_shell", lambda: shell)
    monkeypatch.setattr("IPython.display.display", lambda data, **more: shown.append(more))
    one, history = Outcome("not yet", "no"), {"exercise": "loop.probe", "attempts": 2}
    one.show(history)
    one._ipython_display_()
    assert [more["metadata"] for more in shown] == [{"amp_course": history}]
    shell.execution_count = 2
    one._ipython_display_()
    assert len(shown) == 2


SETUP = """
    import time
    from amp_course.checking import Card, Exercise, Wrong, within
    def judge(answer):
        if answer() != 2:
            raise Wrong("it is `<2>`, not " + str(answer()))
    card = Card(
        chapter="loop", name="probe", number=1, title="Probe", task="Write it.",
        difficulty=1, importance=1, minutes=1, lines=1,
        hints=("state", "closer"), why="why", alternative="other", seconds=0.4
    )
    ex = Exercise(card, None, None, ())
    ex.judge = lambda answer, left, seconds: within(seconds, lambda: judge(answer))
"""


@pytest.mark.parametrize("imported", [False, True])
def test_without_a_shell(
    imported: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if imported:
        pytest.importorskip("IPython")
    else:
        monkeypatch.delitem(sys.modules, "IPython", raising=False)
    outcome = Outcome("not yet", "it is `<2>`, not 3")
    outcome.show()
    outcome.show()
    assert capsys.readouterr().out == "Not quite: it is `<2>`, not 3\n" * 2
    assert ("IPython" in sys.modules) == imported


ENDLESS = """\
def f():
    while True:
        try:
            time.sleep(0.05)
        except:
            pass
ex.check(f)"""

# A cell, and what of it must be on the page: (kind of output, words in its plain text).
CELLS: list[tuple[str, list[tuple[str, str]]]] = [
    (SETUP, []),
    ("ex", [("execute_result", "Exercise 1: Probe")]),
    ("ex.check(lambda: 2)", [("display_data", "Correct. why")]),
    ("o = ex.check(lambda: 3)", [("display_data", "not 3")]),
    ("o", [("display_data", "not 3")]),
    ("o", [("display_data", "not 3")]),
    ("ex.check(lambda: 2); o", [("display_data", "Correct. why"), ("display_data", "not 3")]),
    (
        "ex.check(lambda: 2)\no.state",
        [("display_data", "Correct. why"), ("execute_result", "'not yet'")],
    ),
    (
        "ex.check(lambda: 3)\nex.check(lambda: 2)",
        [("display_data", "not 3"), ("display_data", "Correct. why")],
    ),
    ("for _ in range(2):\n    ex.check(...)", [("display_data", "Not attempted.")] * 2),
    ("ex.hint()", [("display_data", "Hint 1 of 2")]),
    ("h = ex.hint()", [("display_data", "1. state\n2. closer")]),
    (
        "ex.check(lambda: 1 / 0)",
        [
            (
                "display_data",
                "ZeroDivisionError (division by zero) in line 1, `ex.check(lambda: 1 / 0)`",
            )
        ],
    ),
    (
        ENDLESS,
        [
            (
                "display_data",
                "had not finished after 0.4 seconds and was stopped in line 4, `time.sleep(0.05)`",
            )
        ],
    ),
    ("ex.check(lambda: __import__('sys').exit())", [("display_data", "raised SystemExit")]),
    ("ex.check(lambda: '<script>' + '\\ud800')", [("display_data", "not <script>")]),
    ("ex.check(print)", [("stream", ""), ("display_data", "not None")]),
    (
        "import signal\nex.check(lambda: signal.raise_signal(signal.SIGINT))",
        [("error", "Interrupted; nothing was recorded.")],
    ),
    ("ex.check(lambda: input('who? '))", [("display_data", "nobody can answer `input()`")]),
    ("1 + 1", [("execute_result", "2")]),
]


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> nbformat.NotebookNode:
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(textwrap.dedent(source)) for source, _ in CELLS]
    for cell in made.cells:
        cell.metadata["tags"] = ["raises-exception"]
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMP_COURSE_WORK", str(folder / "my_work"))
        patch.setenv("PYTHONPATH", str(ROOT))
        NotebookClient(
            made, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        ).execute()
    return made


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CELLS)))
def test_in_a_kernel(book: nbformat.NotebookNode, number: int) -> None:
    outputs, expected = book.cells[number].outputs, CELLS[number][1]
    assert [output.output_type for output in outputs] == [kind for kind, _ in expected]
    for output, (kind, words) in zip(outputs, expected, strict=True):
        if kind == "stream":
            continue
        if kind == "error":
            assert output.traceback == [words]
            continue
        assert words in output.data["text/plain"]
        if kind == "display_data":
            page = read(output.data["text/html"])
            assert "script" not in page.tags
            assert words.split("`")[0].split("\n")[0].replace(" ", "") in page.text.replace(
                " ", ""
            )  # in several boxes


@pytest.mark.slow
def test_an_outcome_keeps_how_it_came_about(book: nbformat.NotebookNode) -> None:
    first, later = (book.cells[number].outputs[0].metadata["amp_course"] for number in (2, 12))
    history = {
        "exercise": "loop.probe",
        "attempts": 1,
        "hints": 0,
        "solution": False,
        "mistakes": {},
    }
    assert first == history | {"state": "correct"}
    assert later["state"] == "not yet" and later["attempts"] > 1 and later["hints"] == 2
