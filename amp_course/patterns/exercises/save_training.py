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
    read_number,
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
    task="Write `save_training(path, model, optimizer, scaler, scheduler, step)`: one file with "
    "everything a run needs to go on as if it had never stopped, a dict with the keys model, "
    "optimizer, scaler, scheduler, rng and step, which `torch.load(path, weights_only=True)` "
    "accepts. The run goes on unchanged. A save that is killed leaves the old file whole. Other "
    "folders may be on other disks.",
    hints=(
        "What does each part remember between two steps? And what is at the path while the new "
        "file is being written?",
        "Take four `state_dict()`s, `torch.get_rng_state()` and the step. Write them to another "
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
    """A first save; one that is killed while it pickles the scheduler; one over the old file.
    The last two are watched.
    """

    class Bomb:
        def __reduce__(self) -> Any:
            raise SystemExit

    with tempfile.TemporaryDirectory() as folder:
        path, second_name, run = (
            Path(folder, "runs", "run.pt"),
            Path(folder, "second name"),
            Run(draw, every=2),
        )
        path.parent.mkdir()
        run.train(7)  # three updates, and the gradients of half a group
        before = run.snapshot()
        call_answer(answer, "at the first save", path, *run.parts, 3)
        changes = changed(before, run.snapshot())
        yield Case("after the first save", {"what the save changes": changes, **loaded(path, draw)})

        old = path.read_bytes()
        run.scheduler.bomb = Bomb()  # which is then in its `state_dict()`
        with watched(path) as seen, contextlib.suppress(SystemExit, Failed):
            call_answer(answer, "at a save that is killed", path, *run.parts, 4)
        now = path.read_bytes() if path.exists() else b""
        kept = (
            "the old checkpoint"
            if now == old
            else "a piece of a new checkpoint"
            if now
            else "nothing"
        )
        yield Case(
            "after a save that was killed",
            {"what is left at the path": kept},
            evidence={"seen": [*seen]},
        )

        del run.scheduler.bomb
        path.write_bytes(old)
        run.train(2)
        with contextlib.suppress(OSError):  # a file system without hard links
            os.link(path, second_name)
        with watched(path) as seen:
            call_answer(answer, "at a second save", path, *run.parts, 5)
        same = not second_name.exists() or second_name.read_bytes() == old
        yield Case(
            "at a second save to the same path",
            {
                "what is at the path during the save": sorted({*seen} - {"from another folder"})
                or "a checkpoint",
                "the old file": "unchanged" if same else "written over",
                **loaded(path, draw),
            },
            evidence={"seen": seen},
        )


def loaded(path: Path, draw: random.Random) -> dict[str, Any]:
    """Return what a new training makes of a file, and the step in it."""
    state, new = read_file(path), Run(draw, init_scale=2.0**10)
    if not isinstance(state, dict):
        raise Wrong(
            f"the file holds a {type(state).__name__}, not a dict with the keys that are asked for"
        )
    if missing := [f"`{key}`" for key in KEYS if key not in state]:
        raise Wrong(f"missing from the dict in the file: {', '.join(missing)}")
    loads = [*(part.load_state_dict for part in new.parts), torch.set_rng_state]
    for key, load in zip(KEYS, loads, strict=False):
        try:
            load(state[key])
        except Exception as error:
            source = "torch.get_rng_state" if key == "rng" else f"{key}.state_dict"
            why = "it is None" if state[key] is None else f"its type is {type(state[key]).__name__}"
            if key == "scaler" and isinstance(state[key], dict):
                why = (
                    f"it lacks "
                    f"{', '.join(name for name in new.parts[2].state_dict() if name not in state[key])}"
                )
            elif isinstance(state[key], dict) and key != "rng":
                why = (str(error).split("\n\t")[1:] or [""])[0].rstrip(
                    ". "
                )  # for a model, which names are missing
            elif isinstance(state[key], torch.Tensor):
                why = (
                    f"it is a tensor of shape {tuple(state[key].shape)} and dtype "
                    f"{state[key].dtype}"
                )
            feedback = f"`{key}` in the file cannot be loaded as what `{source}()` returns"
            raise Wrong(f"{feedback} ({why})" if why else feedback) from error
    step = read_number(state["step"], subject="`step` in the file is")
    parts = {f"the {key} loaded from the file": part for key, part in new.states().items()}
    return parts | {"`step` in the file": int(step) if step.is_integer() else step}


@contextlib.contextmanager
def watched(path: Path) -> Iterator[list[str]]:
    """Note what leaves no whole file at the path, and renames into its folder from outside;
    these fail, as between disks.
    """
    seen = []

    def watch(original: Callable[..., Any], *names: Any, **options: Any) -> None:
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
            stack.enter_context(mock.patch.object(os, name, partial(watch, getattr(os, name))))
        yield seen


MODEL, SCALER = '"model": model.state_dict(),', '"scaler": scaler.state_dict(),'
RNG, STATE, REPLACE = '"rng": torch.get_rng_state(),', "state = {", "os.replace(temporary, path)"
TEMPORARY, ELSEWHERE = (
    'temporary = path.with_suffix(".tmp")',
    "temporary = path.parent.parent / 'run.tmp'",
)
SAVE = "torch.save(state, temporary)"

mistakes = [
    Mistake(
        "in place",
        "the new checkpoint was written over the old one: write next to it, then "
        "`os.replace(temporary, path)`",
        edits={TEMPORARY: "temporary = path", REPLACE: ""},
        violates="A save that is killed leaves the old file whole",
    ),
    Mistake(
        "half a file into place",
        "a save that was cut short still put its half-written file in the place of the old "
        "checkpoint: call `os.replace` only if `torch.save` came to its end, so neither in "
        "`finally` nor after an `except`",
        edits={SAVE: f"try:\n    {SAVE}\nfinally:\n    {REPLACE}", REPLACE: ""},
    ),
    Mistake(
        "copies over",
        "the old file was written over, and a kill in the middle of that leaves no whole file: "
        "write next to it, and end with a rename, `os.replace(temporary, path)`",
        edits={REPLACE: "import shutil\nshutil.copyfile(temporary, path)"},
    ),
    Mistake(
        "removes first",
        "the old checkpoint was removed before the new one was in its place: `os.replace` does "
        "both at once",
        edits={REPLACE: "path.unlink(missing_ok=True)\nos.rename(temporary, path)"},
    ),
    Mistake(
        "renames from another folder",
        "a rename from another folder fails if that is on another disk: put the temporary file "
        "next to the path",
        edits={TEMPORARY: ELSEWHERE},
    ),
    Mistake(
        "moves from another folder",
        "from another disk, a move writes over the old file, and can be killed halfway: write "
        "next to the path",
        edits={TEMPORARY: ELSEWHERE, REPLACE: "import shutil\nshutil.move(temporary, path)"},
    ),
    Mistake(
        "another name",
        "there is no file at the path, perhaps only one next to it: save to exactly the path that "
        "was passed in",
        edits={REPLACE: "os.replace(temporary, f'{path}.pt')"},
    ),
    *(
        Mistake(
            f"no {key}",
            f"`{key}` is not in the file: {lost}",
            edits={line: ""},
            violates="everything a run needs",
        )
        for key, line, lost in (
            (
                "optimizer",
                '"optimizer": optimizer.state_dict(),',
                "Adam's averages would start over at 0",
            ),
            (
                "scaler",
                SCALER,
                "the scale would start over, and steps would be skipped until it is found again",
            ),
            (
                "scheduler",
                '"scheduler": scheduler.state_dict(),',
                "the learning rate would start its schedule over",
            ),
            (
                "rng",
                RNG,
                "dropout would draw other masks than without a stop. Save `torch.get_rng_state()`",
            ),
        )
    ),
    Mistake(
        "moves the random state",
        "saving changed the random state of the run: read it by `torch.get_rng_state()`; neither "
        "seed nor draw",
        edits={STATE: f"torch.manual_seed(0)\n{STATE}"},
        violates="The run goes on unchanged",
    ),
    Mistake(
        "only parameters",
        "`model` lacks the running statistics of batch norm, which are buffers: "
        "`model.state_dict()` has both",
        edits={MODEL: '"model": dict(model.named_parameters()),'},
    ),
    Mistake(
        "the model itself",
        "`torch.load(path, weights_only=True)` refuses the whole model in the file: save "
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
        "`optimizer.state_dict()`, or altered",
        "the rng loaded from the file": "`rng` in the file is not the random state at the moment "
        "of the save",
        "what is left at the path": "after a save that was killed halfway, {got} is left at the "
        "path: write next to it, and end with one `os.replace`",
        "what is at the path during the save": "in the middle of a second save there is no whole "
        "checkpoint at the path",
        "the old file": "a second save wrote over the old file, which takes time, and a kill can "
        "come at any moment",
    },
)
