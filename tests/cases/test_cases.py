"""The tools say of each case what expected.toml expects."""

from __future__ import annotations

import pytest

from tests.cases.running import CASES, HERE, LIMIT, Case


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 60)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_called_what_it_is(case: Case) -> None:
    got = case.run()
    assert not case.faults_of(got), got.text


def test_every_script_has_its_expectation() -> None:
    scripts = {f"{path.parent.name}/{path.stem}" for path in HERE.glob("*/*.py")}
    assert {case.name for case in CASES} == scripts
