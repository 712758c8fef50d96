"""Answers to `scaler_class`, written without a look at its table of mistakes."""

import functools

import torch

from amp_course.checking import edited
from amp_course.scaler import DynamicScaler


# a tensor for the scale, one flag for all, the rule by torch's kernel, and a tuple in the state
class WithoutUnscale:
    def __init__(
        self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
    ):
        self.s, self.clean, self.bad = (
            torch.tensor(init_scale),
            torch.zeros((), dtype=torch.int32),
            torch.zeros(()),
        )
        self.options = [growth_factor, backoff_factor, growth_interval]

    def unscale_(self, optimizer): ...

    def scale(self, loss):
        return self.s * loss

    def step(self, optimizer):
        found = torch.zeros(())
        grads = [
            p.grad
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, 1 / self.s)
        self.bad += found
        return found or optimizer.step()

    def update(self):
        torch._amp_update_scale_(self.s, self.clean, self.bad, *self.options)
        self.bad.zero_()

    def get_scale(self):
        return self.s

    def state_dict(self):
        return self.s.item(), self.clean.item(), list(self.options)

    def load_state_dict(self, state):
        scale, clean, self.options = state
        self.s.fill_(scale)
        self.clean.fill_(clean)


TOGETHER = {"self.bad += found": "found = self.bad.add_(found)"}
STATE = "return self.s.item(), self.clean.item(), list(self.options)"


def breaks(scaler, optimizer):
    """Unscale, and leave a group at its first bad gradient."""
    bad = False
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is None:
                continue
            p.grad *= 1 / scaler.s
            if not torch.isfinite(p.grad).all():
                bad = True
                break
    scaler.seen[optimizer] = bad


class Breaks(WithoutUnscale):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.seen = {}

    unscale_ = breaks

    def step(self, optimizer):
        if optimizer not in self.seen:
            self.unscale_(optimizer)
        self.bad += self.seen[optimizer]
        return self.seen[optimizer] or optimizer.step()

    def update(self):
        super().update()
        self.seen.clear()


RIGHT = {"without unscale_": WithoutUnscale}
RIGHT |= {
    kind.__name__: functools.partial(kind, "cpu") for kind in (DynamicScaler, torch.amp.GradScaler)
}
NORM = "norm = sum(float(g.norm()) for g in grads)\nfound.fill_(not 0 <= norm < float('inf'))"
BAD = "self.bad += found"
WRONG = {
    "keeps its options": (
        edited(WithoutUnscale, {"scale, clean, self.options = state": "scale, clean, _ = state"}),
        "forgets its options",
    ),
    "the norm": (edited(WithoutUnscale, {BAD: f"{NORM}\n{BAD}"}), "judges by the norm"),
    "updates at the end of step": (
        edited(
            WithoutUnscale,
            {"return found or optimizer.step()": "found or optimizer.step()\nself.update()"},
        ),
        "updates in `step` and again after it",
    ),
    "skips together": (edited(WithoutUnscale, TOGETHER), "shares what is found"),
    "living state": (
        edited(WithoutUnscale, {STATE: "return self.s, self.clean, self.options"}),
        "the saved state changes",
    ),
    "a new streak": (
        edited(WithoutUnscale, {"self.clean.fill_(clean)": "pass"}),
        "forgets the streak",
    ),
    "loads the scale only": (
        edited(
            WithoutUnscale,
            {
                "scale, clean, self.options = state": "scale, clean, _ = state",
                "self.clean.fill_(clean)": "pass",
            },
        ),
        "saves only the scale",
    ),
    "leaves a group early": (Breaks, "stops at the first inf of a group"),
}
