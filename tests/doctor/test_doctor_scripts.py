"""The doctor on scripts that were written independently of it, and on variants of one loop: sound,
faulty and odd ones.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from amp_course.debugging.clinic.examining import KNOWN, examine_all
from amp_course.diagnosis.report import Report
from amp_course.distributed import scripts
from amp_course.doctor import examine_script
from tests.doctor.loops import DATA, script
from tests.findings.record import of_diagnosis, stored

CHAPTER_10 = Path(scripts.__file__).parent
SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
# Scripts of chapter 10, on two ranks → their arguments, and the state of the report
ON_RANKS = {
    "ddp_amp": (("--dtype", "fp16", "--epochs", "2"), "clean"),
    "tensor_parallel_amp": ((), "clean"),
    "fsdp2_amp": (("--epochs", "1"), "could not run"),
    "skip_alone": ((), "could not run"),
}


def names(kind: str) -> list[str]:
    """Variants of the loop, and scripts."""
    return [*DATA[kind], *sorted(path.stem for path in (SCRIPTS / kind).glob("*.py"))]


def some(kind: str) -> list[str]:
    """All but every second variant of the loop, which only `make test-matrix` runs."""
    left = [] if "AMP_COURSE_DRAWS" in os.environ else list(DATA[kind])[1::2]
    return [name for name in names(kind) if name not in left]


def written(kind: str, name: str, folder: Path) -> Path:
    """Write a script to a folder of its own, since it may write files next to itself."""
    if name not in DATA[kind]:
        return Path(shutil.copy(SCRIPTS / kind / f"{name}.py", folder))
    path = folder / "train.py"
    path.write_text(script(kind, name), "utf-8")
    return path


def examined(kind: str, name: str, folder: Path | None = None) -> Report:
    if kind == "ranks":
        return examine_script(CHAPTER_10 / f"{name}.py", ON_RANKS[name][0], ranks=2, seconds=200)
    assert folder is not None
    return examine_script(
        written(kind, name, folder), seconds=20 if name == "waits for ever" else 200
    )


def as_recorded(kind: str, name: str, folder: Path | None = None) -> Report:
    """Examine a script, and compare the report with the record."""
    found = examined(kind, name, folder)
    assert of_diagnosis(found) == stored()[f"doctor/{kind}/{name}"], found
    return found


@pytest.mark.parametrize("name", some("sound"))
def test_a_sound_script_is_not_accused(name: str, tmp_path: Path) -> None:
    found = as_recorded("sound", name, tmp_path)
    advice = DATA["sound"].get(name, {}).get("advice", "")
    assert found.state == "clean" and advice in ("", *found.advised), found
    assert dict(found.facts)["updates"] and len([*tmp_path.iterdir()]) == 1


@pytest.mark.parametrize("name", some("faulty"))
def test_a_fault_is_named(name: str, tmp_path: Path) -> None:
    found = as_recorded("faulty", name, tmp_path)
    if name in DATA["faulty"]:
        fault = DATA["faulty"][name]["fault"]
    else:
        with open(SCRIPTS / "faulty" / f"{name}.py", encoding="utf-8") as file:
            fault = file.readline().removeprefix("# fault: ").strip()
    assert found.exit_code == 1 and fault in found.names, found
    assert len(found.findings) <= 2, found


@pytest.mark.parametrize("name", some("odd"))
def test_the_report_on_an_odd_script_says_what_happened(name: str, tmp_path: Path) -> None:
    found = as_recorded("odd", name, tmp_path)
    assert found.exit_code == DATA["odd"][name]["code"], found
    assert DATA["odd"][name]["says"] in " ".join(str(found).split()), found


@pytest.mark.parametrize("name", ON_RANKS)
def test_the_scripts_of_chapter_10_on_two_ranks(name: str) -> None:
    found = as_recorded("ranks", name)
    assert found.state == ON_RANKS[name][1], found


def test_a_script_for_torchrun_says_so() -> None:
    assert "--ranks 2" in examine_script(CHAPTER_10 / "ddp_amp.py").problem


def test_at_least_ten_scripts_of_the_clinic_get_their_cause() -> None:
    found = examine_all()
    assert found.named >= 10, found
    for name, one in found.diagnoses.items():
        assert of_diagnosis(one) == stored()[f"script/{name}"], one
    assert "another" not in map(found.verdict, KNOWN), found
    assert found.verdict("scaler_syncs") == "as observed"
