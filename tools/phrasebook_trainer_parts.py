"""What a trainer is given, and what `amp_course.watching` sees of a training with it.

Each trains a tiny model for four updates of two unequal micro-batches. In fp16 it is given a
`GradScaler("cpu")`, which these libraries do not make on a CPU, and an inf is put into a gradient
of the second update.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amp_course.watching import taps
from amp_course.watching.process import SavedStates
from amp_course.watching.records import Call, Intervention, Training, Update
from amp_course.watching.script import Clip, Script, ScriptObserver

Facts = dict[str, str]
LIMIT, SCALE, OVERFLOW = 0.1, 2.0**10, 1  # to clip to; the first scale; number of the bad update


class Parts:
    """What a trainer is given: a model, fused Adam or not, a schedule, a scaler for fp16; and what
    was seen of them.

    places: where the training came by → what autocast and the dtype were there
    flags:  what the trainer said after each update, by the name of what said it
    now:    the update that goes on
    """

    def __init__(self, model: nn.Module, layer: nn.Module, *, fused: bool = False) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: 1 / (1 + n))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        self.places: dict[str, set[str]] = defaultdict(set)
        self.flags: dict[str, list[Any]] = defaultdict(list)
        self.updates: list[Update] = []
        self.script, self.saved = Script(), SavedStates()
        layer.register_forward_hook(lambda module, args, output: self.came_by("layer", output))

    def came_by(self, place: str, output: Tensor) -> None:
        self.places[place].add("on" if torch.is_autocast_enabled("cpu") else "off")
        self.places[f"{place}'s dtype"].add(str(output.dtype).removeprefix("torch."))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.came_by("loss", outputs)
        return cross_entropy(outputs, targets)

    @contextmanager
    def watched(self, *, scaled: bool = False) -> Iterator[None]:
        """Record the updates; with a scaler, put an inf into one of them."""

        def complete(update: Update) -> Intervention | None:
            self.updates.append(update)
            inject = scaled and len(self.updates) == OVERFLOW
            return Intervention(inject_inf=frozenset({(0, 0)})) if inject else None

        scalers = [self.scaler] if scaled else []
        training = Training(lambda: None, [self.model], [self.optimizer], scalers, [self.schedule])
        observer = ScriptObserver(training, nullcontext, complete, self.script)
        self.now = lambda: observer.update
        with taps.listening(self.saved), observer:
            yield
            observer.end_update()
        if observer.trouble:
            raise observer.trouble

    def at(self, place: str) -> str:
        return " and ".join(sorted(self.places[place]))

    def scheduler(self) -> str:
        """Return what the scheduler did in the update whose step was skipped."""
        bad = self.script.summaries[OVERFLOW]
        if not bad.skipped:
            raise RuntimeError("no step was skipped")
        return "steps" if bad.moves else "waits"

    def moves(self) -> str:
        return str(self.script.summaries[0].moves)

    def divided(self) -> str:
        """Return by what the loss was divided; the graph of it tells."""
        return "micro-batches" if self.script.summaries[0].divided else "nothing"

    def unscaled(self) -> str:
        """Return when gradients lose the scale: by `unscale_`, or in the scaler's step."""
        calls = [one.name for one in self.updates[0].of(Call)]
        return "before the step" if "unscale" in calls else "in the step"

    def scaled(self) -> str:
        return "scaled" if self.updates[0].called("scale") else "not scaled"

    def clipped(self) -> str:
        """Return what kind of gradients the clipping got."""
        clips = [clip for update in self.updates for clip in update.of(Clip)]
        kinds = {"scaled" if clip.scaled else "unscaled" for clip in clips}
        return " and ".join(sorted(kinds)) or "nothing"

    def limit(self) -> str:
        limits = {str(clip.limit) for update in self.updates for clip in update.of(Clip)}
        return " and ".join(limits) or "nothing"

    def kept(self) -> str:
        """Return what was saved, besides weights."""
        return ", ".join(sorted(self.saved.states))

    def list_files(self, folder: str) -> None:
        self.flags["files"] = [path.name for path in Path(folder).rglob("*") if path.is_file()]

    def scaler_file(self) -> str:
        return " and ".join(name for name in self.flags["files"] if "scaler" in name) or "none"

    def dtypes(self) -> str:
        """Return the dtype of weights and of Adam's averages."""
        state = [one["exp_avg"] for one in self.optimizer.state.values()]
        found = {
            str(one.dtype).removeprefix("torch.") for one in [*self.model.parameters(), *state]
        }
        return " and ".join(sorted(found))

    def scale(self) -> str:
        bad = self.script.summaries[OVERFLOW]
        return "halved" if bad.scales_after[0] == bad.scales[0] / 2 else "kept"


def net(*, fused: bool = False, half: bool = False) -> Parts:
    """Make a small network, in bf16 if `half`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))
    model = model.bfloat16() if half else model
    return Parts(model, model[0], fused=fused)


def batches() -> list[tuple[Tensor, Tensor]]:
    """Make eight batches of 8 and 4 rows in turn."""
    generator = torch.Generator().manual_seed(1)
    sizes = [8, 4] * 4
    return [(torch.randn(size, 16, generator=generator), torch.arange(size) % 5) for size in sizes]


def raised(words: str, run: Callable[..., Any], **options: Any) -> str:
    """Return the kind of error with these words that a run ends with, "nothing" if it ends well."""
    try:
        run(**options)
    except (RuntimeError, NotImplementedError) as error:
        if words not in str(error):
            raise
        return type(error).__name__
    return "nothing"
