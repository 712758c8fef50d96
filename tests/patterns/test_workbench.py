from __future__ import annotations

import itertools

import pytest
import torch

from amp_course.patterns import Report, audit
from amp_course.patterns.workbench import Switches, build_loop
from tests.findings.record import of_audit, stored

FINDINGS = {
    "clip": {
        "before unscale": {"clipped-while-scaled"},
        "every micro-batch": {"clipped-every-micro-batch", "clipped-while-scaled"},
        "not at all": {"not-clipped"},
    },
    "divide": {False: {"sum-not-mean"}},
    "clear": {"every micro-batch": {"cleared-every-micro-batch"}, "never": {"never-cleared"}},
    "update": {"every micro-batch": {"update-every-micro-batch"}, "never": {"update-missing"}},
    "wait": {False: {"scheduler-ran-on"}},
}


DEFAULT = Switches()


def changed(switches: Switches) -> list[str]:
    """Return the choices that are not the default."""
    chosen = {name: getattr(switches, name) for name in Switches.CHOICES}
    return [f"{name} {one}" for name, one in chosen.items() if one != getattr(DEFAULT, name)]


EVERY = [Switches(*choices) for choices in itertools.product(*Switches.CHOICES.values())]
ALL = [switches for switches in EVERY if len(changed(switches)) <= 2]


def key(switches: Switches) -> str:
    """Return a loop's name in the record: its choices that are not the default."""
    return f"workbench/{', '.join(changed(switches)) or 'right'}"


def judged(switches: Switches) -> Report:
    _, step, objects = build_loop(switches)
    return audit(step, **objects)


def names(switches: Switches) -> set[str]:
    report = judged(switches)
    assert of_audit(report) == stored()[key(switches)]
    return set(report.names)


def test_the_default_is_right_and_every_other_choice_is_named() -> None:
    assert names(Switches()) == set()
    for switch, choices in Switches.CHOICES.items():
        assert set(FINDINGS[switch]) == set(choices[1:])
        for choice in choices[1:]:
            assert names(Switches(**{switch: choice})) == FINDINGS[switch][choice], (switch, choice)


@pytest.mark.slow
def test_two_faults_at_once_pass_no_more_than_one() -> None:
    for switches in ALL[1:]:
        found = names(switches)
        assert found and "step-raises" not in found, switches


def test_what_is_shown_is_what_runs() -> None:
    text, step, objects = build_loop(Switches())
    assert (
        text.count("scaler.step(optimizer)") == 1
        and step.__code__.co_filename == "<the loop of the switches>"
    )
    again: dict = dict(step.__globals__)
    exec(text, again)
    assert again["train_step"].__code__.co_code == step.__code__.co_code
    before = [p.detach().clone() for p in objects["model"].parameters()]
    for number, batch in enumerate(objects["batches"]):
        step(*batch, last=number % 2 == 1)
    assert not any(map(torch.equal, before, objects["model"].parameters()))


def test_refuses_an_unknown_choice() -> None:
    with pytest.raises(ValueError, match="clip is 'never': choose one of 'after unscale'"):
        Switches(clip="never")
