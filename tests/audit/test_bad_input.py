"""Calls of the auditor with something wrong in them: each gets an error, a finding or a reason that names it."""

from __future__ import annotations

import time

import pytest

from amp_course.audit import audit
from tests.audit.bad_input import BAD_INPUTS, BadInput, says
from tests.findings.record import entry, stored

HANGS = 60  # seconds that the auditor may take for a call that hangs; the others take less


def hangs(bad: BadInput) -> bool:
    return bad.seconds >= HANGS


def answer(bad: BadInput, call=audit) -> tuple[str, str, dict]:
    """Return what kind of answer a call got, its text, and its line in the record."""
    names = ()
    try:
        report = bad.call(call)
        names, text = report.names, repr(report)
        kind = "finding" if names else "fine" if report else "not judged"
    except (TypeError, ValueError) as error:
        kind, text = "error", f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        kind, text = "interrupt", ""
    return kind, text, entry(answer=kind, faults=names)


def answer_soon(bad: BadInput) -> tuple[str, str, dict]:
    return answer(bad, lambda *args, **kwargs: audit(*args, **kwargs, seconds=0.3))


@pytest.mark.parametrize("bad", [one for one in BAD_INPUTS if not hangs(one)], ids=lambda one: one.name)
def test_bad_input_is_named(bad: BadInput) -> None:
    kind, text, line = answer(bad)
    assert line == stored()[f"bad input/{bad.name}"], text
    if kind == "fine" and "fine" in bad.natural:
        return
    assert kind in bad.natural or (kind == "fine" and "not judged" in bad.natural), text
    assert says(text, bad.words), text


@pytest.mark.parametrize("bad", [one for one in BAD_INPUTS if hangs(one)], ids=lambda one: one.name)
def test_what_hangs_ends(bad: BadInput) -> None:
    begin = time.monotonic()
    _, text, line = answer_soon(bad)
    assert time.monotonic() - begin < HANGS / 4
    assert says(text, bad.words), text
    assert line == stored()[f"bad input/{bad.name}"], text
