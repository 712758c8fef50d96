"""Steps as people write them: each broken one gets its finding, no sound one gets any."""

from __future__ import annotations

import pytest
import torch

from amp_course.audit import FAULTS, audit
from tests.audit.cases import BROKEN, SOUND, audited
from tests.audit.written import Case, every_second, first_of_each
from tests.conftest import DIAGNOSIS
from tests.findings.record import of_audit, stored

RECORD = stored()
FAULTS_OF = [case.faults[:1] for case in BROKEN]
NAMES = {"ids": lambda case: case.name.replace(" ", "-")}


@pytest.mark.parametrize("case", first_of_each(BROKEN, FAULTS_OF), **NAMES)
def test_a_broken_step_gets_its_finding(case: Case, record_property) -> None:
    report = audited(case)
    record_property(DIAGNOSIS, ("audit", case.name, "\n    ".join(map(str, report.findings))))
    assert report.names and set(report.names) <= set(case.faults), report
    assert of_audit(report) == RECORD[f"audit/{case.name}"]


@pytest.mark.parametrize("case", every_second(SOUND), **NAMES)
def test_a_sound_step_is_not_accused(case: Case) -> None:
    report = audited(case)
    assert report.names == (), report
    assert report and {"steps", "clearing"} <= set(report.right), report
    assert of_audit(report) == RECORD[f"audit/{case.name}"]


def test_every_fault_has_a_broken_step_and_every_step_its_own_name() -> None:
    deserved = {name for case in BROKEN for name in case.faults}
    found_by_the_doctor = {"micro-batches-dropped", "island-of-another-device"}
    assert set(FAULTS) - deserved - found_by_the_doctor <= {"batch-does-not-fit"}
    names = [case.name for case in [*BROKEN, *SOUND]]
    assert len(names) == len(set(names))


# The scaler of torch 2.7 fails under another default device, audited or not.
OTHER_DEVICE = ["dropout, and the loss passed"] * (torch.__version__ >= (2, 8))


@pytest.mark.parametrize(
    "case", [BROKEN[0], *(one for one in SOUND if one.name in OTHER_DEVICE)], **NAMES
)
def test_another_default_device_changes_nothing(case: Case) -> None:
    step, arguments = case.make()
    with torch.device("meta"):
        report = audit(step, **arguments)
    assert of_audit(report) == RECORD[f"audit/{case.name}"]
