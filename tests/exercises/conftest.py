"""Collect what each wrong answer was told, and list it at the end of the run."""

import pytest

DIAGNOSES: list[tuple[str, str, str]] = []


@pytest.fixture
def diagnoses():
    return DIAGNOSES


def pytest_terminal_summary(terminalreporter):
    if not DIAGNOSES:
        return
    terminalreporter.section(f"{len(DIAGNOSES)} wrong answers and what each was told")
    for exercise, mistake, message in DIAGNOSES:
        terminalreporter.write_line(f"{exercise} / {mistake}\n    {message}")
