"""Exercise 4 of chapter 07: a checkpoint that holds all of a run, and is whole at any moment."""

import contextlib
import errno
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Failed,
    Mistake,
    Wrong,
    call_answer,
    read_dict,
    read_number,
    short,
)
from amp_course.patterns.exercises.trainings import KEYS, Run, changed, read_file

card = Card(
    chapter="patterns",
    name="save_training",
    number=4,
    title="A checkpoint that survives",
    difficulty=3,
    importance=5,
    minutes=10,
    lines=10,
    task="Write `save_training(path, model, optimizer, scaler, scheduler, step)`: save one file "
    "with everything a run needs to go on as if it had never stopped. It holds a dict with the "
    "keys model, optimizer, scaler, scheduler, rng and step, which `torch.load(path, "
    "weights_only=True)` accepts. The run goes on unchanged. A save that is killed leaves the old "
    "file whole. Other folders may be on other disks.",
    hints=(
        "What does each part remember between two steps? And what is at the path while the new "
        "file is being written?",
        "Take four `state_dict()`s, `torch.get_rng_state()` and the step. Write them under another "
        "name in the same folder.",
        "`temporary = path.with_suffix('.tmp')`, `torch.save({…}, temporary)`, "
        "`os.replace(temporary, path)`.",
    ),
    why="Cluster schedulers kill runs without waiting, and the save in progress at that moment is "
    "often the only checkpoint.",
    alternative="`file.flush()` and `os.fsync(file.fileno())` before the rename, which survives a "
    "power cut, too.",
)


def right(path: Any, model: Any, optimizer: Any, scaler: Any, scheduler: Any, step: int) -> None:
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "scheduler": scheduler.state_dict(),
        "rng": torch.get_rng_state(),
        "step": step,
    }
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Save; save again and get killed while pickling the scheduler; save over the old file."""

    class Bomb:
        def __reduce__(self) -> Any:
            raise SystemExit

    with tempfile.TemporaryDirectory() as folder:
        path, run = Path(folder, "runs", "run.pt"), Run(draw, every=2)
        path.parent.mkdir()
        run.train(7)  # three updates, and the gradients of half a group
        before = run.snapshot()
        call_answer(answer, "at the first save", path, *run.parts, 3)
        changes = changed(before, run.snapshot())
        yield Case("after the first save", {"what the save changes": changes, **loaded(path, draw)})

        old = path.read_bytes()
        run.scheduler.bomb = Bomb()  # which is then in its `state_dict()`
        with watch(path) as seen, contextlib.suppress(SystemExit, Failed):
            call_answer(answer, "at a save that is killed", path, *run.parts, 4)
        now = path.read_bytes() if path.exists() else b""
        piece = "a piece of a new checkpoint" if now else "nothing"
        kept = {"what is left at the path": "the old checkpoint" if now == old else piece}
        yield Case("after a save that was killed", kept, evidence={"seen": seen})

        del run.scheduler.bomb
        path.write_bytes(old)
        run.train(2)
        link = Path(folder, "link")
        with contextlib.suppress(OSError):  # a file system without hard links
            os.link(path, link)
        with watch(path) as seen:
            call_answer(answer, "at a second save", path, *run.parts, 5)
        same = not link.exists() or link.read_bytes() == old
        broken = sorted({*seen} - {"from another folder"})
        outputs = {
            "what is at the path during the save": broken or "a checkpoint",
            "the old file": "unchanged" if same else "written over",
            **loaded(path, draw),
        }
        yield Case("at a second save to the same path", outputs, evidence={"seen": seen})


def loaded(path: Path, draw: random.Random) -> dict[str, Any]:
    """Return what a new training makes of a file, and the step in it."""
    new = Run(draw, init_scale=2.0**10)
    state = read_dict(read_file(path), KEYS, subject="the file holds")
    loads = [*(part.load_state_dict for part in new.parts), torch.set_rng_state]
    for key, load in zip(KEYS, loads, strict=False):
        try:
            load(state[key])
        except Exception as error:
            source = "torch.get_rng_state" if key == "rng" else f"{key}.state_dict"
            raise Wrong(
                f"`{key}` in the file cannot be loaded as what `{source}()` returns "
                f"({type(error).__name__}: {short(' '.join(str(error).split()), 200)})"
            ) from error
    step = read_number(state["step"], subject="`step` in the file is")
    parts = {f"the {key} loaded from the file": part for key, part in new.states().items()}
    return parts | {"`step` in the file": int(step) if step.is_integer() else step}


@contextlib.contextmanager
def watch(path: Path) -> Iterator[list[str]]:
    """Note when there is no whole file at the path, and renames into its folder from outside;
    these fail, as between disks.
    """
    seen = []

    def call(original: Callable[..., Any], *names: Any, **options: Any) -> None:
        if len({Path(name).resolve().is_relative_to(path.parent.resolve()) for name in names}) > 1:
            seen.append("from another folder")
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        original(*names, **options)
        try:
            torch.load(path, weights_only=True)
        except FileNotFoundError:
            seen.append("removed" if len(names) == 1 else "moved")
        except Exception:
            seen.append("half")

    with contextlib.ExitStack() as stack:
        for name in ("replace", "rename", "remove", "unlink"):
            stack.enter_context(mock.patch.object(os, name, partial(call, getattr(os, name))))
        yield seen


TEMPORARY, SAVE = 'temporary = path.with_suffix(".tmp")', "torch.save(state, temporary)"
REPLACE, RNG = "os.replace(temporary, path)", "torch.get_rng_state()"
ELSEWHERE = {TEMPORARY: "temporary = path.parent.parent / 'run.tmp'"}
MODEL = '"model": model.state_dict(),'

mistakes = [
    Mistake(
        "in place",
        "the new checkpoint was written over the old one. Write next to it, then "
        "`os.replace(temporary, path)`",
        edits={TEMPORARY: "temporary = path", REPLACE: ""},
        violates="A save that is killed leaves the old file whole",
    ),
    Mistake(
        "half a file into place",
        "a save that was cut short still put its half-written file in the place of the old "
        "checkpoint. Call `os.replace` only after `torch.save` has finished, neither in `finally` "
        "nor after an `except`",
        edits={SAVE: f"try:\n    {SAVE}\nfinally:\n    {REPLACE}", REPLACE: ""},
    ),
    Mistake(
        "copies over",
        "the old file was written over, and a kill halfway leaves no whole file. Write next to it, "
        "and end with a rename, `os.replace(temporary, path)`",
        edits={REPLACE: "import shutil\nshutil.copyfile(temporary, path)"},
    ),
    Mistake(
        "removes first",
        "the old checkpoint was removed before the new one was in its place. `os.replace` does "
        "both at once",
        edits={REPLACE: "path.unlink(missing_ok=True)\nos.rename(temporary, path)"},
    ),
    Mistake(
        "renames from another folder",
        "a rename from another folder fails if that is on another disk. Put the temporary file "
        "next to the path",
        edits=ELSEWHERE,
        violates="Other folders may be on other disks",
    ),
    Mistake(
        "moves from another folder",
        "from another disk, a move writes over the old file and can be killed halfway. Write next "
        "to the path",
        edits={**ELSEWHERE, REPLACE: "import shutil\nshutil.move(temporary, path)"},
    ),
    Mistake(
        "another name",
        "there is no file at the path, perhaps only one next to it. Save to exactly the path that "
        "was passed in",
        edits={REPLACE: "os.replace(temporary, f'{path}.pt')"},
    ),
    *(
        Mistake(
            f"{key} not saved",
            f"`{key}` is not in the file, so {effect}. Save `{state}`",
            edits={f'"{key}": {state},': ""},
            violates="everything a run needs",
        )
        for key, state, effect in (
            ("optimizer", "optimizer.state_dict()", "Adam's averages would start over at 0"),
            ("scaler", "scaler.state_dict()", "steps would be skipped until a scale is found"),
            ("scheduler", "scheduler.state_dict()", "the learning rate would start over"),
            ("rng", RNG, "dropout would draw other masks than without a stop"),
        )
    ),
    Mistake(
        "moves the random state",
        "saving changed the random state of the run. Read it with `torch.get_rng_state()`, and "
        "neither seed nor draw",
        edits={SAVE: f"torch.manual_seed(0)\n{SAVE}"},
        violates="The run goes on unchanged",
    ),
    Mistake(
        "only parameters",
        "`model` lacks the running statistics of batch norm, which are buffers. "
        "`model.state_dict()` has both",
        edits={MODEL: '"model": dict(model.named_parameters()),'},
    ),
    Mistake(
        "the model itself",
        "`torch.load(path, weights_only=True)` refuses the whole model in the file. Save "
        "`model.state_dict()`",
        edits={MODEL: '"model": model,'},
        violates="`torch.load(path, weights_only=True)` accepts",
    ),
]

save_training = Exercise(
    card,
    right,
    cases,
    mistakes,
    messages={
        "what the save changes": "saving changed {got}, and a save should only read the run",
        "the optimizer loaded from the file": "`optimizer` in the file is only part of "
        "`optimizer.state_dict()`, or was altered",
        "the rng loaded from the file": "`rng` in the file is not the random state at the moment "
        "of the save",
        "what is left at the path": "after a save that was killed halfway, {got} is left at the "
        "path. Write next to it, and end with one `os.replace`",
        "what is at the path during the save": "in the middle of a second save there is no whole "
        "checkpoint at the path",
        "the old file": "a second save wrote over the old file, which takes time, and a kill can "
        "come at any moment",
    },
)
