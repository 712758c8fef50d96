"""Exercise 6 of chapter 10: one rank writes the checkpoint, and every rank goes on from it."""

import contextlib
import copy
import functools
import os
import pickle
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Optimizer

from amp_course.checking import Card, Case, Exercise, Mistake, alike
from amp_course.distributed.ranks import call_on_rank, cases_on_ranks, each_question

card = Card(
    chapter="distributed",
    name="share_checkpoint",
    number=6,
    title="Save once, resume everywhere",
    difficulty=3,
    importance=5,
    minutes=12,
    lines=10,
    task="Write `share_checkpoint(path, model, optimizer, scaler)`, which every rank calls. Rank "
    "0 has trained, the others have just started. `model` is a plain module, not wrapped in DDP. "
    "Rank 0, and no other rank, writes the `state_dict()`s of model, optimizer and scaler to "
    "`path`, one file on a disk that all share; then all ranks go on from there, with the same "
    "weights, momentum, scale and growth tracker. `path` may hold an older checkpoint.",
    hints=(
        "Which rank may write, and how do the others learn that the file is complete? They may be "
        "faster than the disk.",
        "`dist.barrier()` returns on no rank before all have called it. It belongs between "
        "writing and reading, and outside of the `if` for rank 0.",
        "`if dist.get_rank() == 0:` save a dict of the three `state_dict()`s; `dist.barrier()`; "
        "then `torch.load(path)` and three times `load_state_dict`, on every rank.",
    ),
    why="A scaler that starts over on one rank skips at other steps than the rest, and a file "
    "that is read too early is an old one, or half of one.",
    alternative="write to a temporary name and `os.replace` it, so that a crash leaves the old "
    "file whole. With sharded models, `torch.distributed.checkpoint` lets every rank write its "
    "own part.",
)


def right(path: str, model: nn.Module, optimizer: Optimizer, scaler: Any) -> None:
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
    if dist.get_rank() == 0:
        torch.save({name: part.state_dict() for name, part in parts.items()}, path)
    dist.barrier()
    saved = torch.load(path)
    for name, part in parts.items():
        part.load_state_dict(saved[name])


class _Disk:
    """Watches who writes into a folder, and lets rank 0 write only once the others cannot come
    before it any more.

    On a fast disk, a rank that reads too early would often be lucky. So writing, or removing an
    older file, waits here until the other rank asks for its next collective, which rank 0 has not
    called yet, or has returned: the verdict depends on no race.
    """

    _hooked = False
    current: "_Disk | None" = None

    def __init__(self, folder: str) -> None:
        self.folder, self.names, self.asked = folder, set[str](), 0
        self.waited: set[str] = set()
        self.progress = Path(folder, "progress")

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Watch the calls in the body."""
        if not _Disk._hooked:  # a hook cannot be taken away
            sys.addaudithook(_Disk._hook)
            _Disk._hooked = True
        writers: Any = (
            torch.serialization
        )  # `torch.save`, however it is spelt, makes its writer by a name in there
        self._save, writers._open_zipfile_writer = writers._open_zipfile_writer, self._saving
        _Disk.current = self
        try:
            with each_question(self._asks):
                yield
        finally:
            self._asks()
            writers._open_zipfile_writer, _Disk.current = self._save, None

    @staticmethod
    def _hook(event: str, args: tuple[Any, ...]) -> None:
        disk, mode = _Disk.current, args[1] if event == "open" else None
        if disk is None:
            return
        if isinstance(mode, str) and set(mode) & set("wxa+") and disk._is_inside(args[0]):
            disk._writes(args[0])
        elif event == "os.remove" and disk._is_inside(args[0]):
            disk._wait("before")

    def _saving(self, file: Any) -> Any:
        if not self._is_inside(file):
            return self._save(file)
        self._writes(file)
        writer = self._save(file)
        self._wait("with an empty file", 0.25)  # for one that reads as soon as there is one
        return writer

    def _is_inside(self, file: Any) -> bool:
        return isinstance(file, (str, os.PathLike)) and os.path.abspath(file).startswith(
            self.folder
        )

    def _writes(self, file: str | os.PathLike[str]) -> None:
        self._wait("before")
        self.names.add(os.path.relpath(file, self.folder))

    def _wait(self, what: str, seconds: float = 0.5) -> None:
        if what not in self.waited and dist.get_rank() == 0:
            until = time.monotonic() + seconds  # for one that asks the disk again and again
            while self._others() <= self.asked and time.monotonic() < until:
                time.sleep(0.001)
        self.waited.add(what)

    def _asks(self) -> None:
        self.asked += 1
        if dist.get_rank() == 1:
            descriptor = os.open(
                self.progress, os.O_WRONLY | os.O_CREAT
            )  # not `open`, which is watched
            os.write(descriptor, b"." * self.asked)
            os.close(descriptor)

    def _others(self) -> int:
        return self.progress.stat().st_size if self.progress.exists() else 0


def _training(seed: int, trained: bool) -> tuple[nn.Module, Optimizer, Any]:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(4, 3)
    for weight in model.parameters():
        weight.data = torch.randn(weight.shape, generator=generator)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=2.0**9 if trained else 2.0**16, growth_interval=100
    )
    for _ in range(3 if trained else 0):
        scaler.scale(model(torch.randn(2, 4, generator=generator)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model, optimizer, scaler


def _lacking(path: str, states: dict[str, Any]) -> str:
    """Say which states the file at `path` lacks, under whatever names or in whatever order it keeps
    them; "" if none.
    """
    if not os.path.exists(path):
        return "there is no file at `path` afterwards"
    held = _read(path)
    if held is None:
        return "the file at `path` can be read neither by `torch.load` nor by `pickle`"
    parts = list(_parts(held))
    missing = [
        name for name, state in states.items() if not any(alike(one, state, 1e-6) for one in parts)
    ]
    return (
        f"the file at `path` lacks the `state_dict()` of {' and '.join(missing)}" if missing else ""
    )


def _read(path: str) -> Any:
    for load in (
        functools.partial(torch.load, weights_only=False),
        lambda name: pickle.loads(Path(name).read_bytes()),
    ):
        with contextlib.suppress(Exception):
            return load(path)
    return None


def _parts(value: Any) -> Iterator[Any]:
    yield value
    inside = (
        value.values()
        if isinstance(value, Mapping)
        else value
        if isinstance(value, (list, tuple))
        else ()
    )
    for one in inside:
        yield from _parts(one)


CASES = ("without an older file", "with the checkpoint of an older training at `path`")


def on_rank(answer: Callable[..., Any], folder: str, seed: int) -> list[Case]:
    """Let the answer share rank 0's training, without and with an older file;
    return the turns of this rank.
    """
    rank, turns, path = dist.get_rank(), [], ""
    for number, case in enumerate(CASES):
        place = Path(folder, str(number))
        older, path = path, str(place / "checkpoint.pt")
        if rank == 0:
            place.mkdir()
            if number and os.path.exists(older):
                shutil.copy(older, path)
        dist.barrier()
        model, optimizer, scaler = _training(seed + number + 2 * rank, trained=rank == 0)
        states = {"model": model, "optimizer": optimizer, "scaler": scaler}
        states = copy.deepcopy({name: part.state_dict() for name, part in states.items()})
        disk = _Disk(str(place))
        with disk.watch():
            call_on_rank(answer, case, path, model, optimizer, scaler)
        momentum = [optimizer.state[weight].get("momentum_buffer") for weight in model.parameters()]
        state = scaler.state_dict()
        wrote = bool(disk.names)
        lacking = (
            _lacking(path, states) if rank == 0 else ""
        )  # the others did not begin with these states
        outputs = {
            "whether this rank writes": wrote,
            "the weights": torch.cat([weight.detach().flatten() for weight in model.parameters()]),
            "the momentum": None
            if None in momentum
            else torch.cat([one.flatten() for one in momentum]),
            "the scale": state["scale"],
            "the growth tracker": state["_growth_tracker"],
            "what `path` lacks": lacking,
        }
        names = " and ".join(f"`{name}`" for name in sorted(disk.names))
        writes = (
            f"rank {rank} writes {names}, and only rank 0 may write: save only if `dist.get_rank() "
            f"== 0`"
            if wrote
            else f"rank {rank} writes nothing to `path`"
        )
        evidence = {
            "wrote": sorted(disk.names),
            "scale": state["scale"],
            "momentum": None in momentum,
            "lacking": lacking,
        }
        turns.append(Case(case, outputs, {"writes": writes}, evidence))
    return turns


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Two trainings, the second with an older checkpoint at `path`."""
    with tempfile.TemporaryDirectory(prefix="amp_course-") as folder:
        yield from cases_on_ranks(on_rank, answer, os.path.realpath(folder), draw.randrange(10_000))


def _looks_for_the_file(path: str, model: nn.Module, optimizer: Optimizer, scaler: Any) -> None:
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
    if dist.get_rank() == 0:
        torch.save({name: part.state_dict() for name, part in parts.items()}, path)
    while not os.path.exists(path):
        time.sleep(0.001)
    saved = torch.load(path)
    for name, part in parts.items():
        part.load_state_dict(saved[name])


PARTS = 'parts = {"model": model, "optimizer": optimizer, "scaler": scaler}'
FIRST, BARRIER = "if dist.get_rank() == 0:", "dist.barrier()"
FOR, RESTORE = "for name, part in parts.items():", "part.load_state_dict(saved[name])"

mistakes = [
    Mistake(
        "every rank writes",
        "every rank writes, to one file at the same time: that of a rank which has just started "
        "may win, or the file may be corrupted. Save only if `dist.get_rank() == 0`",
        edits={FIRST: "if True:"},
        violates="and no other rank",
    ),
    Mistake(
        "reads before it is written",
        "the other ranks do not wait until rank 0 has written, so they find no file, or an old "
        "one. After the writing and before the reading, every rank has to call `dist.barrier()`, "
        "outside the `if` for rank 0",
        edits={BARRIER: "pass"},
        violates="`path` may hold an older checkpoint",
    ),
    Mistake(
        "only the others wait",
        "rank 0 never calls the barrier, so the others wait in it forever: every rank has to call "
        "it",
        edits={BARRIER: "if dist.get_rank() != 0:\n    dist.barrier()"},
    ),
    Mistake(
        "looks for the file",
        "the other ranks wait until there is a file at `path`. It is there as soon as it is "
        "opened, long before it is complete, and an older one is there all along. After the "
        "writing and before the reading, every rank has to call `dist.barrier()`",
        answer=_looks_for_the_file,
    ),
    Mistake(
        "forgets the scaler",
        "the scaler's state is not saved: on the other ranks it starts again at its initial scale",
        edits={PARTS: 'parts = {"model": model, "optimizer": optimizer}'},
        violates="scale and growth tracker",
    ),
    Mistake(
        "forgets the optimizer",
        "the optimizer's state is not saved: on the other ranks its momentum starts again from "
        "zero",
        edits={PARTS: 'parts = {"model": model, "scaler": scaler}'},
        violates="momentum",
    ),
    Mistake(
        "the model alone",
        "only the weights are saved: momentum and loss scale start over on the other ranks",
        edits={PARTS: 'parts = {"model": model}'},
    ),
    Mistake(
        "does not load the scaler",
        "the scaler's state is saved but not loaded: on the other ranks it starts again at its "
        "initial scale",
        edits={RESTORE: 'part.load_state_dict(saved[name]) if name != "scaler" else None'},
    ),
    Mistake(
        "does not load the optimizer",
        "the optimizer's state is saved but not loaded: on the other ranks its momentum starts "
        "again from zero",
        edits={RESTORE: 'part.load_state_dict(saved[name]) if name != "optimizer" else None'},
    ),
    Mistake(
        "does not load the model",
        "the weights are saved but not loaded: the other ranks keep those that they began with",
        edits={RESTORE: 'part.load_state_dict(saved[name]) if name != "model" else None'},
    ),
    Mistake(
        "only rank 0 reads",
        "the other ranks keep the states that they began with: every rank has to read the file "
        "and call `load_state_dict` on model, optimizer and scaler",
        edits={FOR: "for name, part in parts.items() if not dist.get_rank() else ():"},
        violates="all ranks go on from there",
    ),
    Mistake(
        "the scale alone",
        "only the scale is passed on, and the growth tracker starts over: call "
        "`scaler.load_state_dict`",
        edits={
            RESTORE: 'part.load_state_dict(saved[name]) if name != "scaler" else '
            'part.update(saved[name]["scale"])'
        },
    ),
]

share_checkpoint = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-6,
    messages={"whether this rank writes": "{case}, {writes}", "what `path` lacks": "{case}, {got}"},
)
