"""`DynamicScaler` against `torch.amp.GradScaler`, action by action, bit for bit."""

import copy
import inspect
import math
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from amp_course.scaler.dynamic import DynamicScaler

NUMBERS = st.one_of(
    st.floats(-4, 4, width=32),
    st.sampled_from([0.0, -0.0, 1e-30, 1e-45, 3e38, math.inf, -math.inf, math.nan]),
)
GRADIENT = st.lists(NUMBERS, min_size=3, max_size=3)
ACTIONS = st.one_of(
    st.tuples(st.just("backward"), st.sampled_from([0, 1]), GRADIENT),
    st.tuples(st.sampled_from(["unscale_", "step", "clip", "zero"]), st.sampled_from([0, 1])),
    st.tuples(st.just("update")),
    st.tuples(st.just("update"), st.sampled_from([1.0, 0.25, 2.0**20, 3e38])),
    st.tuples(st.just("set_growth_factor"), st.sampled_from([2.0, 1.1, 4.0])),
    st.tuples(st.just("set_backoff_factor"), st.sampled_from([0.5, 0.3, 0.25])),
    st.tuples(st.just("set_growth_interval"), st.integers(1, 4)),
    st.tuples(st.just("save and load")),
)


@st.composite
def schedules(draw):
    """Draw a list of actions: orderly steps of two optimizers, with disorder thrown in."""
    actions = []
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            for _ in range(draw(st.integers(1, 2))):  # accumulation
                for one in (0, 1):
                    actions.append(("backward", one, draw(GRADIENT)))
            if draw(st.booleans()):
                actions += [("unscale_", 0), ("clip", 0)]
            actions += [("step", 0), ("step", 1), ("update",), ("zero", 0), ("zero", 1)]
        else:
            actions += draw(st.lists(ACTIONS, max_size=5))
    return actions


OPTIONS = st.fixed_dictionaries(
    {
        "init_scale": st.sampled_from([2.0**16, 1.0, 3e38, 1e-38, 1000.7]),
        "growth_factor": st.sampled_from([2.0, 1.1, 1.7]),
        "backoff_factor": st.sampled_from([0.5, 0.3]),
        "growth_interval": st.integers(1, 3),
    }
)


class Side:
    """A scaler with two optimizers of its own over two small tensors;
    it does what a schedule says.
    """

    def __init__(self, scaler_class, options):
        self.scaler_class, self.options = scaler_class, options
        self.scaler = scaler_class("cpu", **options)
        self.weights = [nn.Parameter(torch.tensor([1.0, -2.0, 3.0])) for _ in range(2)]
        self.optimizers = [
            torch.optim.SGD(self.weights[:1], lr=0.1, momentum=0.9),
            torch.optim.AdamW(self.weights[1:], lr=0.01),
        ]
        self.steps = [0, 0]
        for one, optimizer in enumerate(self.optimizers):
            optimizer.register_step_post_hook(lambda *_, one=one: self._count(one))

    def _count(self, one):
        self.steps[one] += 1

    def act(self, action, *details):
        """Do one thing; return the name of what was raised, or None."""
        try:
            match action, *details:
                case "backward", one, gradient:
                    self.scaler.scale((self.weights[one] * torch.tensor(gradient)).sum()).backward()
                case "unscale_" | "step", one:
                    getattr(self.scaler, action)(self.optimizers[one])
                case "clip", one:
                    nn.utils.clip_grad_norm_(self.weights[one], 0.5)
                case "zero", one:
                    self.optimizers[one].zero_grad()
                case _:
                    getattr(self.scaler, action)(*details)
        except Exception as error:
            return type(error).__name__
        return None

    def state(self):
        """Return all that two equal scalers have in common, tensors as bits."""
        tensors = [*self.weights, *(w.grad for w in self.weights if w.grad is not None)]
        bits = [tensor.detach().view(torch.int32).tolist() for tensor in tensors]
        values = [
            getattr(self.scaler, name)() for name in dir(self.scaler) if name.startswith("get_")
        ]
        return bits, self.steps, self.scaler.state_dict(), values


def public(thing):
    """Return a class's public methods: name → names, kinds and defaults of its parameters."""
    return {
        name: [(p.name, p.kind, p.default) for p in inspect.signature(method).parameters.values()]
        for name, method in inspect.getmembers(thing, inspect.isfunction)
        if not name.startswith("_") or name == "__init__"
    }


def test_has_every_public_method_of_pytorchs_with_the_same_parameters_and_defaults():
    assert public(DynamicScaler) == public(torch.amp.GradScaler)
    assert len(public(DynamicScaler)) == 15


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here, so nothing is disabled")
@pytest.mark.parametrize("kind", [DynamicScaler, torch.amp.GradScaler])
def test_the_default_device_is_cuda_and_without_one_the_scaler_warns_and_is_disabled(kind):
    with pytest.warns(UserWarning, match="CUDA"):
        scaler = kind()
    loss = torch.ones(())
    assert (scaler.is_enabled(), scaler.get_scale(), scaler.state_dict()) == (False, 1.0, {})
    assert scaler.scale(loss) is loss
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not kind(enabled=False).is_enabled() and kind("cpu").is_enabled()


def test_with_enabled_false_both_still_step_and_do_nothing_else():
    weights = []
    for kind in (DynamicScaler, torch.amp.GradScaler):
        weight = nn.Parameter(torch.ones(2))
        optimizer, scaler = torch.optim.SGD([weight], lr=1.0), kind("cpu", enabled=False)
        scaler.scale((weight * torch.tensor([1.0, math.inf])).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)  # unchecked: inf reaches the weights
        scaler.update()
        scaler.load_state_dict({"nonsense": 1})
        weights.append(weight.tolist())
    assert weights[0] == weights[1] == [0.0, -math.inf]


def test_at_a_scale_of_0_both_write_nan_into_the_weights():
    """1 / 0 is inf, and the check runs before the multiplication:
    finite gradients pass it, and 0 · inf is NaN.
    """
    for kind in (DynamicScaler, torch.amp.GradScaler):
        weight = nn.Parameter(torch.ones(3))
        optimizer, scaler = torch.optim.SGD([weight], lr=0.1), kind("cpu")
        for _ in range(166):
            scaler.scale((weight * math.inf).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        # 2^16 · 2^-166 = 2^-150, and the tie goes to even
        assert scaler.get_scale() == 0 and weight.tolist() == [1.0] * 3
        scaler.scale(weight.sum()).backward()
        assert weight.grad.tolist() == [0.0] * 3
        scaler.step(optimizer)
        assert weight.isnan().all(), kind


def test_gradients_of_several_dtypes_are_unscaled_in_one_step():
    found = []
    for kind in (DynamicScaler, torch.amp.GradScaler):
        weights = [
            nn.Parameter(torch.ones(2, dtype=dtype))
            for dtype in (torch.float32, torch.float64, torch.bfloat16)
        ]
        optimizer, scaler = torch.optim.SGD(weights, lr=0.5), kind("cpu", init_scale=8.0)
        scaler.scale(sum(weight.float().sum() for weight in weights)).backward()
        scaler.step(optimizer)
        found.append([weight.tolist() for weight in weights])
    assert found[0] == found[1] == [[0.5, 0.5]] * 3


def swap_states(left, right):
    """Save both scalers and give each the other's state in a new one, as a resumed run would."""
    states = [copy.deepcopy(side.scaler.state_dict()) for side in (left, right)]
    for side, state in zip((left, right), reversed(states), strict=True):
        side.scaler = side.scaler_class("cpu")
        side.scaler.load_state_dict(state)


@pytest.mark.parametrize("count", [30, pytest.param(600, marks=pytest.mark.slow)])
def test_equals_pytorchs_scaler_over_drawn_schedules(count):
    ran = {"actions": 0, "steps": 0, "skips": 0, "errors": 0}

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(OPTIONS, schedules())
    def compare(options, schedule):
        sides = torchs, ours = Side(torch.amp.GradScaler, options), Side(DynamicScaler, options)
        for action in schedule:
            before = sum(torchs.steps)
            if action[0] == "save and load":
                swap_states(torchs, ours)
                raised = [None, None]
            else:
                raised = [side.act(*action) for side in sides]
            assert raised[0] == raised[1], action
            assert ours.state() == torchs.state(), action
            ran["actions"] += 1
            ran["errors"] += raised[0] is not None
            stepped = sum(torchs.steps) - before
            ran["steps"] += stepped
            ran["skips"] += action[0] == "step" and raised[0] is None and not stepped

    compare()
    assert all(ran.values()), ran


def test_equals_pytorchs_scaler_in_an_fp16_run_that_overflows():
    def run(scaler_class):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scaler = scaler_class("cpu", init_scale=2.0**24, growth_interval=3)
        scales, skips = [], 0
        for step in range(30):
            x, y = torch.randn(16, 8), torch.randint(4, (16,))
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x * (1e4 if step == 20 else 1)), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            skips += scaler.get_scale() < before
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        return scales, skips, [p.detach().view(torch.int32).tolist() for p in model.parameters()]

    theirs, ours = run(torch.amp.GradScaler), run(DynamicScaler)
    assert ours == theirs
    assert 3 <= theirs[1] < 25 and len(set(theirs[0])) > 3  # it did overflow, and it did train


def test_scales_what_pytorch_scales():
    ours, theirs = DynamicScaler("cpu", 8.0), torch.amp.GradScaler("cpu", 8.0)
    tensor, matrix = torch.tensor(2.0), torch.arange(6.0).reshape(2, 3)
    for outputs in (tensor, matrix, [tensor, matrix], (tensor,), [(tensor, [matrix])], []):
        got, want = ours.scale(outputs), theirs.scale(outputs)
        assert type(got) is type(want) and repr(got) == repr(want)
    got, want = (list(one.scale(iter([tensor, matrix]))) for one in (ours, theirs))
    assert repr(got) == repr(want)


def test_step_returns_what_the_optimizer_returns_and_none_for_a_skip():
    class Returns(torch.optim.SGD):
        def step(self, *args, **kwargs):
            super().step()
            return args, kwargs

    scaler, weight = DynamicScaler("cpu", 4.0), nn.Parameter(torch.tensor([1.0]))
    optimizer = Returns([weight], lr=1.0)
    scaler.scale(weight.sum()).backward()
    assert scaler.step(optimizer, 1, two=2) == ((1,), {"two": 2})
    scaler.update()
    weight.grad = torch.tensor([math.nan])
    assert scaler.step(optimizer) is None


def test_a_sparse_gradient_is_unscaled_as_pytorch_does():
    for value in (1.0, math.inf):
        results = []
        for scaler in (DynamicScaler("cpu", 4.0), torch.amp.GradScaler("cpu", 4.0)):
            table = nn.Embedding(5, 2, sparse=True)
            nn.init.ones_(table.weight)
            optimizer = torch.optim.SparseAdam(table.parameters())
            scaler.scale((table(torch.tensor([1, 1, 3])) * value).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            results.append(
                (table.weight.tolist(), table.weight.grad.to_dense().tolist(), scaler.get_scale())
            )
        assert repr(results[0]) == repr(results[1])


def test_the_clean_streak_is_told_under_pytorchs_private_name():
    results = []
    for kind in (torch.amp.GradScaler, DynamicScaler):
        scaler = kind("cpu", growth_interval=3)
        weight = nn.Parameter(torch.ones(1))
        optimizer, streaks = torch.optim.SGD([weight], lr=0.1), [scaler._get_growth_tracker()]
        for factor in (1.0, 1.0, 1.0, 1.0, float("inf"), 1.0):
            scaler.scale((weight * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            streaks.append(scaler._get_growth_tracker())
        results.append(streaks)
    assert results[0] == results[1] == [0, 1, 2, 0, 1, 0, 1]
