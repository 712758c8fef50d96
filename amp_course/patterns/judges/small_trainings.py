"""A small training to be saved and resumed: Adam, dropout, batch norm, a scheduler and a scaler, which all matter.

`differences` names what of it is not as it was. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.patterns.nested import copied, first_difference

Batch = tuple[Tensor, Tensor]
_INTERVAL = 4  # the scaler grows after so many clean steps: a streak that is lost shows itself soon


class World:
    """Model, optimizer, scheduler and scaler as they are after a start: weights drawn anew, all else at its beginning.

    amp: fp16 autocast and a scaler; without it, fp32 and `scaler` None
    """

    def __init__(self, amp: bool = True, init_scale: float = 2.0**7) -> None:
        """Build it; weights come from torch's global generator."""
        self.model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.4), nn.Linear(16, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.7)
        self.amp = amp
        self.scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=_INTERVAL) if amp else None

    def train(self, batches: list[Batch]) -> None:
        """Make one step for each batch."""
        for inputs, targets in batches:
            with torch.autocast("cpu", dtype=torch.float16, enabled=self.amp):
                loss = nn.functional.cross_entropy(self.model(inputs), targets)
            if self.scaler is None:
                loss.backward()
                self.optimizer.step()
            else:
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            self.optimizer.zero_grad()
            self.scheduler.step()

    def parts(self) -> dict[str, Any]:
        """Return copies of the states: model, optimizer, scheduler, scaler (None without one), rng."""
        return {
            "model": copied(self.model.state_dict()),
            "optimizer": copied(self.optimizer.state_dict()),
            "scheduler": copied(self.scheduler.state_dict()),
            "scaler": None if self.scaler is None else dict(self.scaler.state_dict()),
            "rng": torch.get_rng_state(),
        }


def drawn_batches(generator: torch.Generator, count: int) -> list[Batch]:
    """Draw batches of 6 rows."""
    return [
        (torch.randn(6, 10, generator=generator), torch.randint(4, (6,), generator=generator)) for _ in range(count)
    ]


def equal(some: Any, other: Any) -> bool:
    """Tell whether two states are equal to the last bit, NaN being like NaN."""
    return first_difference(some, other) is None


def differences(got: dict[str, Any], want: dict[str, Any]) -> Iterator[str]:
    """Name the parts of a training that are not equal: "model", "optimizer", …"""
    return (part for part, value in want.items() if not equal(got[part], value))
