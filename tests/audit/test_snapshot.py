"""Objects that a step can change in unusual ways: a snapshot puts each back, in place."""

import collections
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from amp_course.audit.snapshot import Snapshot

# The step, and a function that returns what is compared before and after it
Scene = tuple[Callable[[], Any], Callable[[], Any]]


class Plain:
    def __init__(self) -> None:
        self.number = 1


def frozen_slots() -> Scene:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Frozen:
        number: int

    one = Frozen(1)
    return lambda: object.__setattr__(one, "number", 2), lambda: one.number


def expanded_tensor() -> Scene:
    base = torch.zeros(1)
    wide = base.expand(4)
    return lambda: (wide, base.add_(1)), lambda: wide.tolist()


def base_of_a_view() -> Scene:
    view = torch.zeros(6)[:2]
    return lambda: view.as_strided((6,), (1,)).add_(1), view._base.tolist  # type: ignore


def total_that_keeps_graphs() -> Scene:
    total, loss = torch.zeros(()), torch.ones((), requires_grad=True) * 2
    return lambda: total.add_(loss), lambda: (total.item(), total.requires_grad, total.is_leaf)


def containers_with_attributes() -> Scene:
    class Meters(dict):  # type: ignore[type-arg]
        steps = 0

    class History(list):  # type: ignore[type-arg]
        best = 1.0

    class Window(collections.deque):  # type: ignore[type-arg]
        total = 0

    meters, history, window = Meters(), History(), Window(maxlen=3)

    def step() -> None:
        meters.steps += 1
        history.best /= 2
        window.total += 3

    return step, lambda: (meters.steps, history.best, window.total)


def order_of_recently_used() -> Scene:
    cache = collections.OrderedDict(a=1, b=2, c=3)
    cache.move_to_end("a")
    return lambda: cache.move_to_end("b"), lambda: list(cache.items())


def sparse_gradient() -> Scene:
    table = torch.nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 3])).sum().backward()

    def step() -> None:
        table.weight.grad.zero_()  # type: ignore[union-attr]

    return step, lambda: table.weight.grad.to_dense().tolist()  # type: ignore[union-attr]


def counter_with_two_owners() -> Scene:
    one, other = Plain(), Plain()
    one.counter = other.counter = itertools.count(3)  # type: ignore[attr-defined]

    def state() -> Any:
        return repr(one.counter), one.counter is other.counter  # type: ignore[attr-defined]

    return lambda: next(one.counter) and other, state  # type: ignore[attr-defined]


SCENES = [
    frozen_slots,
    expanded_tensor,
    base_of_a_view,
    counter_with_two_owners,
    containers_with_attributes,
    order_of_recently_used,
    sparse_gradient,
]


@pytest.mark.parametrize("make", SCENES, ids=lambda make: make.__name__)
def test_a_snapshot_puts_back(make: Callable[[], Scene]) -> None:
    step, state = make()
    before = state()
    snapshot = Snapshot([], {"the step": step})
    for _ in range(2):
        step()
        assert state() != before
        snapshot.restore()
        assert state() == before and not snapshot.lost


def test_a_generator_that_delegates_is_named() -> None:
    def forever() -> Any:
        while True:
            yield from [1, 2, 3] * 5

    numbers = forever()
    next(numbers)
    snapshot = Snapshot([], {"the step": lambda: next(numbers)})
    next(numbers)
    snapshot.restore()
    assert "numbers" in snapshot.lost
