"""What the observer records, against torch itself: gradients, calls, dtypes of ops."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from amp_course.diagnosis.rules.exceptions import check_error
from amp_course.watching.gradients import Layout
from amp_course.watching.graphs import _FP32_OPS, _LOSSES, inspect_graphs, next_node
from amp_course.watching.observer import Observer
from amp_course.watching.records import Call, Intervention, Training, Update
from amp_course.watching.uses import steps_of
from tests.watching.parts import Parts


def observe(parts: Parts, intervention: Intervention | None = None, updates: int = 1) -> Update:
    with parts.observer(intervention) as observer:
        for number in range(updates):
            observer.next_call(number)
            parts.step()
    return observer.update


def gradient(parts: Parts) -> Tensor:
    found = torch.autograd.grad(parts.loss() * 256.0, list(parts.model.parameters()))
    return torch.cat([one.flatten() for one in found])


def test_events_come_in_their_order() -> None:
    update = observe(Parts(), updates=2)
    names = [one.name if isinstance(one, Call) else type(one).__name__ for one in update.events]
    once = ["Region", "scale", "Backward", "unscale", "scaler.step", "Step", "update", "scheduler"]
    assert names == once * 2
    assert [event.call for event in update.events] == [0] * 8 + [1] * 8
    assert update.scales == update.scales_after == [256.0] and update.changed == [True, False]


def test_what_arrives_is_torchs_gradient_and_what_is_stepped_with_is_it_unscaled() -> None:
    parts = Parts()
    wanted = gradient(parts)
    update = observe(parts)
    (passed,), (step,) = update.backwards, update.steps()
    torch.testing.assert_close(passed.arrived[0].values, wanted)
    torch.testing.assert_close(step.gradient.values, wanted / 256)
    assert step.by_scaler and step.rate == 0.1 and not step.other and all(step.gradient.present)
    assert passed.before[0].empty and not passed.in_autocast and not passed.moved
    assert passed.value == pytest.approx(256 * Parts().loss().item())


def test_gradients_grow_by_the_factor_and_the_record_is_of_what_arrived() -> None:
    plain, large = observe(Parts()), observe(Parts(), Intervention(8.0))
    torch.testing.assert_close(
        large.backwards[0].arrived[0].values, plain.backwards[0].arrived[0].values
    )
    torch.testing.assert_close(
        large.steps()[0].gradient.values, 8 * plain.steps()[0].gradient.values
    )


def test_an_inf_makes_the_scaler_skip_and_lower_the_scale() -> None:
    update = observe(Parts(), Intervention(inject_inf=frozenset([(0, 0)])))
    assert not update.steps() and update.scales_after == [128.0] and not update.corrupted[0]


def test_a_scaler_that_was_not_passed_is_unknown_and_a_disabled_one_is_ignored() -> None:
    parts = Parts()
    other, idle = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu", enabled=False)
    with parts.observer() as observer:
        other.scale(torch.ones(()))
        idle.scale(torch.ones(()))
        made = torch.amp.GradScaler("cpu")
        made.scale(torch.ones(()))
    assert observer.unknown_scalers == [other] and observer.update.scalers_made == 1


def test_a_step_with_a_closure_is_noted_with_the_gradients_of_its_first_call() -> None:
    parts = Parts()
    optimizer = torch.optim.LBFGS(parts.model.parameters(), max_iter=4)
    training = Training(lambda: None, [parts.model], [optimizer], [], [])
    first = torch.autograd.grad(
        F.cross_entropy(parts.model(parts.x), parts.y), list(parts.model.parameters())
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(parts.model(parts.x), parts.y)
        loss.backward()
        return loss

    with Observer(training) as observer:
        optimizer.step(closure)
    (step,) = observer.update.steps()
    torch.testing.assert_close(step.gradient.values, torch.cat([one.flatten() for one in first]))
    assert step.closure and len(observer.update.backwards) > 1


def test_gradients_are_followed_from_pass_to_step() -> None:
    parts = Parts()
    with parts.observer() as observer:
        for clears in (False, True):
            parts.loss().backward()
            parts.loss().backward()
            parts.optimizer.step()
            if clears:
                parts.optimizer.zero_grad()
        parts.loss().backward()
        parts.optimizer.zero_grad()
        parts.loss().backward()
        parts.optimizer.step()
    first, second, third = steps_of(observer.update.events, 0)
    passes = observer.update.backwards
    assert first.parts == passes[:2] and not first.stale
    assert second.parts == passes[:4] and second.stale == passes[:2]  # nobody cleared
    assert third.parts == passes[5:] and third.cleared == [passes[4]]


LOSSES = {
    "cross_entropy": lambda out, target: F.cross_entropy(out, target.argmax(1)),
    "nll_loss": lambda out, target: F.nll_loss(F.log_softmax(out, 1), target.argmax(1)),
    "mse_loss": F.mse_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "cross_entropy of pictures": lambda out, target: F.cross_entropy(
        out.mT[None, :, None], target.argmax(1)[None, None]
    ),
    "huber_loss": F.huber_loss,
    "soft_margin_loss": lambda out, target: F.soft_margin_loss(out, target.sign()),
    "binary_cross_entropy_with_logits": lambda out, target: F.binary_cross_entropy_with_logits(
        out, target.sigmoid()
    ),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_in_the_region_runs_in_fp32_and_outside_it_in_16_bits(
    name: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    layer, x, target = nn.Linear(4, 3), torch.randn(5, 4), torch.randn(5, 3)
    with torch.autocast("cpu", dtype=dtype):
        out = layer(x)
        inside = LOSSES[name](out, target)
    assert not inspect_graphs([inside]).loss_ops
    outside = inspect_graphs([LOSSES[name](out, target.to(dtype))])
    assert outside.loss_ops and {one for _, one in outside.loss_ops} == {dtype}
    assert outside.low == {dtype} and outside.casts and not outside.opaque
    assert not inspect_graphs([LOSSES[name](layer(x), target)]).low


@pytest.mark.parametrize(
    ("node", "key"),
    [(node, "AutocastCUDA") for node in [*_FP32_OPS, *_LOSSES]]
    + [(node, "AutocastCPU") for node in _LOSSES],
)
def test_what_should_run_in_fp32_has_a_kernel_of_autocast(node: str, key: str) -> None:
    """`SmoothL1Loss` is the node of `aten::smooth_l1_loss`, which is registered if it is cast."""
    op = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=\d)(?=[A-Z][a-z])", "_", node).lower()
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    assert f"aten::{op}" in {name.partition(".")[0] for name in registered}


def test_a_sum_after_the_region_counts_and_a_mean_does_not() -> None:
    with torch.autocast("cpu", dtype=torch.float16):
        out = nn.Linear(4, 3)(torch.randn(5, 4))
    assert not inspect_graphs([out.relu().mean()], region_end=0).late_ops
    assert inspect_graphs([out.relu().sum()], region_end=0).late_ops == (("sum", torch.float16),)


def test_what_a_gpu_would_have_computed_in_fp32_in_the_region_is_not_late() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = nn.Linear(4, 3)(torch.randn(5, 4))
        inside = logits.log_softmax(-1)  # in bf16 on a CPU
    end = next_node()
    assert not inspect_graphs([(inside[:, :1] - 1.0).exp().sum()], region_end=end).late_ops
    late = inspect_graphs(
        [(logits.log_softmax(-1)[:, :1] - 1.0).exp().sum()], region_end=end
    ).late_ops
    assert {name for name, _ in late} == {"log_softmax", "exp", "sum"}


def test_a_ratio_of_probabilities_is_the_exponential_of_a_difference_to_a_constant() -> None:
    new, old = torch.zeros(4, requires_grad=True), torch.tensor([0.0, 0.0, -0.01, 0.0])
    assert inspect_graphs([(new - old).exp().mean()]).ratio == pytest.approx(
        math.expm1(0.01), rel=1e-5
    )
    assert inspect_graphs([(old - new).exp().mean()]).ratio == pytest.approx(
        1 - math.exp(-0.01), rel=1e-5
    )
    assert math.isnan(inspect_graphs([(new - new.max()).exp().mean()]).ratio)
    assert math.isnan(inspect_graphs([new.exp().mean()]).ratio)


def test_a_custom_function_is_opaque() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    assert inspect_graphs([Twice.apply(torch.ones(2, requires_grad=True)).sum()]).opaque


def test_a_layout_takes_any_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    embedding, conv = (
        nn.Embedding(5, 3, sparse=True),
        nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last),
    )
    embedding(torch.tensor([1, 1, 4])).sum().backward()
    conv(torch.randn(1, 2, 4, 4).to(memory_format=torch.channels_last)).square().sum().backward()
    weights = [embedding.weight, conv.weight, conv.bias, nn.Parameter(torch.ones(2))]
    dense = [embedding.weight.grad.to_dense(), conv.weight.grad, conv.bias.grad, torch.zeros(2)]
    whole = Layout(weights).current()
    assert torch.equal(whole.values, torch.cat([one.reshape(-1) for one in dense]))
    assert whole.present == (True, True, True, False)
    wanted = torch.cat([one.reshape(-1) for one in dense]).norm().item()
    assert whole.norm == pytest.approx(wanted, rel=1e-6)
    monkeypatch.setattr("amp_course.watching.gradients._MOST", 16)
    sample = Layout(weights).current()
    assert sample.values.numel() < 20
    assert sample.norm == pytest.approx(wanted, rel=1e-6)  # norms are of all numbers


def test_functions_of_torch_may_be_called_by_keyword() -> None:
    parts = Parts()
    parameters = list(parts.model.parameters())
    with parts.observer() as observer:
        observer.next_call(0)
        logits = parts.model(parts.x)
        target = torch.full_like(logits, 1 / 3)
        loss = F.kl_div(input=logits.log_softmax(-1), target=target, reduction="batchmean")
        loss = loss + F.l1_loss(input=logits, target=target)
        torch.autograd.backward(tensors=parts.scaler.scale(outputs=loss), retain_graph=True)
        torch.autograd.grad(outputs=loss, inputs=parameters)
        parts.scaler.unscale_(optimizer=parts.optimizer)
        nn.utils.clip_grad_norm_(parameters=parameters, max_norm=1.0)
        nn.utils.clip_grad_value_(parameters=parameters, clip_value=1.0)
        parts.scaler.step(optimizer=parts.optimizer)
        parts.scaler.update(new_scale=None)
    assert len(observer.update.backwards) == len(observer.update.steps()) == 1


def test_a_second_step_names_the_scaler_that_was_not_updated() -> None:
    parts, other = Parts(), torch.amp.GradScaler("cpu")
    bias = parts.model[0].bias
    optimizers = [parts.optimizer, torch.optim.SGD([bias], lr=0.1)]
    training = Training(lambda: None, [parts.model], optimizers, [other, parts.scaler], [])
    with Observer(training) as observer:
        for number in range(2):
            observer.next_call(number)
            other.scale(parts.loss()).backward()
            try:
                other.step(parts.optimizer)  # the step that is not followed by an update
            except RuntimeError as error:
                observer.update.error = error
                break
            parts.scaler.scale(parts.loss()).backward()
            parts.scaler.step(training.optimizers[1])
            parts.scaler.update()
    found = check_error([observer.update], training, 1)
    assert found.name == "update-missing" and "another one" in found.cause
    assert "the step that is not followed by an update" in found.place
