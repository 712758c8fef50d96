"""The words for what answers raise, and the line in which it was raised."""

import errno
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import torch
from torch import nn

from amp_course.checking.explain import _KNOWN, explain, signature, where
from tests.checking.raised import PROVOKED, raised_by

MINE = explain.__code__.co_filename.replace("amp_course/", "amp_course_mine/")


@pytest.mark.parametrize(
    ("function", "words"), PROVOKED, ids=lambda value: getattr(value, "__name__", "")
)
def test_known_message_is_explained(function: Callable[[], Any], words: str) -> None:
    error = raised_by(function)
    text = explain(error)
    assert text.startswith(f"your code raised {type(error).__name__}")
    assert words in text.split("`", 2)[2], text  # after the message and the line that are quoted
    first, last = (
        function.__code__.co_firstlineno,
        max(line or 0 for _, _, line in function.__code__.co_lines()),
    )
    assert any(f"in line {n}, `" in text for n in [*range(first, last + 1)]), text
    assert "\n" not in text


def test_every_known_pattern_is_provoked() -> None:
    found = set()
    for function, _ in PROVOKED:
        error = raised_by(function)
        raised = f"{type(error).__name__}: {error}".strip()
        found.add(next(n for n, pattern in enumerate(_KNOWN) if re.search(pattern, raised)))
    assert found == set(range(len(_KNOWN)))


@pytest.mark.parametrize(
    "use",
    [
        "p.grad /= 2",
        "p.grad = p.grad / 2",
        "torch.isfinite(p.grad)",
        "p.data.sub_(p.grad)",
        "p.grad.mul_(0.5)",
        "nn.utils.get_total_norm([p.grad, torch.ones(1)])",
        "nn.utils.get_total_norm([torch.ones(1), p.grad])",
    ],
)
def test_a_gradient_that_is_none_is_explained_however_it_is_used(use: str) -> None:
    with NamedTemporaryFile("w", suffix=".py") as file:
        file.write(use)
        file.flush()
        names = {"torch": torch, "nn": nn, "p": nn.Parameter(torch.ones(1))}
        text = explain(raised_by(lambda: exec(compile(use, file.name, "exec"), names)))
    assert text.endswith("Skip that parameter") and f"`{use}`: a gradient is None" in text, text


def test_the_line_is_the_learners_own_innermost() -> None:
    def inner() -> None:
        nn.Linear(3, 2)(torch.ones(2, 2))  # this line

    assert where(raised_by(lambda: inner())).endswith(
        "`nn.Linear(3, 2)(torch.ones(2, 2))  # this line`"
    )


@pytest.mark.parametrize(
    "file",
    [
        "/home/me/course/.venv/lib/python3.11/site-packages/torch/nn/modules/linear.py",
        "/home/me/.local/lib/python3.12/site-packages/torch/x.py",
        "/usr/lib/python3/dist-packages/numpy/x.py",
        r"C:\Users\me\course\.venv\Lib\site-packages\torch\x.py",
        "<frozen importlib._bootstrap>",
        re.__file__,
        explain.__code__.co_filename,
    ],
)
def test_library_lines_are_not_the_learners(file: str) -> None:
    names: dict[str, Any] = {}
    exec(compile("\n\ndef f(call): call()", file, "exec"), names)

    def fails() -> None:
        raise ValueError("x")

    text = where(raised_by(lambda: names["f"](fails)))
    assert text.endswith('`raise ValueError("x")`')
    exec(compile("\n\ndef f(call): 1 / 0", file, "exec"), names)
    assert "names" in where(raised_by(lambda: names["f"](None)))  # the line that called it


@pytest.mark.parametrize(
    "file",
    ["/tmp/ipykernel_12/345.py", "<stdin>", MINE],
)
def test_learners_files(file: str) -> None:
    names: dict[str, Any] = {}
    exec(compile("\n\ndef f(): 1 / 0", file, "exec"), names)
    assert where(raised_by(names["f"])) == " in line 3"


def test_a_function_that_cannot_be_called_as_the_task_says() -> None:
    text = explain(TypeError("f() takes 1 positional argument but 5 were given"))
    assert "compare its signature with the call" in text
    assert "5 were given" in text


def test_not_implemented() -> None:
    def todo() -> None:
        raise NotImplementedError

    assert re.fullmatch(
        r"your code raised NotImplementedError in line \d+, `raise NotImplementedError`: part of "
        r"it is still to be written",
        explain(raised_by(todo)),
    )
    text = explain(raised_by(lambda: nn.Module()(1)))
    assert 'missing the required "forward" function' in text
    assert "still to be written" not in text


def test_a_full_disk_is_not_the_answers_fault() -> None:
    """Raised by the judge, when it writes a file to try the answer with."""
    text = explain(OSError(errno.ENOSPC, "No space left on device"))
    assert text == (
        "the check could not continue with your answer (OSError: [Errno 28] No space left on "
        "device). The disk is full, so delete something from it"
    )


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Broken(), "raised Broken in line"),
        (ValueError(), "raised ValueError in line"),
        (ValueError("x" * 10**6), "raised ValueError (xxx"),
        (ValueError("first\nsecond"), "raised ValueError (first) in line"),
        (ValueError("a \ud800 b"), "raised ValueError (a ? b) in line"),
        (
            ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
            "raised ExceptionGroup (two (2 sub-exceptions)) in line",
        ),
        (GeneratorExit(), "raised GeneratorExit in line"),
    ],
)
def test_unusual_errors(error: BaseException, words: str) -> None:
    def fails() -> None:
        raise error

    text = explain(raised_by(fails))
    assert words in text
    assert len(text) < 500
    text.encode()


def test_errors_of_one_cause_are_alike_in_any_folder(tmp_path: Path) -> None:
    def missing(path: Path) -> str:
        return signature(raised_by(lambda: torch.load(path)))

    assert missing(tmp_path / "one" / "a.pt") == missing(tmp_path / "two" / "deeper" / "a.pt")
    assert missing(tmp_path / "one" / "a.pt") != missing(tmp_path / "one" / "b.pt")
    assert signature(ValueError("a / b is 2. And more")) == "ValueError: a / b is 2"
