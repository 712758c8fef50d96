"""`watch_ranges` and single readings, against torch's own casts; alerts come before an overflow."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from amp_course.debugging.ranges import read_range, watch_ranges
from amp_course.watching.readings import KINDS


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_a_reading_agrees_with_a_cast(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    exponents = torch.rand(3000, generator=generator) * 60 - 40
    values = torch.randn(3000, generator=generator) * 2**exponents
    values[::7] = 0.0
    found = read_range(values, dtype)
    cast = values.to(dtype).float()
    assert found.lost == pytest.approx(float(((cast == 0) & (values != 0)).float().mean()))
    assert found.zero == pytest.approx(float((values == 0).float().mean()))
    assert found.largest == float(values.abs().max())
    assert found.smallest == float(values.abs()[values != 0].min())
    most = torch.finfo(dtype).max
    assert 2**found.headroom * found.largest == pytest.approx(most, rel=1e-6)


@pytest.mark.parametrize(
    ("value", "headroom"), [(0.0, math.inf), (math.inf, -math.inf), (-65504.0, 0.0)]
)
def test_a_reading_at_the_ends_of_fp16(value: float, headroom: float) -> None:
    assert read_range(torch.tensor([value]), torch.float16).headroom == headroom
    half = 2.0**-25  # a tie, which goes to the even neighbour, 0
    assert read_range(torch.tensor([half]), torch.float16).lost == 1.0
    assert read_range(torch.tensor([half * (1 + 2**-20)]), torch.float16).lost == 0.0


def test_the_largest_is_found_outside_the_sample_too() -> None:
    values = torch.ones(100_001)
    values[99_998] = 1e6
    assert read_range(values, torch.float16).largest == 1e6
    values[3] = math.nan
    assert math.isnan(read_range(values, torch.float16).headroom)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def train(model: nn.Module, steps: int, scale: float = 1.0) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        loss = model(torch.full((3, 4), scale**step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_every_kind_is_read_with_the_values_that_hooks_see() -> None:
    model, largest = network(), {}
    model[0].register_forward_hook(
        lambda module, args, output: largest.update(output=float(output.detach().abs().max()))
    )
    model[2].weight.register_post_accumulate_grad_hook(
        lambda weight: largest.update(grad=float(weight.grad.abs().max()))
    )
    largest["weight"] = float(model[2].weight.detach().abs().max())
    with watch_ranges(model) as ranges:
        train(model, 1)
    assert ranges.of("activation")["0"][0].largest == largest["output"]
    assert ranges.of("weight gradient")["2.weight"][0].largest == largest["grad"]
    assert ranges.of("weight")["2.weight"][0].largest == largest["weight"]
    assert set(ranges.of("activation")) == set(ranges.of("activation gradient")) == {"0", "1", "2"}
    assert [row[0] for row in ranges.rows()[1:]] == [*KINDS]


def test_every_tenth_pass_is_measured_and_evaluation_is_not() -> None:
    model = network()
    with watch_ranges(model) as ranges:
        train(model, 25)
        with torch.no_grad():
            model(torch.ones(1, 4))
    assert ranges.passes == 25
    assert {reading.number for reading in ranges.readings} == {1, 11, 21}
    assert "3 of 25 forward passes measured, for fp16" in str(ranges)


def test_training_is_the_same_and_nothing_is_left() -> None:
    one, other = network(), network()
    train(one, 5)
    hooks = copy.copy(other[0]._forward_hooks)
    with watch_ranges(other, every=1):
        train(other, 5)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert other[0]._forward_hooks == hooks and not other._forward_pre_hooks
    assert not any(weight._post_accumulate_grad_hooks for weight in other.parameters())


def test_alerts_come_before_an_overflow() -> None:
    model, alerts = network(), []
    with (
        watch_ranges(model, every=1, alert=3.0, say=alerts.append) as ranges,
        torch.autocast("cpu", dtype=torch.float16),
    ):
        for step in range(20):
            model(torch.full((3, 4), 2.0**step))
    assert alerts == ranges.bells and len(alerts) == len(set(alerts)) > 0
    first = alerts[0]
    assert first.startswith("pass ") and "doublings below the end of fp16 at 65504" in first
    overflow = next(one.number for one in ranges.of("activation")["0"] if not one.finite)
    assert int(first.split()[1].rstrip(":")) < overflow


def test_nan_makes_an_alert_too() -> None:
    model, alerts = network(), []
    with torch.no_grad():
        model[0].bias[0] = math.nan
    with watch_ranges(model, say=alerts.append):
        train(model, 1)
    assert "pass 1: the weight of 0.bias holds NaN." in alerts


def test_a_checkpointed_part_is_read_once() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    model = Model()
    with watch_ranges(model) as ranges:
        model(torch.ones(2, 4)).sum().backward()
    assert len(ranges.of("activation")["inner"]) == 1
    assert len(ranges.of("activation gradient")["inner"]) == 1


@pytest.mark.parametrize("named", [False, True])
def test_a_result_between_two_modules_is_measured_if_it_passes_through_an_identity(
    named: bool,
) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.scores = nn.Linear(4, 4), nn.Linear(4, 4), nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = self.query(x) @ self.key(x).T
            return (self.scores(scores) if named else scores) / 1024

    model = Attention()
    for layer in (model.query, model.key):
        nn.init.constant_(layer.weight, 100.0)
    with watch_ranges(model, say=lambda text: None) as ranges:
        model(torch.ones(2, 4)).sum().backward()  # queries and keys of 400, scores of 640,000
    hot = {name for name, readings in ranges.of("activation").items() if readings[0].headroom < 0}
    assert hot == ({"scores"} if named else set())


def test_start_and_stop_do_what_with_does() -> None:
    model = network()
    ranges = watch_ranges(model)
    assert "Nothing was measured" in str(ranges)
    ranges.start()
    with pytest.raises(RuntimeError, match="on already"):
        ranges.start()
    train(model, 1)
    ranges.stop()
    count = len(ranges.readings)
    train(model, 11)
    assert count == len(ranges.readings) > 0


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match=r"has to be a torch\.nn\.Module, and this is a str"):
        watch_ranges("model")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every is 0"):
        watch_ranges(network(), every=0)
    with pytest.raises(ValueError, match="no range to leave"):
        watch_ranges(network(), torch.int8)
    with pytest.raises(ValueError, match="choose one of activation"):
        watch_ranges(network()).of("output")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a range needs floats"):
        read_range(torch.ones(3, dtype=torch.int64), torch.float16)
