"""Wrong calls of `audit`, as learners make them, and what it should say. A few only look wrong.

    bad.call(audit)    calls it wrongly
    bad.says           regular expressions; the message, or the report, has to match each
    bad.hangs          it runs for `PATIENCE` seconds unless it is stopped

Most are written in bad_input.toml. An error from deep inside, such as AttributeError: 'NoneType'
object has no attribute 'parameters', is no good message, even if its words happen to match.
"""

from __future__ import annotations

import copy
import functools
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from amp_course.audit.arguments import as_list
from tests.audit.written import SOUND, make, read

Audit = Callable[..., Any]
PATIENCE = 90.0  # seconds


class NobodyStopped(BaseException):
    """What should have been stopped ran to its end. Not an Exception, which a step may catch."""


def wait_for_ever() -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        time.sleep(0.02)
    raise NobodyStopped


@dataclass(frozen=True)
class BadInput:
    name: str
    call: Callable[[Audit], Any]
    says: tuple[str, ...] = ()
    hangs: bool = False


NAMES = {"wait_for_ever": wait_for_ever, "NobodyStopped": NobodyStopped, "PATIENCE": PATIENCE}
BASE = SOUND | {"names": NAMES, "optimizer": "SGD, lr=0.1, momentum=0.9"}


def call(name: str, case: dict[str, Any], audit: Audit) -> Any:
    step, arguments, names = make(name, case, BASE)
    changed = eval(f"dict({case.get('change', '')})", names | {"step": step})
    return audit(**{"train_step": step} | arguments | changed)


BAD_INPUTS = [
    BadInput(
        name,
        functools.partial(call, name, case),
        tuple(as_list(case.get("says"))),
        case.get("hangs", False),
    )
    for name, case in read("bad_input.toml").items()
]


def with_number(argument: str, value: Any, audit: Audit) -> Any:
    return call(argument, {"change": "loss=plain"}, functools.partial(audit, **{argument: value}))


# accumulate has to be a whole number from 1 on, max_norm and tolerance have to be positive
NUMBERS = {
    "accumulate": (-1, 0, 1.5, float("nan"), "2", None, [2], 2.0, True, torch.tensor(1)),
    "max_norm": (-1.0, 0.0, float("nan"), "1.0", [1.0], 1j),
    "tolerance": (-0.1, float("nan"), "0.1", (0.1,), 1j),
}
BAD_INPUTS += [
    BadInput(f"{name}={value!r}", functools.partial(with_number, name, value), (name,))
    for name, values in NUMBERS.items()
    for value in values
]


def step_defaults(audit: Audit) -> Any:
    """Nothing is wrong: a counter in `__defaults__`, which has to be put back."""
    inner, arguments, _ = make("a step", {}, BASE)

    def step(x: Any, y: Any, calls: int = 0) -> None:
        step.__defaults__ = (calls + 1,)
        inner(x, y)

    report = audit(step, **arguments)
    assert step.__defaults__ == (0,), "the default arguments were not put back"
    return report


def step_calls_audit(audit: Audit) -> Any:
    """Audits inside an audit are allowed, as long as they come to an end."""
    inner, arguments, _ = make("a step", {}, BASE)
    depth = (n for n in count(1))  # a generator, which is not put back

    def step(x: Any, y: Any) -> None:
        if next(depth) < 4:
            audit(step, **arguments)
        inner(x, y)

    return audit(step, **arguments)


def interrupted(audit: Audit, twice: bool) -> Any:
    """KeyboardInterrupt passes through; a second one waits until everything is put back."""
    inner, arguments, _ = make("a step", {}, BASE)
    calls, armed = (n for n in count(1)), False

    class Slow(type):  # whose attributes a snapshot puts back
        def __setattr__(cls, name: str, value: object) -> None:
            if armed:
                signal.raise_signal(signal.SIGINT)
            type.__setattr__(cls, name, value)

    class Counter(metaclass=Slow):
        number = 1

    def step(x: Any, y: Any) -> None:
        nonlocal armed
        Counter.number += 1
        if next(calls) == 3:
            armed = twice
            raise KeyboardInterrupt
        inner(x, y)

    before = copy.deepcopy(arguments["model"].state_dict())
    try:
        return audit(step, **arguments)
    finally:
        armed = False
        assert Counter.number == 1, "the attribute was not put back"
        after = arguments["model"].state_dict()
        assert all(torch.equal(before[name], after[name]) for name in after)


BAD_INPUTS += [
    BadInput("a step that changes its own default arguments", step_defaults),
    BadInput("a step that calls audit", step_calls_audit),
    BadInput("Ctrl-C during the audit", functools.partial(interrupted, twice=False)),
    BadInput(
        "Ctrl-C twice, in the step and while it is put back",
        functools.partial(interrupted, twice=True),
    ),
]
