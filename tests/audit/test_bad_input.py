"""Calls of the auditor with something wrong in them: each gets an error, a finding or a reason that names it."""

from __future__ import annotations

import time

import pytest

from amp_course.audit import audit
from tests.audit.bad_input import BAD_INPUTS, BadInput, says

HANGS = 60  # seconds that the auditor may take for a call that hangs; the others take less


def answer(bad: BadInput, call=audit) -> tuple[str, str]:
    """Return what kind of answer a call got, and its text."""
    try:
        report = bad.call(call)
    except (TypeError, ValueError) as error:
        return "error", f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        return "interrupt", ""
    return "finding" if report.names else "fine" if report else "not judged", repr(report)


@pytest.mark.parametrize("bad", [one for one in BAD_INPUTS if one.seconds < HANGS], ids=lambda one: one.name)
def test_bad_input_is_named(bad: BadInput) -> None:
    kind, text = answer(bad)
    if kind == "fine" and "fine" in bad.natural:
        return
    assert kind in bad.natural or (kind == "fine" and "not judged" in bad.natural), text
    assert says(text, bad.words), text


@pytest.mark.parametrize("bad", [one for one in BAD_INPUTS if one.seconds >= HANGS], ids=lambda one: one.name)
def test_what_hangs_ends(bad: BadInput) -> None:
    begin = time.monotonic()
    _, text = answer(bad, lambda *args, **kwargs: audit(*args, **kwargs, seconds=0.3))
    assert time.monotonic() - begin < HANGS / 4
    assert says(text, bad.words), text
