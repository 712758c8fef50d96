"""Things that a step can change in unusual ways: a snapshot puts each back, in place."""

import collections
import contextlib
import contextvars
import ctypes
import dataclasses
import functools
import hashlib
import io
import itertools
import logging.handlers
import mmap
import multiprocessing
import queue
import random
import sqlite3
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from amp_course.audit import audit
from amp_course.audit.snapshot import Snapshot

Scene = tuple[Callable[[], Any], Callable[[], Any]]  # what the step does, what is looked at before and after

COUNTED = 0
VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("VARIABLE", default=0)


class Plain:
    def __init__(self) -> None:
        self.number = 1


class Other(Plain):
    pass


def class_swapped() -> Scene:
    one = Plain()

    def step() -> None:
        one.__class__ = Other

    return step, lambda: type(one)


def attributes_swapped() -> Scene:
    one = Plain()

    def step() -> None:
        one.__dict__ = {"number": 2}

    return step, lambda: one.number


def frozen_slots() -> Scene:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Frozen:
        number: int

    one = Frozen(1)
    return lambda: object.__setattr__(one, "number", 2), lambda: one.number


def private_slots() -> Scene:
    class Private:
        __slots__ = ("__number",)

        def __init__(self) -> None:
            self.__number = 1

        def count(self) -> None:
            self.__number += 1

        def value(self) -> int:
            return self.__number

    one = Private()
    return one.count, one.value


def descriptor_with_a_store() -> Scene:
    store: dict[str, int] = {}

    class Stored:
        def __get__(self, owner: Any, kind: Any = None) -> int:
            return store.get("number", 1)

        def __set__(self, owner: Any, value: int) -> None:
            store["number"] = value

    class Owner:
        number = Stored()

    one = Owner()

    def step() -> None:
        one.number += 1

    return step, lambda: dict(store)


def metaclass_with_a_registry() -> Scene:
    class Registered(type):
        counts: ClassVar[dict[str, int]] = {}

    class One(metaclass=Registered):
        pass

    def step() -> None:
        type(One).counts["One"] = 1

    return step, lambda: dict(Registered.counts)


def text_in_memory() -> Scene:
    log = io.StringIO("begun")
    log.seek(0, io.SEEK_END)
    return lambda: log.write(" more"), lambda: (log.getvalue(), log.tell())


def array_reshaped_and_locked() -> Scene:
    array = np.arange(6.0)

    def step() -> None:
        array[0] = 9
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # since NumPy 2.5
            array.shape = (2, 3)
        array.flags.writeable = False

    return step, lambda: (array.shape, array.flags.writeable, array.tolist())


def expanded_tensor() -> Scene:
    base = torch.zeros(1)
    wide = base.expand(4)
    return lambda: (wide, base.add_(1)), lambda: wide.tolist()


def base_of_a_view() -> Scene:
    view = torch.zeros(6)[:2]
    return lambda: view.as_strided((6,), (1,)).add_(1), lambda: view._base.tolist()  # type: ignore[union-attr]


def thread_local() -> Scene:
    local = threading.local()
    local.seen = [1]
    return lambda: local.seen.append(2), lambda: list(local.seen)


def globals_by_name() -> Scene:
    def step() -> None:
        globals()["COUNTED"] += 1

    return step, lambda: COUNTED


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


def window_of_a_list() -> Scene:
    class Window(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(self[-2:])

    window = Window([1, 2, 3])
    return lambda: window.append(4), lambda: window[:]


def sparse_gradient() -> Scene:
    table = torch.nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 3])).sum().backward()

    def step() -> None:
        table.weight.grad.zero_()  # type: ignore[union-attr]

    return step, lambda: table.weight.grad.to_dense().tolist()  # type: ignore[union-attr]


def event_and_factory() -> Scene:
    event, counts = threading.Event(), collections.defaultdict(int)

    def step() -> None:
        event.set() if not event.is_set() else event.clear()
        counts.default_factory = list

    return step, lambda: (event.is_set(), counts.default_factory)


def behind_a_weak_reference() -> Scene:
    one = Plain()
    reference = weakref.ref(one)

    def step() -> None:
        reference().number += 1  # type: ignore[union-attr]

    return step, lambda: one.number


def counter_with_two_owners() -> Scene:
    one, other = Plain(), Plain()
    one.counter = other.counter = itertools.count(3)  # type: ignore[attr-defined]
    return lambda: next(one.counter) and other, lambda: (repr(one.counter), one.counter is other.counter)  # type: ignore[attr-defined]


def plain_values_with_attributes() -> Scene:
    kinds: list[Any] = [str, float, random.Random]
    ones = [type("Mine", (kind,), {})() for kind in kinds]

    def step() -> None:
        for one in ones:
            one.hits = getattr(one, "hits", 0) + 1

    return step, lambda: [getattr(one, "hits", 0) for one in ones]


def partial_with_other_arguments() -> Scene:
    one = functools.partial(dict, [1])
    return (
        lambda: one.__setstate__((list, ([],), {}, {})),  # type: ignore[attr-defined]
        lambda: (one.func, one.args),
    )


def memory_lent_by_c() -> Scene:
    ones: list[Any] = [(ctypes.c_int * 2)(), mmap.mmap(-1, 2), memoryview(bytearray(2))]
    value, shared = ctypes.c_int(0), multiprocessing.Value("i", 0)
    storage = torch.zeros(1).untyped_storage()

    def step() -> None:
        for one in [*ones, storage]:
            one[0] += 1
        value.value += 1
        shared.value += 1

    return step, lambda: ([one[0] for one in [*ones, storage]], value.value, shared.value)


def bits_of_numpy() -> Scene:
    one = np.random.PCG64(4)
    return one.random_raw, lambda: one.state["state"]["state"]


def logger_and_handlers() -> Scene:
    logger, memory = logging.getLogger("amp_course.a_test"), logging.handlers.MemoryHandler(1000)
    logger.addHandler(memory)

    def step() -> None:
        logger.error("seen")
        logger.setLevel(logging.ERROR if logger.level != logging.ERROR else logging.INFO)
        logger.addHandler(logging.NullHandler())
        memory.setLevel(memory.level + 1)

    return step, lambda: (
        len(memory.buffer),
        memory.level,
        len(logger.handlers),
        logger.isEnabledFor(logging.INFO),
        logger.getEffectiveLevel(),
    )


def behind_a_property() -> Scene:
    seen: list[int] = []

    class Counts:
        @property
        def one_more(self) -> None:
            seen.append(1)

    one = Counts()
    return lambda: one.one_more, lambda: len(seen)


def semaphore() -> Scene:
    one = threading.Semaphore(9)
    return one.acquire, lambda: one._value


def class_of_a_parameter() -> Scene:
    class Mine(torch.nn.Parameter):
        pass

    one = torch.nn.Parameter(torch.ones(1))

    def step() -> None:
        one.__class__ = Mine

    return step, lambda: type(one)


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x


def attribute_in_torchscript() -> Scene:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises against it
        one = torch.jit.script(Counting())
    return lambda: one(torch.ones(1)), lambda: one.count


SCENES = [
    class_swapped, attributes_swapped, frozen_slots, private_slots, descriptor_with_a_store, metaclass_with_a_registry,
    text_in_memory, array_reshaped_and_locked, expanded_tensor, base_of_a_view, thread_local, globals_by_name,
    counter_with_two_owners, containers_with_attributes, order_of_recently_used, event_and_factory, behind_a_weak_reference,
    window_of_a_list, sparse_gradient, plain_values_with_attributes, partial_with_other_arguments, memory_lent_by_c,
    bits_of_numpy, logger_and_handlers, behind_a_property, semaphore, class_of_a_parameter, attribute_in_torchscript,
]  # fmt: skip


@pytest.mark.parametrize("make", SCENES, ids=lambda make: make.__name__)
def test_a_snapshot_puts_back(make: Callable[[], Scene]) -> None:
    step, look = make()
    before = look()
    snapshot = Snapshot([], {"the step": step})
    for _ in range(2):
        step()
        assert look() != before
        snapshot.restore()
        assert look() == before and not snapshot.lost


def test_a_layer_whose_parametrization_was_removed_works_again() -> None:
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 2))
    x, snapshot = torch.ones(1, 3), Snapshot([layer], {})
    before = layer(x)
    torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")
    snapshot.restore()
    assert torch.equal(layer(x), before) and torch.nn.utils.parametrize.is_parametrized(layer) and not snapshot.lost


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


def coroutine() -> Callable[[], Any]:
    class Pause:
        def __await__(self) -> Any:
            yield

    async def forever() -> None:
        while True:
            await Pause()
            await Pause()

    one = forever()
    return lambda: one.send(None)


def detached() -> Callable[[], Any]:
    one = torch.ones(2, requires_grad=True) * 2
    return lambda: one.detach_()


def lock() -> Callable[[], Any]:
    one = threading.Lock()
    return lambda: one.acquire()


def simple_queue() -> Callable[[], Any]:
    one: queue.SimpleQueue[int] = queue.SimpleQueue()
    return lambda: one.put(1)


def hash_object() -> Callable[[], Any]:
    one = hashlib.sha256()
    return lambda: one.update(b"x")


def spawning() -> Callable[[], Any]:
    one = np.random.SeedSequence(5)
    return lambda: one.spawn(1)


@pytest.mark.parametrize(
    "make", [coroutine, detached, lock, simple_queue, hash_object, spawning], ids=lambda make: make.__name__
)
def test_what_cannot_be_put_back_is_named(make: Callable[[], Callable[[], Any]]) -> None:
    step = make()
    snapshot = Snapshot([], {"the step": step})
    snapshot.restore()
    assert not snapshot.lost
    step()
    snapshot.restore()
    assert set(snapshot.lost) == {"one"}


def test_a_database_that_was_written_to_is_named() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("create table losses (value real)")
        snapshot = Snapshot([], {"the step": lambda: database.execute("insert into losses values (1)")})
        database.execute("insert into losses values (1)")
        snapshot.restore()
    assert set(snapshot.lost) == {"database"}


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[torch.Tensor], torch.Tensor]]:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda x: model(x).square().mean()


def test_a_loss_computed_before_an_audit_can_be_differentiated_after_it() -> None:
    model, optimizer, loss = trained()
    x = torch.randn(4, 2)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss(x).backward()
        optimizer.step()

    wanted = torch.autograd.grad(loss(x), list(model.parameters()))
    pending = loss(x)
    assert audit(step, model=model, optimizer=optimizer, batches=[(x,)]).names == ()
    assert all(map(torch.equal, torch.autograd.grad(pending, list(model.parameters())), wanted))


@pytest.mark.parametrize("keep", [False, True])
def test_a_graph_that_the_step_uses_up_is_named(keep: bool) -> None:
    model, optimizer, loss = trained()
    penalty = [torch.ones(2, requires_grad=True).square().sum()]

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        (loss(x) + penalty[0]).backward(retain_graph=keep)
        optimizer.step()

    report = audit(step, model=model, optimizer=optimizer, batches=[(torch.randn(4, 2),)])
    if keep:
        assert not report.not_put_back and "everything else" not in dict(report.not_checked)
        penalty[0].backward()
    else:
        assert not report.names and dict(report.not_put_back).keys() == {"penalty[0]"}
        assert "penalty[0]" in dict(report.not_checked)["everything else"]


def test_a_step_that_replaces_parameters_is_not_judged() -> None:
    model, optimizer, loss = trained()

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss(x).backward()
        optimizer.step()
        last, group = model[2], optimizer.param_groups[0]  # type: ignore[index]
        new = torch.nn.Parameter(last.weight.detach() * 0.9)
        group["params"] = [new if p is last.weight else p for p in group["params"]]
        last.weight = new

    own, batch = list(model.parameters()), torch.randn(4, 2)
    report = audit(step, model=model, optimizer=optimizer, batches=[(batch,)])
    assert report.names == () and "other parameters" in dict(report.not_checked)["everything else"]
    assert all(a is b for a, b in zip(model.parameters(), own, strict=True))


def test_parameters_that_grow_are_not_judged() -> None:
    model, optimizer, loss = trained()
    bank = torch.nn.Parameter(torch.ones(1, 2))
    model.bank = bank

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        (loss(x) + bank.mean()).backward()
        optimizer.step()
        bank.data = torch.cat([bank.data, bank.data[:1]])

    optimizer.add_param_group({"params": [bank]})
    report = audit(step, model=model, optimizer=optimizer, batches=[(torch.randn(4, 2),)])
    assert report.names == () and "other parameters" in dict(report.not_checked)["everything else"]
    assert bank.shape == (1, 2)


_IMPORTS_AND_SETS = """
import logging, sys, torch
from amp_course.audit import audit
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(x):
    import imported_late
    logging.disable(logging.INFO)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
report = audit(step, model=model, optimizer=optimizer, batches=[(torch.ones(4, 2),)])
print([name for name, _ in report.not_put_back], logging.root.manager.disable)
report = audit(step, model=model, optimizer=optimizer, batches=[(torch.ones(4, 2),)])
print(report.not_put_back)
"""


@pytest.mark.slow
def test_settings_that_changed_while_something_was_imported_are_named(tmp_path: Path) -> None:
    (tmp_path / "imported_late.py").write_text("")
    code = f"import sys; sys.path.append({str(tmp_path)!r}){_IMPORTS_AND_SETS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["['the settings of `logging`'] 20", "()"], done.stderr


@pytest.mark.parametrize("seed", range(12))
def test_a_step_that_draws_rows_of_its_own_is_not_accused(seed: int) -> None:
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    rows = torch.arange(4000.0).view(1000, 4) / 4000
    drawn = itertools.cycle(torch.utils.data.DataLoader(rows, batch_size=2, shuffle=True))

    def step(x: torch.Tensor) -> None:
        x = torch.cat([x, next(drawn)])
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = torch.nn.functional.mse_loss(model(x), x[:, :2])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    report = audit(step, model=model, optimizer=optimizer, scaler=scaler, batches=[(torch.randn(8, 4),)])
    assert report.names == () and "loss scale" in dict(report.not_checked) and report.not_put_back, report


def test_a_context_variable_is_as_before_an_audit() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        VARIABLE.set(VARIABLE.get() + 1)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    assert audit(step, model=model, optimizer=optimizer, batches=[(torch.ones(4, 2),)])
    assert VARIABLE.get() == 0
