"""The tools say of each case what expected.toml wants; what does not yet is skipped by name."""

from __future__ import annotations

import pytest

from tests.cases.running import CASES, FAILS_TODAY, HERE, LIMIT, Case


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 60)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_called_what_it_is(case: Case) -> None:
    if case.later:
        pytest.skip(case.later)
    if case.name in FAILS_TODAY:
        pytest.skip("to be mended by the doctor's rewrite")
    got = case.run()
    assert not case.faults_of(got), got.text


def test_every_script_has_its_expectation() -> None:
    scripts = {f"{path.parent.name}/{path.stem}" for path in HERE.glob("*/*.py")}
    assert {case.name for case in CASES} == scripts and set(FAILS_TODAY) <= scripts
