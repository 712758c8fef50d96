"""Steps whose fault the doctor, which combines the audit and its watch, once named twice."""

from __future__ import annotations

from typing import Any

import pytest

from amp_course.doctor import doctor
from tests.audit.written import SOUND, make, read

PLAIN = {"step": "clear; F.cross_entropy(model(x), y).backward(); optimizer.step()"}
EVERY_FOURTH = "\nif next(calls) % 4 == 0: {}clear"
CASES: dict[str, dict[str, Any]] = {
    "unscaled-every-micro-batch": {
        "before": "calls = itertools.count(1)",
        "step": "forward / 4; backward; unscale" + EVERY_FOURTH.format("step; update; "),
    },
    "stepped-every-micro-batch": {
        "before": "calls = itertools.count(1)",
        "step": "(F.cross_entropy(model(x), y) / 4).backward(); optimizer.step()"
        + EVERY_FOURTH.format(""),
    },
    "swallowed-exception": {
        "step": """
try: clear; F.cross_entropy(model(x), y.float()).backward(); optimizer.step()
except RuntimeError: pass
"""
    },
    "optimizer-of-old-weights": PLAIN | {"before": "model[2] = nn.Linear(16, 3)"},
    "labels-out-of-range": read("edge_*.toml")["labels out of range"],
}


def names_by_doctor(case: dict[str, Any], accumulate: int = 1) -> tuple[str, ...]:
    step, arguments, _ = make("a step", case, SOUND | {"data": "classes(8)", "scaler": ""})
    return doctor(train_step=step, **arguments, timing=0, accumulate=accumulate).names


@pytest.mark.parametrize("name", CASES)
def test_the_doctor_counts_one_fault_once(name: str) -> None:
    assert names_by_doctor(CASES[name], 4 if "micro" in name else 1) == (name,)


def test_a_scaler_that_is_lowering_its_scale_is_sound() -> None:
    assert names_by_doctor({"scaler": "init_scale=2.0**30"}) == ()
