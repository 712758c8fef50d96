"""For exercise 4 of chapter 05: a training with two optimizers and the learner's scaler."""

import math
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from amp_course.checking import Case, Wrong, call_answer, read_number, read_tensor
from amp_course.scaler.exercises._shared import gradients, watch_steps
from amp_course.watching.scene import flat

METHODS = ("scale", "step", "update", "get_scale", "state_dict", "load_state_dict")
BAD = {  # in a row of steps → in words, and in a gradient; 4 / 2 of the last is inf
    "i": ("inf", math.inf),
    "-": ("-inf", -math.inf),
    "n": ("NaN", math.nan),
    "h": ("huge finite numbers", 1.5 * 2.0**127),
}
LEFT = "the gradients after the step"


class Run:
    """A training of two optimizers with momentum, two groups and an idle parameter each."""

    def __init__(self, name: str, answer: Any, draw: random.Random, **options: float) -> None:
        self.name, self.number = name, 0
        self.generator = torch.Generator().manual_seed(draw.getrandbits(31))
        start = torch.rand(2, 9, generator=self.generator) + 0.5
        sizes = 2, 2, 2, 3
        self.parameters = [[nn.Parameter(part) for part in one.split(sizes)] for one in start]
        groups = [[{"params": one[:3]}, {"params": one[3:]}] for one in self.parameters]
        self.optimizers = [torch.optim.SGD(two, lr=0.05, momentum=0.9) for two in groups]
        self.used = [watch_steps(one) for one in self.optimizers]
        self.scaler = call_answer(answer, "while making a scaler", **options)
        if missing := [f"`{one}`" for one in METHODS if not hasattr(self.scaler, one)]:
            raise Wrong(f"the scaler has no method {' and no '.join(missing)}")

    def cases(self, rows: str, unscaled: bool = False) -> Iterator[Case]:
        """Train on rows like "iN": inf in the first optimizer's first gradient, NaN in the other's
        last; an optimizer with "_" rests.
        """
        names = "first", "second"
        for row in rows.split():
            self.number += 1
            active = [place for place in (0, 1) if row[place] != "_"]
            bad = " and ".join(
                f"{BAD[row[place].lower()][0]} in the {names[place]} optimizer's gradients"
                for place in active
                if row[place] != "."
            )
            case = f"{self.name}at step {self.number}, with {bad or 'finite gradients'}"
            if len(active) == 1:
                case += f" and a step of the {names[active[0]]} optimizer only"
            losses, scaled = [], []
            for place in active:
                first, second, _, last = self.parameters[place]
                first.grad = second.grad = last.grad = None
                self.used[place].clear()
                # Products of these are exact
                values = torch.randint(2**14, 2**16, (7,), generator=self.generator) / 2**20
                if (mark := row[place]) != ".":
                    where = slice(4) if mark == "h" else 5 if mark.isupper() else 1
                    values[where] = BAD[mark.lower()][1]
                losses.append((torch.cat([first, second, last]) * values).sum())
                loss = call_answer(self.scaler.scale, case, losses[-1])
                subject = "`scale(loss)` returned"
                scaled.append(read_tensor(loss, case, shape=(), subject=subject).float())
                call_answer(loss.backward, case)
            plain = [one.detach() for one in losses]
            outputs: dict[str, Any] = {
                "the scaled loss": scaled,
                "the loss given to `scale`": plain,
            }
            for place in active if unscaled else ():
                if place == 0 or self.number % 2:  # else `step` has to unscale
                    call_answer(self.scaler.unscale_, case, self.optimizers[place])
                    name = f"the {names[place]} optimizer's gradient"
                    outputs[name] = gradients(self.optimizers[place])
                    # This makes an inf finite
                    nn.utils.clip_grad_value_(self.parameters[place], 0.03)
            for place in active if self.number % 3 else active[::-1]:
                call_answer(self.scaler.step, case, self.optimizers[place])
            call_answer(self.scaler.update, case)
            used = [self.used[place] for place in active]
            weights = [flat(one) for one in self.parameters]
            outputs |= {
                "the number of optimizer steps": [len(one) for one in used],
                "the gradient at the step": [one for steps in used for one in steps],
                "the weights": weights,
                "the scale": self.scale(case),
                LEFT: sum(bool(gradients(one).any()) for one in self.optimizers),
            }
            finite = [bool(one.isfinite().all()) for one in weights]
            yield Case(case, outputs, evidence={"finite": finite})

    def scale(self, case: str) -> float:
        return read_number(call_answer(self.scaler.get_scale, case), case, "`get_scale()` returned")

    def save(self) -> Any:
        return call_answer(self.scaler.state_dict, "while saving")

    def load(self, state: Any, answer: Any, **options: float) -> None:
        """Go on with another scaler that loads a state."""
        self.scaler = call_answer(answer, "while making a scaler", **options)
        call_answer(self.scaler.load_state_dict, "while loading", state)
