"""The record has a line for each case, and those of the notebooks are what they show."""

from __future__ import annotations

from tests.findings.record import cells, jobs, stored


def test_every_case_has_its_line() -> None:
    assert sorted(name for name, _ in jobs()) == sorted(stored())


def test_what_the_notebooks_show_is_recorded() -> None:
    for name, read in cells():
        assert read() == stored()[name], name
