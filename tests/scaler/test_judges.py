"""The judges survive whatever an answer returns, draw anew each time, and their oracle is torch's own scaler."""

import math

import pytest
import torch

from amp_course.scaler.exercises import ALL, clip_scaled, scaler_class, unscale_and_check, update_rule
from amp_course.scaler.judges.rule import turns
from amp_course.scaler.judges.static import Fp16Model
from tests.exercises.answers import scaler as answers

ODD = [None, "text", 3, 2.5, True, [], {}, (1, 2), object(), torch.ones(2, 2), torch.tensor(3), torch.tensor(1j)]


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__ + str(odd)[:9])
def test_odd_returns_are_told_in_words(exercise, odd):
    outcome = exercise.check(lambda *arguments, **named: odd)
    assert outcome.state == "not yet" and len(outcome.message) > 20
    assert "Traceback" not in outcome.message


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__ + str(odd)[:9])
@pytest.mark.parametrize("method", ["scale", "get_scale", "state_dict"])
def test_odd_returns_of_a_scaler_are_told_in_words(method, odd):
    kind = type("Odd", (answers.FourRight,), {method: lambda self, *arguments: odd})
    outcome = scaler_class.check(kind)
    assert outcome.state == "not yet" and len(outcome.message) > 20


@pytest.mark.parametrize("odd", [None, "text", [], (1, 2), torch.ones(2, 2), torch.tensor(1j)], ids=str)
def test_odd_norms_after_a_right_step_are_told_in_words(odd):
    def odd_norm(*arguments):
        answers.five_right(*arguments)
        return odd

    outcome = clip_scaled.check(odd_norm)
    assert outcome.state == "not yet" and "norm" in outcome.message


def test_what_was_right_once_is_wrong_on_the_next_draw():
    kept = []

    def recorded(*arguments):
        kept.append(answers.three_right(*arguments))
        return kept[-1]

    assert update_rule.check(recorded).state == "correct"
    replay = iter(kept)
    assert update_rule.check(lambda *arguments: next(replay)).state == "not yet"


def test_schedules_reach_every_branch_of_the_rule():
    drawn = list(turns())
    assert any(turn.found and turn.streak + 1 == turn.interval for turn in drawn)
    assert any(turn.found and 0 < turn.streak < turn.interval - 1 for turn in drawn)
    grown = [turn for turn in drawn if not turn.found and turn.streak + 1 == turn.interval]
    assert any(turn.scale_after == turn.scale for turn in grown) and any(
        turn.scale_after > turn.scale for turn in grown
    )
    assert any(turn.scale_after < 1 for turn in drawn)
    assert all(math.isfinite(turn.scale_after) and turn.streak < turn.interval for turn in drawn)


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_rule_of_torch_never_reaches_inf(interval):
    scale, streak = torch.tensor(torch.finfo(torch.float32).max), torch.tensor(interval - 1, dtype=torch.int32)
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
        found = answers.two_right(optimizer, scale)
        gradient = answers.gradients(optimizer)[-1]
        gradient.copy_(torch.nextafter(gradient, torch.full_like(gradient, 9.0)))
        return found

    outcome = unscale_and_check.check(off_by_an_ulp)
    assert outcome.state == "not yet" and "to the last bit" in outcome.message


def test_a_scaler_without_unscale_is_not_asked_for_it():
    def unscale_(self, optimizer):
        """Left open."""

    kind = type("Open", (), {**vars(answers.FourWithoutUnscale), "unscale_": unscale_})
    assert scaler_class.check(kind).state == "correct"
