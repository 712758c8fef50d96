"""Steps that change far more than weights: an audit puts all back, and training goes on."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch._dynamo  # noqa: F401 - an optimizer imports it, and that adds filters of warnings

from amp_course.audit import audit
from amp_course.checking.item import UNCHANGED
from amp_course.checking.sandbox import STATE, sandbox
from tests.audit.fingerprints import differences, fingerprint, values
from tests.audit.stress import STRESSES, Stress
from tests.audit.written import every_second
from tests.findings.record import entry, of_audit, stored


def run_on(step: Callable[..., Any], arguments: dict[str, Any], updates: int = 4) -> list[str]:
    """Train on with fresh batches, as a learner would; return what each call returned or raised."""
    batches, accumulate, results = list(arguments["batches"]), arguments.get("accumulate", 1), []
    takes_last = "last" in inspect.signature(step).parameters
    for i in range(updates * accumulate):
        batch = copy.deepcopy(batches[i % len(batches)])
        last = {"last": (i + 1) % accumulate == 0} if takes_last else {}
        args = batch if isinstance(batch, tuple) else (batch,)
        try:
            results.append(repr(step(*args, **last)))
        except (Exception, SystemExit) as error:
            results.append(repr(error))
    return results


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
    outcomes = []
    for audited in (False, True):
        with sandbox():
            step, arguments, probes = stress.make()
            before, switches = fingerprint(probes), [(item, item.get()) for item in STATE]
            if audited:
                report, line = report_of(step, arguments)
                assert line == stored()[f"stress/{stress.name}"]
                assert report is not None or not stress.sound
                changed = [
                    item.describe(was, now)
                    for item, was in switches
                    if (now := item.change(was)) is not UNCHANGED
                ]
                assert not changed and not [*differences(before, fingerprint(probes))]
                if stress.sound and report is not None:
                    assert report.names == () and report.not_put_back == (), report
            outcomes.append((run_on(step, arguments), values(fingerprint(probes))))
    (plain, plain_prints), (after_audit, prints) = outcomes
    assert plain == after_audit
    assert not [*differences(plain_prints, prints)]
