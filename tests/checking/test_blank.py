"""Blank answers: what counts as not begun, on this CPython, however it is decorated,
and what does not.
"""

import ast
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from amp_course.authoring import BLANK
from amp_course.checking.blank import is_blank, open_places


def dots(x): ...


def docstring(x, *more, key=1, **others):
    """Say what to do."""


def docstring_and_dots(x):
    """Say what to do."""
    ...


def only_pass(x):
    pass


def returns_nothing(x):
    return


async def asynchronous(x): ...


@torch.no_grad()
def under_no_grad(x): ...


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        print("before")
        return function(*args)

    return inner


@timed
@timed
def wrapped_twice(x):
    """Say what to do."""


class Methods:
    """A class to fill in."""

    def first(self): ...

    def second(self):
        """Say what to do."""


def stub(text: str) -> Callable[..., Any]:
    names: dict[str, Any] = {}
    exec(text, names)
    return names["f"]


BLANKS = {
    "dots itself": ...,
    "dots": dots,
    "docstring": docstring,
    "docstring and dots": docstring_and_dots,
    "pass": only_pass,
    "a bare return": returns_nothing,
    "async": asynchronous,
    "no_grad": under_no_grad,
    "functools.wraps, twice": wrapped_twice,
    "partial": functools.partial(dots, 1),
    "a bound method": Methods().first,
    "a lambda": lambda: ...,
    "a class": Methods,
    "a class with a blank static method": type(
        "Empty", (), {"forward": staticmethod(lambda ctx: None)}
    ),
    "a class with a docstring": type(
        "Empty", (torch.autograd.Function,), {"__doc__": "To be filled in."}
    ),
    "a dict": {"fp32": ..., "amp": ...},
    "nested": {"a": [..., {"b": ...}], "c": (...,)},
    "the authoring stub": stub(f'def f(x):\n    """Say what to do."""\n    {BLANK}\n'),
}


class HalfDone(Methods):
    def third(self) -> int:
        return 3


def clears(x: list[int]) -> None:
    x.clear()


def prints() -> None:
    print("hello")


def returns_none_after_work(x: dict[str, int]) -> None:
    x["a"] = 1
    return None


def raises() -> None:
    raise NotImplementedError


def yields():
    yield


def if_and_return(x):
    if x:
        return 1


def loops():
    while True:
        pass


async def awaits(x):
    await x


BEGUN = {
    "does something and returns None": clears,
    "prints": prints,
    "stores and returns None": returns_none_after_work,
    "returns its argument": lambda x: x,
    "raises": raises,
    "yields": yields,
    "has a branch": if_and_return,
    "loops": loops,
    "awaits": awaits,
    "None": None,
    "an empty dict": {},
    "an empty list": [],
    "the string of dots": "...",
    "half a dict": {"fp32": 16, "amp": ...},
    "tensors in a dict": {"a": torch.ones(2), "b": torch.zeros(2, 2)},
    "a tensor": torch.ones(3),
    "an array": np.ones(3),
    "a builtin": len,
    "a module": torch.nn.Linear(2, 2),
    "a module's class": torch.nn.Linear,
    "a class with one method done": HalfDone,
    "a class without methods": type("Empty", (), {}),
    "a class that makes something": type(
        "Maker", (), {"__doc__": "Some.", "__new__": lambda cls: 1}
    ),
    "a class with a static method": type(
        "Filled", (), {"__doc__": "Some.", "forward": staticmethod(len)}
    ),
    "partial of a builtin": functools.partial(max, 1),
}


@pytest.mark.parametrize("kind", BLANKS | BEGUN)
def test_what_is_blank(kind: str) -> None:
    assert is_blank((BLANKS | BEGUN)[kind]) == (kind in BLANKS)


@pytest.mark.parametrize(
    "body", ["...", "pass", "'doc'; ...", "return", "return None", "x", "x()", "x = 1", "1"]
)
@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("enclosing", ["", "def outer(x):\n    y = x\n    "])
def test_agrees_with_the_syntax_tree(kind: str, body: str, enclosing: str) -> None:
    """Oracle: a body is blank if its statements are only constants, `pass` or an empty return."""
    text = f"{enclosing}{kind} f(x): {body}"
    tree = next(node for node in ast.walk(ast.parse(text)) if getattr(node, "name", "") == "f")
    empty = all(
        isinstance(node, ast.Pass)
        or (
            isinstance(node, (ast.Expr, ast.Return))
            and (node.value is None or isinstance(node.value, ast.Constant))
        )
        for node in tree.body  # type: ignore[attr-defined]
    )
    names: dict[str, Any] = {}
    exec(text + ("\n    return f\nf = outer(1)" if enclosing else ""), names)
    assert is_blank(names["f"]) == empty


@pytest.mark.parametrize(
    ("answer", "places"),
    [
        ({"fp32": 16, "amp": ..., "half": ...}, ["amp", "half"]),
        ([1, ..., 3], ["number 2"]),
        ((..., 2), ["number 1"]),
        ({"a": torch.ones(2)}, []),
        ([np.ones(3), torch.ones(2)], []),
        (16, []),
        (dots, []),
    ],
)
def test_open_places(answer: Any, places: list[str]) -> None:
    assert open_places(answer) == places
