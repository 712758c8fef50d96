"""The judges draw again each time, and their oracle is torch's own scaler."""

import pytest
import torch

from amp_course.scaler.exercises import scaler_class, unscale_and_check, update_rule
from amp_course.scaler.exercises.scaler_class import MyScaler
from amp_course.scaler.exercises.static_scaling import Fp16Model


@pytest.mark.parametrize("method", ["scale", "get_scale", "state_dict"])
def test_odd_returns_of_a_scaler_are_told_in_words(method):
    kind = type("Odd", (MyScaler,), {method: lambda self, *arguments: "text"})
    outcome = scaler_class.check(kind)
    assert outcome.state == "not yet" and len(outcome.message) > 20


def test_what_was_right_once_is_wrong_on_another_draw():
    judge, answers = update_rule.judge, []

    def recorded(*arguments):
        answers.append(judge.right(*arguments))
        return answers[-1]

    judge.run(recorded, seed=0)
    replay = iter(answers)
    mine = judge.run(lambda *arguments: next(replay), seed=1)
    assert (
        judge.explain(mine, judge.run(judge.right, seed=1), lambda mistake: (turn for turn in ()))
        is not None
    )


@pytest.mark.parametrize("interval", [1, 2])
def test_rule_of_torch_never_reaches_inf(interval):
    scale, streak = (
        torch.tensor(torch.finfo(torch.float32).max),
        torch.tensor(interval - 1, dtype=torch.int32),
    )
    torch._amp_update_scale_(scale, streak, torch.tensor(0.0), 2.0, 0.5, interval)
    assert scale == torch.finfo(torch.float32).max and streak == 0


def test_model_of_the_first_exercise_loses_gradients_without_a_scale():
    def fraction_lost(scale):
        torch.manual_seed(3)
        model = Fp16Model(torch.nn.Linear(16, 5))
        loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.arange(8) % 5)
        (loss * scale).backward()
        return float((model.body.weight.grad == 0).float().mean())

    assert fraction_lost(1.0) > 0.01 and fraction_lost(2.0**12) == 0


def test_unscaling_is_judged_to_the_last_bit():
    def off_by_an_ulp(optimizer, scale):
        found = unscale_and_check.judge.right(optimizer, scale)
        gradient = optimizer.param_groups[1]["params"][1].grad
        gradient.copy_(torch.nextafter(gradient, torch.full_like(gradient, 9.0)))
        return found

    assert unscale_and_check.check(off_by_an_ulp).state == "not yet"
