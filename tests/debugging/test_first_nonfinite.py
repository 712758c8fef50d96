"""`first_nonfinite` names the op, the module, the line and the phase of every planted fault,
and accuses no sound step.
"""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from amp_course.debugging.nonfinite import Nonfinite, Watch, first_nonfinite
from amp_course.watching.values import INF, MINUS_INF, NAN, inspect_values
from benchmarks.planted_nonfinite import FAULTS, SOUND, Planted, Setup
from tests.findings.record import of_nonfinite, stored

pytestmark = pytest.mark.filterwarnings("ignore:std.*degrees of freedom")


def found_in(setup: Setup) -> Nonfinite:
    return first_nonfinite(
        setup.step, model=setup.model, optimizer=setup.optimizer, scaler=setup.scaler or ()
    )


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_where_it_is(fault: Planted) -> None:
    found = found_in(fault.make())
    first = found.first
    assert first is not None and bool(found)
    assert first.op in fault.ops
    assert (first.module, first.phase) == (fault.module, fault.phase)
    if fault.phase != "optimizer":  # the line of an optimizer's op is that of `optimizer.step()`
        assert any(
            line is not None and line.source.endswith("# here")
            for line in (first.line, first.forward)
        )
    assert of_nonfinite(found) == stored()[f"planted/{fault.name}"]
    assert first.op in str(found) and (not first.module or f"in {first.module} " in str(found))


@pytest.mark.parametrize("make", SOUND, ids=lambda make: make.__name__)
def test_a_sound_step_is_not_accused(make: Callable[[], Setup]) -> None:
    found = found_in(make())
    assert not found and found.first is None
    assert of_nonfinite(found) == stored()[f"planted sound/{make.__name__}"]
    assert "No inf or NaN did harm" in str(found)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_corrupts_the_step_without_the_tool(fault: Planted) -> None:
    """An oracle: after the step, torch itself finds something that is not finite."""
    setup = fault.make()
    losses: list[torch.Tensor] = []
    grads: list[torch.Tensor] = []
    for weight in setup.model.parameters():
        weight.register_hook(lambda grad: grads.append(grad.clone()))
    setup.model.register_forward_hook(lambda module, args, output: losses.append(output))
    setup.step()
    left = [*losses, *grads, *setup.model.parameters(), *setup.model.buffers()]
    assert not all(one.isfinite().all() for one in left)


def test_what_it_reached_is_listed_and_everything_is_put_back() -> None:
    setup = FAULTS[0].make()
    before = copy.deepcopy(setup.model.state_dict())
    random = torch.get_rng_state()
    found = found_in(setup)
    assert found.first is not None
    assert {"loss", "gradient", "weight"} <= {kind for kind, _ in found.reached(found.first)}
    assert all(torch.equal(before[name], one) for name, one in setup.model.state_dict().items())
    assert all(weight.grad is None for weight in setup.model.parameters())
    assert torch.equal(random, torch.get_rng_state())
    assert not setup.optimizer.state


def test_a_watched_step_computes_what_a_bare_one_does() -> None:
    bare, watched = SOUND[0](), SOUND[0]()
    for _ in range(3):
        bare.step()
    with Watch([watched.model]):
        for _ in range(3):
            watched.step()
    for one, other in zip(bare.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_after_a_watch_nothing_is_left_of_it() -> None:
    original, hooks = torch.autograd.backward, len(torch.nn.modules.module._global_forward_hooks)
    with Watch() as watch:
        assert torch.autograd.backward is not original
    assert torch.autograd.backward is original
    assert len(torch.nn.modules.module._global_forward_hooks) == hooks
    torch.zeros(1).log()
    assert watch.origins == []


def test_the_step_is_counted_and_later_ones_do_not_run() -> None:
    model = nn.Linear(2, 1)

    def step(number: float) -> None:
        (model(torch.ones(1, 2)).sum() * 0 + torch.tensor(number).log()).backward()

    found = first_nonfinite(step, [(2.0,), (1.0,), (-1.0,), (3.0,)], model=model, steps=4)
    assert found.steps == 3
    assert found.first is not None and found.first.step == 3 and found.first.op == "log"


def test_the_frames_before_it_and_its_operands_are_reported() -> None:
    planted = {fault.name: fault for fault in FAULTS}
    divided = found_in(planted["zero by zero"].make()).first
    assert divided is not None and divided.made.holds == {NAN}
    assert [value.largest for value in divided.took] == [0.0, 0.0]
    first = found_in(planted["exp overflows"].make()).first
    assert first is not None
    assert [(frame.op, frame.module) for frame in first.before] == [
        ("addmm", "first"),
        ("add", "body"),
    ]
    assert 99 < first.before[-1].largest < 102


@pytest.mark.parametrize(
    ("divisor", "operands"),
    [
        (0, "float32 up to 3, the number 0"),
        (torch.tensor([[2.0, 0.0]]), "float32 up to 3, float32 up to 2, 0 among them"),
        (torch.zeros(1, 2), "float32 up to 3, float32 up to 0"),
    ],
)
def test_a_divisor_of_0_is_reported(divisor: torch.Tensor | int, operands: str) -> None:
    model = nn.Linear(1, 2, bias=False)
    nn.init.constant_(model.weight, 3.0)
    first = first_nonfinite(
        lambda: (model(torch.ones(1, 1)) / divisor).sum().backward(), model=model
    ).first
    assert first is not None and first.operands == operands


def test_what_the_step_raises_comes_out_unless_it_was_the_fault() -> None:
    def fails() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        first_nonfinite(fails)
    model = nn.Linear(2, 1)

    def refuses() -> None:
        loss = (model(torch.ones(1, 2)) * 0).log().sum()
        loss.backward()
        raise FloatingPointError("the loss is not finite")

    found = first_nonfinite(refuses, model=model)
    assert found.first is not None and found.first.op == "log"
    assert isinstance(found.error, FloatingPointError)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(
        TypeError, match="has to be a function that runs one training step, and this is a int"
    ):
        first_nonfinite(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="batches is a Tensor: pass a DataLoader or a list"):
        first_nonfinite(lambda x: x, torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batches is empty"):
        first_nonfinite(lambda x: x, [])
    with pytest.raises(ValueError, match="steps is 0"):
        first_nonfinite(lambda: None, steps=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_under_compile_runs_uncompiled_and_a_note_says_so() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = torch.compile(model)
    found = first_nonfinite(
        lambda: (compiled(torch.ones(2, 4)) - 9).log().mean().backward(), model=compiled
    )
    assert found.first is not None and found.first.op == "log"
    assert "compile" in str(found)


def test_two_optimizers_and_a_frozen_part() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    first = torch.optim.SGD(model[1].parameters(), lr=0.1)
    second = torch.optim.Adagrad(model[2].parameters(), lr=0.1, eps=0.0)

    def step() -> None:
        (model(torch.zeros(2, 4)) * 0).sum().backward()
        first.step()
        second.step()

    found = first_nonfinite(step, model=model, optimizer=[first, second])
    assert found.first is not None
    assert found.first.phase == "optimizer" and "addcdiv" in found.first.op
    assert any(name.startswith("2.") for kind, name in found.first.reached if kind == "weight")


@pytest.mark.parametrize(
    ("value", "holds"), [(math.inf, {INF}), (-math.inf, {MINUS_INF}), (math.nan, {NAN})]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float8_e5m2])
def test_values_of_any_dtype(value: float, holds: set[str], dtype: torch.dtype) -> None:
    tensor = torch.tensor([1.0, -2.0, value, 0.5]).to(dtype)
    found = inspect_values(tensor)
    assert found.holds == holds
    assert found.largest == 2.0
    assert inspect_values(tensor[:2]).finite


def test_ints_and_meta_tensors_have_no_values_to_see() -> None:
    for tensor in (torch.ones(3, dtype=torch.int64), torch.ones(3, device="meta"), torch.ones(0)):
        assert inspect_values(tensor).finite


def test_a_view_of_a_corrupted_tensor_is_known() -> None:
    base = torch.zeros(4, 4)

    def step() -> None:
        base[1].log_()
        weight = torch.ones(4, requires_grad=True)
        (weight * base[1]).sum().backward()

    found = first_nonfinite(step)
    assert found.first is not None and found.first.op == "log_"


def test_the_names_of_a_model_die_with_it() -> None:
    """Otherwise a tensor that gets the id of a dead weight would be mistaken for that weight."""
    with Watch() as watch:
        model = nn.Linear(3, 3)
        model(torch.ones(1, 3))
        assert [name for _, name in watch.modules.names.values()] == ["weight", "bias"]
        del model
        gc.collect()
        assert not list(watch.modules.names.values())
