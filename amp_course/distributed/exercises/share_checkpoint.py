"""Exercise 6 of chapter 10: one rank writes the checkpoint, and all ranks resume from it."""

import contextlib
import copy
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
from amp_course.distributed.ranks import before_each_collective, call_on_rank, cases_on_ranks

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
        "Which rank may write, and how do the others know that the file is complete? They may be "
        "faster than the disk.",
        "`dist.barrier()` returns only after all ranks have called it. Call it between writing and "
        "reading, outside of the `if` for rank 0.",
        "`if dist.get_rank() == 0:` save a dict of the three `state_dict()`s; `dist.barrier()`; "
        "then `torch.load(path)` and three times `load_state_dict`, on every rank.",
    ),
    why="A scaler that starts over on one rank skips other steps than the rest, and a file that is "
    "read too early is an old one, or half of one.",
    alternative="write to a temporary name and `os.replace` it, so that a crash keeps the old "
    "file intact. With sharded models, `torch.distributed.checkpoint` lets every rank write its "
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
    """Records who writes into a folder, and delays rank 0's writing to make the verdict certain.

    On a fast disk, a rank that reads too early would often be lucky. So writing, or removing an
    older file, waits until the other rank asks for its next collective, which rank 0 has not called
    yet, or has returned.
    """

    _hooked = False
    current: "_Disk | None" = None

    def __init__(self, folder: str) -> None:
        self.folder, self.names, self.asked = folder, set[str](), 0
        self.waited = set[str]()
        self.progress = Path(folder, "progress")

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Watch the calls in the body."""
        if not _Disk._hooked:  # a hook cannot be removed
            sys.addaudithook(_Disk._hook)
            _Disk._hooked = True
        writers: Any = torch.serialization  # `torch.save` looks up its writer there by name
        self._save, writers._open_zipfile_writer = writers._open_zipfile_writer, self._saving
        _Disk.current = self
        try:
            with before_each_collective(self._asks):
                yield
        finally:
            self._asks()
            writers._open_zipfile_writer, _Disk.current = self._save, None

    @staticmethod
    def _hook(event: str, args: tuple[Any, ...]) -> None:
        disk = _Disk.current
        if disk is None or event not in ("open", "os.remove") or not disk._is_inside(args[0]):
            return
        if event == "os.remove":
            disk._wait("before", 0.5)
        elif isinstance(args[1], str) and set(args[1]) & set("wxa+"):
            disk._writes(args[0])

    def _saving(self, file: Any) -> Any:
        if not self._is_inside(file):
            return self._save(file)
        self._writes(file)
        writer = self._save(file)
        self._wait("with an empty file", 0.25)  # for a rank that reads as soon as there is a file
        return writer

    def _is_inside(self, file: Any) -> bool:
        named = isinstance(file, (str, os.PathLike))
        return named and os.path.abspath(file).startswith(self.folder)

    def _writes(self, file: str | os.PathLike[str]) -> None:
        self._wait("before", 0.5)
        self.names.add(os.path.relpath(file, self.folder))

    def _wait(self, what: str, seconds: float) -> None:
        """Wait once, at most for some seconds: the other rank may look at the disk in a loop."""
        if what not in self.waited and dist.get_rank() == 0:
            until = time.monotonic() + seconds
            while self._others() <= self.asked and time.monotonic() < until:
                time.sleep(0.001)
        self.waited.add(what)

    def _asks(self) -> None:
        self.asked += 1
        if dist.get_rank() == 1:
            # Not `open`, which is watched
            descriptor = os.open(self.progress, os.O_WRONLY | os.O_CREAT)
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
    scale = 2.0**9 if trained else 2.0**16
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=100)
    for _ in range(3 if trained else 0):
        scaler.scale(model(torch.randn(2, 4, generator=generator)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model, optimizer, scaler


def _lacking(path: str, states: dict[str, Any]) -> str:
    """Say which states the file at `path` lacks, whatever their names and order in it."""
    if not os.path.exists(path):
        return "there is no file at `path` afterwards"
    try:
        held = torch.load(path, weights_only=False)
    except Exception:
        try:
            held = pickle.loads(Path(path).read_bytes())
        except Exception:
            return "the file at `path` can be read neither by `torch.load` nor by `pickle`"
    parts = list(_parts(held))
    missing = [
        name for name, state in states.items() if not any(alike(one, state, 1e-6) for one in parts)
    ]
    lacks = f"the file at `path` lacks the `state_dict()` of {' and '.join(missing)}"
    return lacks if missing else ""


def _parts(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _parts(one)


def on_rank(answer: Callable[..., Any], folder: str, seed: int) -> list[Case]:
    """Share rank 0's training, without and with an older file."""
    rank, found, path = dist.get_rank(), [], ""
    for number, case in enumerate(
        ("without an older file", "with the checkpoint of an older training at `path`")
    ):
        place = Path(folder, str(number))
        older, path = path, str(place / "checkpoint.pt")
        if rank == 0:
            place.mkdir()
            if number and os.path.exists(older):
                shutil.copy(older, path)
        dist.barrier()
        model, optimizer, scaler = _training(seed + number + 2 * rank, trained=rank == 0)
        parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "scaler": scaler}
        states = copy.deepcopy({name: part.state_dict() for name, part in parts.items()})
        disk = _Disk(str(place))
        with disk.watch():
            call_on_rank(answer, case, path, model, optimizer, scaler)
        momentum = [optimizer.state[weight].get("momentum_buffer") for weight in model.parameters()]
        kept = [one for one in momentum if one is not None]
        state = scaler.state_dict()
        # The other ranks did not start with the states that the file should hold.
        lacking = _lacking(path, states) if rank == 0 else ""
        outputs = {
            "whether this rank writes": bool(disk.names),
            "the weights": torch.cat([weight.detach().flatten() for weight in model.parameters()]),
            "the number of parameters with a momentum": len(momentum) - momentum.count(None),
            "the momentum": torch.cat([torch.zeros(0), *(one.flatten() for one in kept)]),
            "the scale": state["scale"],
            "the growth tracker": state["_growth_tracker"],
            "what `path` lacks": lacking,
        }
        names = " and ".join(f"`{name}`" for name in sorted(disk.names))
        writes = (
            f"rank {rank} writes {names}, but only rank 0 may write: save only if "
            "`dist.get_rank() == 0`"
            if names
            else f"rank {rank} writes nothing to `path`"
        )
        evidence = {
            "wrote": sorted(disk.names),
            "scale": state["scale"],
            "momentum": None in momentum,
            "lacking": lacking,
        }
        found.append(Case(case, outputs, {"writes": writes}, evidence))
    return found


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Two trainings, the second with an older checkpoint at `path`."""
    with tempfile.TemporaryDirectory(prefix="amp_course-") as folder:
        yield from cases_on_ranks(on_rank, answer, os.path.realpath(folder), draw.randrange(10_000))


PARTS = 'parts = {"model": model, "optimizer": optimizer, "scaler": scaler}'
FIRST, BARRIER = "if dist.get_rank() == 0:", "dist.barrier()"
FOR, RESTORE = "for name, part in parts.items():", "part.load_state_dict(saved[name])"
SYNC = "Call `dist.barrier()` on every rank, between writing and reading"


def _unless(name: str, instead: str = "None") -> dict[str, str]:
    return {RESTORE: f'{RESTORE} if name != "{name}" else {instead}'}


mistakes = [
    Mistake(
        "every rank writes",
        "all ranks write to one file at the same time: it may end up with the states of a rank "
        "that has just started, or corrupted. Save only if `dist.get_rank() == 0`",
        edits={FIRST: "if True:"},
        violates="and no other rank",
    ),
    Mistake(
        "reads before it is written",
        "the other ranks do not wait until rank 0 has written, so they find no file, or an old "
        f"one. {SYNC}, outside the `if` for rank 0",
        edits={BARRIER: "pass"},
        violates="`path` may hold an older checkpoint",
    ),
    Mistake(
        "only the others wait",
        "rank 0 never calls the barrier, so the others wait there forever: call it on every rank",
        edits={BARRIER: "if dist.get_rank() != 0:\n    dist.barrier()"},
    ),
    Mistake(
        "looks for the file",
        "the other ranks wait until there is a file at `path`. It exists as soon as it is opened, "
        f"long before it is complete, and an older one exists all the time. {SYNC}",
        edits={BARRIER: "while not os.path.exists(path):\n    time.sleep(0.001)"},
    ),
    Mistake(
        "scaler not saved",
        "the scaler's state is not saved, so the other ranks start again at its initial scale",
        edits={PARTS: 'parts = {"model": model, "optimizer": optimizer}'},
        violates="scale and growth tracker",
    ),
    Mistake(
        "optimizer not saved",
        "the optimizer's state is not saved, so on the other ranks the momentum restarts at 0",
        edits={PARTS: 'parts = {"model": model, "scaler": scaler}'},
        violates="momentum",
    ),
    Mistake(
        "the model alone",
        "only the weights are saved, so momentum and loss scale start over on the other ranks",
        edits={PARTS: 'parts = {"model": model}'},
    ),
    Mistake(
        "scaler not loaded",
        "the scaler's state is saved but not loaded, so the other ranks start again at its "
        "initial scale",
        edits=_unless("scaler"),
    ),
    Mistake(
        "optimizer not loaded",
        "the optimizer's state is saved but not loaded, so on the other ranks the momentum "
        "restarts at 0",
        edits=_unless("optimizer"),
    ),
    Mistake(
        "model not loaded",
        "the weights are saved but not loaded, so the other ranks keep their initial weights",
        edits=_unless("model"),
    ),
    Mistake(
        "only rank 0 reads",
        "the other ranks keep their initial states: on every rank, read the file and call "
        "`load_state_dict` on model, optimizer and scaler",
        edits={FOR: "for name, part in parts.items() if not dist.get_rank() else ():"},
        violates="all ranks go on from there",
    ),
    Mistake(
        "the scale alone",
        "only the scale is restored, and the growth tracker starts over: call "
        "`scaler.load_state_dict`",
        edits=_unless("scaler", 'part.update(saved[name]["scale"])'),
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
