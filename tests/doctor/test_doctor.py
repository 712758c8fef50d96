"""The doctor on steps, what it says about a run, and its rules for lost updates.

The command is in test_doctor_command, whole scripts in test_doctor_scripts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from amp_course.debugging.clinic.examining import KNOWN, Round
from amp_course.diagnosis.catalogue import finding
from amp_course.diagnosis.report import Report
from amp_course.diagnosis.rules.training import check_lost
from amp_course.doctor.machine import _number
from amp_course.doctor.reasons import checked, not_judged, reason
from amp_course.doctor.running import Outcome, last_lines
from amp_course.doctor.script import _report
from amp_course.doctor.watchers import Watchers
from amp_course.watching.fp32_shadow import Twin
from amp_course.watching.values import mentions_values
from tests.doctor.training import SmallTraining


def state(training: SmallTraining) -> list[torch.Tensor]:
    scale = torch.tensor(training.scaler.get_scale())
    return [*training.model.state_dict().values(), scale, torch.get_rng_state()]


def test_a_sound_step_is_clean_and_everything_is_put_back() -> None:
    training = SmallTraining()
    before = [one.clone() for one in state(training)]
    found = training.examine(training.scaled, timing=0.2)
    facts = dict(found.facts)
    assert "torch " + torch.__version__ in facts["machine"]
    assert "times as long as in fp32" in facts["fp16 here"] or "busy" in facts["fp16 here"]
    assert "bf16 here" not in facts and re.search(" [mµ]s: ", facts["a step takes"])
    assert found and found.exit_code == 0 and not found.findings, found
    assert all(torch.equal(a, b) for a, b in zip(before, state(training), strict=True))
    assert "100% in float16" in str(found)


def data_are_nan(training: SmallTraining) -> None:
    training.batches = [(x.fill_(float("nan")), y) for x, y in training.batches]


def weights_are_nan(training: SmallTraining) -> None:
    nn.init.constant_(training.model[0].weight, float("nan"))


def inputs_are_large(training: SmallTraining) -> None:
    training.batches = [(x * 1e6, y) for x, y in training.batches]


@pytest.mark.parametrize(
    ("change", "name", "op"),
    [
        (data_are_nan, "nan-in-data", ""),
        (weights_are_nan, "weights-not-finite", ""),
        (inputs_are_large, "beyond-fp16", "_to_copy"),
    ],
)
def test_what_is_not_finite_is_named_by_where_it_comes_from(
    change: Callable[[SmallTraining], None], name: str, op: str
) -> None:
    training = SmallTraining()
    change(training)
    found = training.examine(training.scaled)
    assert name in found.names and op in str(found), found
    assert "not-finite" not in found.names


def test_bad_input() -> None:
    training = SmallTraining()
    with pytest.raises(TypeError, match="train_step has to be the function"):
        training.examine(None)
    with pytest.raises(ValueError, match="steps is 0"):
        training.examine(training.scaled, steps=0)
    training.batches = []
    assert "empty" in training.examine(training.scaled).problem


def lost(dtype: torch.dtype, lr: float) -> list[str]:
    """Names of the faults after six steps of SGD with gradients of 1, for weights of 1."""
    weight = nn.Parameter(torch.ones(16, dtype=dtype))
    optimizer = torch.optim.SGD([weight], lr=lr)
    twin = Twin(optimizer)
    for _ in range(6):
        weight.grad = torch.ones_like(weight)
        twin.before()
        optimizer.step()
        twin.after()
    return [one.name for one in check_lost([twin.lost()])]


def test_an_update_below_half_the_distance_is_lost_and_one_above_is_not() -> None:
    below = torch.finfo(torch.bfloat16).eps / 4  # below 1, neighbours are eps / 2 apart
    assert lost(torch.bfloat16, 0.9 * below) == ["updates-vanish"]
    assert lost(torch.bfloat16, 1.1 * below) == []
    assert lost(torch.float16, 1e-5) == ["updates-vanish"] and lost(torch.float16, 1e-2) == []


def test_a_schedule_does_not_step_the_original_by_its_twin() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    twin = Twin(optimizer)
    weight.grad = torch.ones_like(weight)
    twin.before()
    twin.after()
    assert torch.equal(weight, torch.ones(2, dtype=torch.bfloat16))


def test_the_last_lines_are_those_that_a_terminal_shows() -> None:
    output = b"one\r\n  \x1b[31mtwo\x1b[0m \n 1%|\r 99%|#\r100%|##|\r\n\xff\n" + b"\n" * 3
    assert last_lines(output) == ("one", "  two", "100%|##|", "\ufffd")
    assert len(last_lines(b"line\n" * 99)) == 12


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "made no optimizer, and ran no backward pass"),
        ({"passes": 1}, "It ran 1 backward pass, and made no"),
        ({"by_hand": 3, "passes": 2}, "2 backward passes and called `torch.autograd.grad` 3 times"),
        ({"optimizers": ["SGD", "SGD"], "passes": 9}, "made 2 SGD, and ran 9 backward passes, but"),
        ({"programs": ["python a.py"]}, "started other programs"),
        ({"ended": "time"}, "In 5 seconds it took no step"),
        (
            {"ended": "time", "passes": 3, "optimizers": ["SGD"]},
            "completed no update: give it more time with `--timeout`, or a smaller model",
        ),
        ({"ended": "exit"}, "ended on its own with exit code 3"),
        ({"error": "ValueError: no"}, "before an optimizer stepped: ValueError: no"),
    ],
)
def test_why_there_is_nothing_to_judge(changes: dict[str, Any], words: str) -> None:
    result = {"ended": "end", "error": "", "optimizers": [], "passes": 0, "by_hand": 0}
    assert words in reason([result | {"programs": []} | changes], Outcome(3, (), late=False), 5)


RESULT = {
    "updates": 9, "ended": "end", "regions": ["float16"], "scalers": 1, "stressed": True,
    "reached": True, "changed_while_scaled": False,
}  # fmt: skip


def test_a_run_that_an_exception_ended_is_not_called_right() -> None:
    assert "run" in checked([RESULT])
    assert "run" not in checked([RESULT | {"ended": "error"}])


@pytest.mark.parametrize("reached", [False, True])
def test_gradients_that_the_script_copies_are_not_called_right(reached: bool) -> None:
    result = RESULT | {"reached": reached}
    assert ("clearing" in checked([result])) == reached
    assert ("steps and clearing" in dict(not_judged([result]))) != reached


@pytest.mark.parametrize("changed", [False, True])
def test_clips_that_may_know_the_scale_are_not_judged(changed: bool) -> None:
    found = dict(not_judged([RESULT | {"changed_while_scaled": changed}]))
    assert ("clipping" in found) == changed


def test_ratios_are_rounded_so_that_they_hold() -> None:
    texts = [_number(times) for times in (166.0, 31.0, 7.0, 1.234, 0.43)]
    assert texts == ["over 100", "over 20", "over 5", "about 1", "about 0.4"]


def test_a_round_shows_its_causes_only_after_a_click() -> None:
    found = Round({name: Report(subject=f"{name}.py") for name in ("scaled_clip", "zero_amax")})
    page = found._repr_html_()
    open_part, folded = page.split("<details>")
    assert "0 of 2 causes named" in open_part and "</summary>" in folded
    for name in found.diagnoses:
        assert KNOWN[name] not in open_part and KNOWN[name] in folded


def test_the_place_of_a_late_loss_is_outside_of_the_region() -> None:
    training = SmallTraining()

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        training.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            hidden = nn.functional.normalize(training.model(x), dim=1)
        loss = hidden.exp().mean()
        training.scaler.scale(loss).backward()
        training.scaler.step(training.optimizer)
        training.scaler.update()

    watchers = Watchers(lambda update: None)
    watchers.made.optimizers.append(training.optimizer)
    with watchers.watch:
        step(*training.batches[0])
    watchers.end()
    assert "hidden.exp()" in str(watchers.watch.late)


def test_a_scalers_complaint_is_not_about_values() -> None:
    assert mentions_values(ValueError("an inf in the loss"))
    assert not mentions_values(AssertionError("No inf checks were recorded for this optimizer."))


def test_a_partner_of_a_process_that_the_doctor_ended_may_fail() -> None:
    script = Report((finding("script-raises"),)).to_dict()["faults"]
    common = {
        "passes": 9, "optimizers": ["SGD"], "rank": "0", "sharded": False, "findings": [],
        "advice": [], "observed": [], "error": "", "joined": [], "scales": [], "digests": [],
        "weights": [], "wrapped": True, "drift": {}, "groups": [], "losses": [], "matmuls": {},
        "machine": [], "seconds": 1.0, "skipped": 0, "asked": 9, "device": "cpu", "code": 0,
    }  # fmt: skip
    failed = RESULT | common | {"ended": "error", "findings": script, "stressed": False}
    ended = RESULT | common | {"ended": "steps", "rank": "1"}
    outcome = Outcome(1, ("Connection closed by peer",), late=False)
    found = _report("train.py", [], [failed, ended], outcome, 9.0, ([], []))
    assert found.state == "clean" and not found.output and "overflow" in found.right, found
