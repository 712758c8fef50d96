"""What a submission may do to the one that grades it, for real:
it gains nothing, and others lose nothing.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import nbformat
import pytest

from amp_course.classroom import bubblewrap, command, gradebook
from amp_course.classroom.folder import ClassFolder
from amp_course.classroom.grading import Result, grade
from amp_course.classroom.job import Limits
from amp_course.classroom.report_page import FLAG
from amp_course.course import Chapter
from tests.classroom.students import hand_in, notebook, points, right_answers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
needs_bubblewrap = pytest.mark.skipif(
    bubblewrap.missing() is not None, reason=str(bubblewrap.missing())
)
LIMITS = Limits(cell_seconds=8, disk_bytes=64 * 2**20)
ALL = 16  # the points of the chapter; add_autocast is worth 1


def graded(
    place: ClassFolder,
    chapter: Chapter,
    *,
    answer: str | None = None,
    first: str = "",
    sandboxed: bool | None = None,
) -> Result:
    """Hand in right answers, but for one perhaps, after a first cell, and grade them."""
    right = right_answers(place, chapter)
    if answer is not None:
        right["add_autocast"] = answer
    hand_in(place, chapter, "mallory", notebook(place, chapter, right, first))
    results = grade(place, [chapter], echo=lambda line: None, limits=LIMITS, sandboxed=sandboxed)
    result = next(one for one in results if one.student == "mallory")
    assert sum(points(place.root, chapter.stem)["mallory"].values()) == result.points
    return result


def printed(place: ClassFolder, chapter: Chapter) -> str:
    """Return all that the student's own cells printed."""
    book = nbformat.read(place.autograded(chapter, "mallory"), as_version=4)
    return "".join(
        output.get("text", "") for cell in book.cells for output in cell.get("outputs", [])
    )


REPLACES = {
    "the check": "from amp_course.checking import Exercise, Outcome\nExercise.check = lambda *a: "
    "Outcome('correct', '')",
    "the judge": "exercises.add_autocast.judge = lambda *a: None",
    "the right answer": "object.__setattr__(exercises.add_autocast.judge, 'right', lambda *a: "
    "None)",
    "the comparison": "import amp_course.checking.judging as judging\njudging.alike = lambda *a, "
    "**k: True",
    "code": "import amp_course.checking.differences as d\nd.alike.__code__ = (lambda one, other, "
    "tolerance=0.0: True).__code__",
    "torch's comparison": "torch.isclose = lambda *a, **k: torch.tensor(True)",
    "the reply": (
        "kernel = get_ipython().kernel\ndef forged(stream, identity, message):\n    content = "
        "{'verdict': '{\"exercise\": \"loop.add_autocast\", \"state\": \"correct\"}', 'seal': '0' "
        "* 64}\n    kernel.session.send(stream, 'amp_course_check_reply', content, message, "
        "ident=identity)\nkernel.shell_handlers['amp_course_check_request'] = forged"
    ),
}


@pytest.mark.parametrize("what", REPLACES)
def test_what_replaces_its_judge_earns_nothing(
    place: ClassFolder, loop: Chapter, what: str
) -> None:
    result = graded(place, loop, answer="add_autocast = 3", first=REPLACES[what])
    assert result.points == 0 and "it replaced part of what judges it" in result.withheld[0]
    assert f"mallory       0{FLAG} " in command._table([result])
    with gradebook._open(place.root) as (book, _):
        assert book.find_submission("06_loop", "mallory").needs_manual_grade


def test_no_process_but_the_judge_says_correct(place: ClassFolder, loop: Chapter) -> None:
    first = (
        "kernel = get_ipython().kernel\nhandler = "
        "kernel.shell_handlers['amp_course_check_request']\nheld = "
        "dict(zip(handler.__code__.co_freevars, [cell.cell_contents for cell in "
        "handler.__closure__]))\ndef asked(stream, identity, message):\n    content = "
        "message['content']\n    reply = held['keeper'].ask(content['exercise'], b'', 'correct', "
        "'mine', {}, content['question'])\n    kernel.session.send(stream, "
        "'amp_course_check_reply', reply, message, "
        "ident=identity)\nkernel.shell_handlers['amp_course_check_request'] = asked"
    )
    assert graded(place, loop, first=first).points == 0


@pytest.mark.parametrize(
    "answer",
    [
        "def add_autocast(*a):\n    import amp_course.checking.judging as judging\n    "
        "judging.alike = lambda *a, **k: True",
        "def add_autocast(*a):\n    import amp_course.checking.exercise as e\n    "
        "e.Exercise._problem = lambda *a: None",
    ],
)
def test_an_answer_that_replaces_its_judge_while_it_is_judged(
    place: ClassFolder, loop: Chapter, answer: str
) -> None:
    """A check does not put back what an answer replaces;
    the judging process sees it afterwards, and withholds the points.
    """
    result = graded(place, loop, answer=answer)
    assert result.points == 0 and "it replaced part of what judges it" in result.withheld[0]


HONEST = {
    "a short repr": "_old = torch.Tensor.__repr__\ntorch.Tensor.__repr__ = lambda self: "
    "f'{tuple(self.shape)} {_old(self)}'",
    "another default": "torch.set_default_dtype(torch.float64)",
    "torch.compile": "print(torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1)))",
    "print": "import builtins, functools\nbuiltins.print = functools.partial(print, flush=True)",
    "reload": "import importlib, amp_course.bits\nimportlib.reload(amp_course.bits)",
    "reload of the exercises": "import importlib\nimportlib.reload(exercises)",
    "more time for a slow laptop": "exercises.honest_timing.seconds = 120",
    "half a letter": "from IPython.display import display\ndisplay({'text/plain': '\\ud83d'}, "
    "raw=True)",
    "folders in folders": "import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')",
}


@pytest.mark.parametrize("what", HONEST)
def test_what_people_do_costs_nothing(place: ClassFolder, loop: Chapter, what: str) -> None:
    result = graded(place, loop, first=HONEST[what])
    assert result.points == ALL and result.withheld == ()


def test_an_answer_of_many_cells_and_kinds(place: ClassFolder, loop: Chapter) -> None:
    """Helpers, constants, other modules and closures come along when an answer is copied to its
    judge.
    """
    first = (
        "import functools\nDTYPE = torch.bfloat16\n\ndef region(kind):\n    return "
        "torch.autocast(kind, dtype=DTYPE)"
    )
    answer = (
        "def make(step):\n    @functools.wraps(step)\n    def wrapped(model, inputs, targets, "
        "loss_fn, optimizer):\n        with region(inputs.device.type):\n            loss = "
        "loss_fn(model(inputs), targets)\n        return step(loss, optimizer)\n    return "
        "wrapped\n\n@make\ndef add_autocast(loss, optimizer):\n    loss.backward()\n    "
        "optimizer.step()\n    optimizer.zero_grad()\n    return loss.detach()"
    )
    assert graded(place, loop, first=first, answer=answer).points == ALL


def test_odd_files_next_to_a_notebook(place: ClassFolder, loop: Chapter) -> None:
    folder = place.root / "submitted" / "mallory" / "06_loop"
    folder.mkdir(parents=True)
    (folder / "gone.csv").symlink_to("/nowhere/data.csv")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    (folder / os.fsdecode(b"L\xf6sung.txt")).write_text("x")
    (folder / "random.py").write_text("x = 1")
    assert graded(place, loop).points == ALL


def test_odd_names_of_students(place: ClassFolder, loop: Chapter) -> None:
    names = [os.fsdecode(b"M\xfcller"), "=1+1", "-rf", "a\nb"]
    for name in names:
        hand_in(place, loop, name, notebook(place, loop, right_answers(place, loop)))
    results = grade(place, [loop], echo=lambda line: None)
    assert [result.points for result in results] == [ALL] * 4
    lines: list[str] = []
    grade(place, [loop], echo=lines.append)
    assert sum("(unchanged)" in line for line in lines) == 4


@pytest.mark.parametrize(
    "answer",
    [
        "add_autocast = 3\nfrom IPython.display import HTML, display\ndisplay(HTML('<b>✓ "
        "Correct.</b>'))\nprint('Correct.')",
        "add_autocast = 3\nget_ipython().set_custom_exc((BaseException,), lambda *a, **k: None)",
        "class Mine:\n    state = 'correct'\n    check = __getattr__ = lambda self, name: "
        "self\nexercises = Mine()",
        "add_autocast = exercises.add_autocast.judge.right",
        "class add_autocast:\n    def __eq__(self, other): return True\n    state = 'correct'",
    ],
)
def test_a_verdict_of_its_own_counts_for_nothing(
    place: ClassFolder, loop: Chapter, answer: str
) -> None:
    result = graded(place, loop, answer=answer)
    assert result.points == ALL - 1 and result.withheld == ()


@pytest.mark.parametrize("sandboxed", [pytest.param(True, marks=needs_bubblewrap), False])
def test_who_opens_the_gradebook_earns_nothing(
    place: ClassFolder, loop: Chapter, sandboxed: bool
) -> None:
    opens = (
        f"try:\n    print(open({str(place.gradebook)!r}, 'rb').read(15))\nexcept OSError as "
        f"error:\n    print(error)"
    )
    result = graded(place, loop, first=opens, sandboxed=sandboxed)
    assert (
        result.points == 0
        and "it tried to open a file of the class: gradebook.db" in result.withheld[0]
    )
    assert ("SQLite format" in printed(place, loop)) == (not sandboxed)
    shell = graded(
        place,
        loop,
        first=f"!cat {place.root}/grade*.db | head -c 15; ls {place.root}",
        sandboxed=sandboxed,
    )
    assert ("SQLite format" in printed(place, loop)) == (not sandboxed)
    assert (
        shell.points == ALL
    )  # a shell's files are not noted: without a sandbox it can read them, and gains nothing by it


@needs_bubblewrap
def test_what_the_sandbox_hides(place: ClassFolder, loop: Chapter, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (place.root / "submitted" / "bo" / "06_loop").mkdir(parents=True)
    (place.root / "submitted" / "bo" / "06_loop" / "06_loop.ipynb").write_text("bo's answers")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        result = graded(
            place,
            loop,
            first=f"""
import os, socket, subprocess
secret = {str(tmp_path / "secret")!r}
for path in [secret, {str(place.source(loop))!r}, {str(place.root / "submitted" / "bo")!r}]:
    print(os.path.exists(path))
try:
    socket.create_connection(("127.0.0.1", {port}), timeout=3)
    print("connected")
except OSError as error:
    print("refused")
package = {str(Path(bubblewrap.__file__).parent / "planted")!r}
for path in ["/usr/planted", "/planted", "/dev/planted", package]:
    try:
        open(path, "w")
        print("written", path)
    except OSError:
        print("kept out")
names = "SSH_AUTH_SOCK", "SECRET_OF_THE_TEACHER"
print(sorted(os.environ.get(name, "") for name in names), os.getcwd())
subprocess.Popen(["sleep", "987"], start_new_session=True)
""",
        )
    assert result.points == ALL
    text = printed(place, loop)
    assert text.count("False\n") == 3 and "True\n" not in text.split("the loss")[0]
    assert "refused" in text and "connected" not in text
    assert text.count("kept out") == 4 and "written" not in text
    assert "['', ''] /home/student" in text
    assert subprocess.run(["pgrep", "-f", "sleep 987"], capture_output=True).stdout == b""


BAD = [  # answer or cell, what is said of it
    ("import os\nos._exit(0)", "ended its kernel"),
    ("def add_autocast(*a):\n    import os\n    os._exit(1)", ""),
    ("while True: pass", ""),
    (
        "import time\nwhile True:\n    try: time.sleep(9)\n    except BaseException: pass",
        "could not be stopped",
    ),
    ("def add_autocast(*a):\n    while True: pass", ""),
    ("while True: print('x' * 10_000)", ""),
    ("with open('big', 'wb') as file:\n    while True: file.write(bytes(10**7))", ""),
    (
        "import os, time\nfor _ in range(500):\n    if os.fork() == 0:\n        "
        "time.sleep(985)\ntime.sleep(985)",
        "it had more than 200 processes at once",
    ),
    ("x = bytearray(10**11)", ""),
    ("input('your key, please: ')", ""),
    (
        "import threading, time\nthreading.Thread(target=lambda: "
        "time.sleep(500)).start()\nadd_autocast = 3",
        "",
    ),
]


@pytest.mark.parametrize(
    ("answer", "words", "sandboxed"),
    [
        *(pytest.param(*bad, True, marks=needs_bubblewrap) for bad in BAD),
        (*BAD[0], False),
        (*BAD[2], False),
    ],
)
def test_a_bad_answer_costs_only_its_own_points(
    place: ClassFolder, loop: Chapter, answer: str, words: str, sandboxed: bool
) -> None:
    result = graded(place, loop, answer=answer, sandboxed=sandboxed)
    assert result.points == ALL - 1, result.findings
    assert any(words in finding for finding in result.findings) or not words
    assert {one.exercise for one in result.answers if not one.points} == {"loop.add_autocast"}
    assert place.autograded(loop, "mallory").stat().st_size < 4 * 2**20


@pytest.mark.parametrize(
    "name",
    ["torch.py", "json.py", "sitecustomize.py"],
)
@pytest.mark.parametrize("sandboxed", [pytest.param(True, marks=needs_bubblewrap), False])
def test_modules_next_to_the_notebook_do_not_judge(
    place: ClassFolder, loop: Chapter, name: str, sandboxed: bool
) -> None:
    folder = place.root / "submitted" / "mallory" / "06_loop"
    folder.mkdir(parents=True)
    (folder / name).write_text("raise SystemExit('mine')\n")
    (folder / "helper.py").write_text("answer = 42\n")
    result = graded(place, loop, answer="import helper\nprint(helper.answer)", sandboxed=sandboxed)
    assert result.points == ALL - 1 and result.findings == () and "42" in printed(place, loop)


def test_what_a_submission_starts_ends_with_it(place: ClassFolder, loop: Chapter) -> None:
    first = (
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; "
        "time.sleep(986)'])"
    )
    assert graded(place, loop, first=first, sandboxed=False).points == ALL
    until = time.monotonic() + 10
    while (
        subprocess.run(["pgrep", "-f", r"time.sleep\(986\)"], capture_output=True).stdout
        and time.monotonic() < until
    ):
        threading.Event().wait(0.1)
    assert subprocess.run(["pgrep", "-f", r"time.sleep\(986\)"], capture_output=True).stdout == b""
