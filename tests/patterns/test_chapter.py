"""What chapter 07 says in prose about cells whose outputs are not compared."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amp_course.kit.data import digits
from amp_course.patterns import load_checkpoint, save_checkpoint


@pytest.fixture(scope="module")
def pictures() -> tuple[Tensor, Tensor]:
    data = digits()
    return data.train_x[:1280].flatten(1), data.train_y[:1280]


@pytest.fixture
def batches(pictures: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(pictures[0].split(64), pictures[1].split(64), strict=True))


class Loop:
    """The chapter's net and its first loop."""

    def __init__(self, scale: float = 2.0**16) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=100)

    def backward(self, x: Tensor, y: Tensor) -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()

    def finish(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def step(self, x: Tensor, y: Tensor) -> None:
        self.backward(x, y)
        self.finish()

    def gradient(self) -> Tensor:
        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])


def test_scaled_gradients_have_norms_of_tens_of_thousands(batches: list) -> None:
    loop = Loop()
    loop.backward(*batches[0])
    assert 1e4 < loop.gradient().norm() < 1e5


@pytest.mark.parametrize("exponent", [0, 12])
def test_clipping_while_scaled_leaves_max_norm_over_the_scale(batches: list, exponent: int) -> None:
    norms = {}
    for unscale in (True, False):
        loop = Loop(2.0**exponent)
        loop.optimizer.register_step_pre_hook(
            lambda *_, u=unscale, r=loop: norms.update({u: r.gradient().norm().item()})
        )
        loop.backward(10 * batches[0][0], batches[0][1])
        if unscale:
            loop.scaler.unscale_(loop.optimizer)
        nn.utils.clip_grad_norm_(loop.model.parameters(), max_norm=1.0)
        loop.finish()
    assert norms[True] == pytest.approx(1, rel=1e-3)
    assert norms[False] == pytest.approx(2.0**-exponent, rel=1e-3)


def test_the_sum_and_the_mean_of_means_are_off_and_weights_are_not(batches: list) -> None:
    loop, (x, y) = Loop(), batches[0]

    def gradient(*parts: tuple[slice, float]) -> Tensor:
        loop.model.zero_grad()
        for part, share in parts:
            (cross_entropy(loop.model(x[part]), y[part]) * share).backward()
        return loop.gradient()

    big = gradient((slice(0, 64), 1))

    def off(one: float, other: float) -> float:
        parts = gradient((slice(0, 48), one), (slice(48, 64), other))
        return ((parts - big).norm() / big.norm()).item()

    assert 0.9 < off(1, 1) < 1.3  # about twice the gradient
    assert off(0.5, 0.5) > 0.2
    assert off(48 / 64, 16 / 64) < 1e-5


@pytest.mark.parametrize("waits", [False, True])
def test_the_schedule_runs_ahead_of_the_steps_unless_it_waits(batches: list, waits: bool) -> None:
    loop = Loop(2.0**26)
    scheduler = torch.optim.lr_scheduler.LinearLR(loop.optimizer, 1.0, 0.05, total_iters=20)
    taken: list[int] = []
    loop.optimizer.register_step_pre_hook(lambda *_: taken.append(1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x, y in batches:
            used = loop.scaler.get_scale()
            loop.step(x, y)
            if not waits or loop.scaler.get_scale() >= used:
                scheduler.step()
    assert len(taken) < 18
    assert scheduler.last_epoch == (len(taken) if waits else 20)
    assert any("before `optimizer.step()`" in str(one.message) for one in caught) == (not waits)


def test_later_skips_are_silent(batches: list) -> None:
    """Torch warns only of a skip at the very start."""
    loop = Loop(2.0**10)
    scheduler = torch.optim.lr_scheduler.LinearLR(loop.optimizer, 1.0, 0.05, total_iters=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, (x, y) in enumerate(batches):
            loop.step(x * (1e6 if number == 3 else 1), y)
            scheduler.step()
    assert loop.scaler.get_scale() < 2.0**10


def test_without_the_scalers_state_steps_are_skipped_again(
    batches: list, pictures: tuple, tmp_path
) -> None:
    def losses(loop: Loop, first: int, last: int) -> list[float]:
        losses_found = []
        for x, y in (2 * batches)[first:last]:
            losses_found.append(cross_entropy(loop.model(pictures[0]), pictures[1]).item())
            loop.step(x, y)
        return losses_found

    first = Loop(2.0**26)
    losses(first, 0, 20)
    parts = {"model": first.model, "optimizer": first.optimizer, "scaler": first.scaler}
    path = save_checkpoint(tmp_path / "run.pt", **parts, step=20)
    after = {}
    for with_scaler in (True, False):
        loop = Loop(2.0**26)
        parts = {"model": loop.model, "optimizer": loop.optimizer}
        load_checkpoint(path, **parts, scaler=loop.scaler if with_scaler else None)
        after[with_scaler] = losses(loop, 20, 40)
    # the chapter says some seven; the exact number depends on the machine's rounding
    assert 5 <= sum(a == after[False][0] for a in after[False]) - 1 <= 9
    assert after[True][1] != after[True][0]
    assert after[True][-1] < after[False][-1]
