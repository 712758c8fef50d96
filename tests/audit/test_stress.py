"""Steps that change far more than weights: an audit leaves all as it was, and training goes on."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch._dynamo  # noqa: F401 - an optimizer imports it, and that adds filters of warnings

from amp_course.audit import audit
from amp_course.checking.item import UNCHANGED
from amp_course.checking.sandbox import STATE
from amp_course.checking.sandbox import sandbox as globals_kept
from tests.audit.fingerprints import differences, fingerprint, values
from tests.audit.stress import STRESSES, Stress
from tests.audit.written import every_second
from tests.findings.record import entry, of_audit, stored


def run_on(step: Callable[..., Any], arguments: dict[str, Any], updates: int = 4) -> list[str]:
    """Train on as the reader would, with fresh batches. What the calls returned or raised."""
    batches, accumulate, told = list(arguments["batches"]), arguments.get("accumulate", 1), []
    takes_last = "last" in inspect.signature(step).parameters
    for i in range(updates * accumulate):
        batch = copy.deepcopy(batches[i % len(batches)])
        last = {"last": (i + 1) % accumulate == 0} if takes_last else {}
        try:
            told.append(
                repr(step(*batch, **last) if isinstance(batch, tuple) else step(batch, **last))
            )
        except (Exception, SystemExit) as error:
            told.append(repr(error))
    return told


def report_of(step, arguments):
    """Return the report, or None where there is none, and its line in the record."""
    try:
        report = audit(step, **arguments)
    except ValueError:
        return None, entry(answer="error")
    return report, of_audit(report)


@pytest.mark.parametrize(
    "stress", every_second(STRESSES), ids=lambda one: one.name.replace(" ", "-")
)
def test_everything_is_put_back(stress: Stress) -> None:
    went_on = []
    for audited in (False, True):
        with globals_kept():
            step, arguments, probes = stress.make()
            before, switches = fingerprint(probes), [(item, item.get()) for item in STATE]
            if audited:
                report, line = report_of(step, arguments)
                assert line == stored()[f"stress/{stress.name}"]
                assert report is not None or not stress.sound
                changed = [
                    item.tell(was, now)
                    for item, was in switches
                    if (now := item.change(was)) is not UNCHANGED
                ]
                assert not changed and not [*differences(before, fingerprint(probes))]
                if stress.sound and report is not None:
                    assert report.names == () and report.not_put_back == (), report
            told = run_on(step, arguments)
            went_on.append((told, values(fingerprint(probes))))
    assert went_on[0][0] == went_on[1][0]
    assert not [*differences(went_on[0][1], went_on[1][1])]
