"""`DynamicScaler` names the cause of misuse, and refuses what makes no sense."""

import copy
import math

import pytest
import torch
from torch import nn

from amp_course.scaler.dynamic import DynamicScaler


def test_a_copy_goes_on_where_the_scaler_is():
    scaler, optimizer, weight = ready()
    scaler.step(optimizer)
    scaler.update(32.0)
    twin = copy.deepcopy(scaler)
    weight.grad = torch.tensor([math.inf])
    scaler.step(optimizer)
    scaler.update()
    assert (scaler.get_scale(), twin.get_scale()) == (16.0, 32.0)


def test_a_setter_refuses_what_the_constructor_refuses():
    scaler = DynamicScaler("cpu")
    before = scaler.state_dict()
    for name in ("growth_factor", "backoff_factor", "growth_interval"):
        with pytest.raises(ValueError, match=f"{name} is"):
            getattr(scaler, f"set_{name}")(-1)
    assert scaler.state_dict() == before


def ready():
    """Return a scaler in use, its optimizer, and a gradient."""
    scaler, weight = DynamicScaler("cpu", 4.0), nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale(weight.sum()).backward()
    return scaler, optimizer, weight


def misuse_of(*names):
    def misuse():
        scaler, optimizer, _ = ready()
        for name in names:
            getattr(scaler, name)(optimizer)

    return misuse


def step_without_gradients():
    scaler, optimizer, weight = ready()
    weight.grad = None
    scaler.step(optimizer)


def step_with_fp16_gradients():
    scaler, _, weight = ready()
    half = nn.Parameter(weight.detach().half())
    half.grad = torch.ones(1, dtype=torch.float16)
    scaler.step(torch.optim.SGD([half], lr=1.0))


def before_scale(name):
    def misuse():
        scaler, optimizer = DynamicScaler("cpu"), ready()[1]
        getattr(scaler, name)(*[] if name == "update" else [optimizer])

    return misuse


def closure():
    scaler, optimizer, _ = ready()
    scaler.step(optimizer, closure=lambda: None)


MISUSES = [
    (misuse_of("unscale_", "unscale_"), RuntimeError, "already been called .*divided twice"),
    (misuse_of("step", "step"), RuntimeError, "already been called since the last update"),
    (misuse_of("step", "unscale_"), RuntimeError, "being called after step.*, too late"),
    (step_without_gradients, AssertionError, "none of its parameters has a gradient"),
    (lambda: ready()[0].update(), AssertionError, "recorded prior to update.*: call step"),
    (step_with_fp16_gradients, ValueError, "Attempting to unscale FP16 gradients, .*no model.half"),
    (before_scale("step"), AssertionError, r"step\(\) comes before the first scale"),
    (before_scale("unscale_"), AssertionError, r"unscale_\(\) comes before the first scale"),
    (before_scale("update"), AssertionError, r"update\(\) comes before the first scale"),
    (closure, RuntimeError, "Closure use is not supported"),
    (lambda: DynamicScaler("cpu").scale(0.5), ValueError, "got 0.5: pass the loss, before .item"),
    (lambda: DynamicScaler("cpu").scale("loss"), ValueError, "got 'loss': pass the loss"),
]


@pytest.mark.parametrize(("misuse", "error", "words"), MISUSES)
def test_misuse_names_cause_and_cure(misuse, error, words):
    with pytest.raises(error, match=words):
        misuse()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(
            ({"init_scale": bad}, "a scale is a positive, finite float32")
            for bad in (0, -1.0, math.nan, 1e39)
        ),
        ({"init_scale": "65536"}, "init_scale is '65536', not a number"),
        *(({"growth_factor": bad}, "growth_factor is") for bad in (1, math.nan, None)),
        *(({"backoff_factor": bad}, "backoff_factor is") for bad in (1, 0, math.nan)),
        *(({"growth_interval": bad}, "growth_interval is .*whole number") for bad in (0, 2.5)),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        DynamicScaler("cpu", **options)


@pytest.mark.parametrize("bad", [0.0, math.nan])
def test_a_new_scale_that_makes_no_sense_is_refused_and_the_old_one_stays(bad):
    scaler, optimizer, _ = ready()
    scaler.step(optimizer)
    with pytest.raises(ValueError, match="new_scale is"):
        scaler.update(bad)
    assert scaler.get_scale() == 4
    scaler.update(torch.tensor(8.0))
    assert scaler.get_scale() == 8


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda s: s.clear(), RuntimeError, "The state is empty"),
        (
            lambda s: s.pop("_growth_tracker"),
            ValueError,
            "not a scaler's state, because it lacks _growth_tracker: pass scaler.state_dict",
        ),
        (lambda s: s.update(scale=math.nan), ValueError, "scale is nan"),
        (lambda s: s.update(growth_interval=0), ValueError, "growth_interval is 0"),
    ],
)
@pytest.mark.parametrize("in_use", [False, True])
def test_a_state_that_no_scaler_wrote_is_refused_and_changes_nothing(change, error, words, in_use):
    scaler = ready()[0] if in_use else DynamicScaler("cpu", 4.0)
    before, state = scaler.state_dict(), DynamicScaler("cpu", 32.0).state_dict()
    change(state)
    with pytest.raises(error, match=words):
        scaler.load_state_dict(state)
    assert scaler.state_dict() == before
