"""Calls of the auditor with something wrong in them: each gets an answer that names it."""

from __future__ import annotations

import re
import time

import pytest

from amp_course.audit import audit
from tests.audit.bad_input import BAD_INPUTS, PATIENCE, BadInput
from tests.findings.record import entry, stored


def answer(bad: BadInput, call=audit) -> tuple[str, str, dict]:
    """Return the kind of answer that a call got, its text, and its line in the record."""
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


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=lambda one: one.name)
def test_bad_input_is_named(bad: BadInput) -> None:
    begin = time.monotonic()
    _, text, line = (answer_soon if bad.hangs else answer)(bad)
    assert line == stored()[f"bad input/{bad.name}"], text
    for words in bad.says:
        assert re.search(words, text, re.IGNORECASE), text
    assert time.monotonic() - begin < PATIENCE / 4
