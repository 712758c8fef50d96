"""The doctor on scripts that were written without a look at it, and on changes of one loop: sound, faulty, and odd ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from amp_course.debugging.clinic.ward import KNOWN, ward_round
from amp_course.distributed import scripts
from amp_course.doctor import examine_script
from tests.doctor.loops import DATA, script

CHAPTER_10 = Path(scripts.__file__).parent
SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def written(kind: str, name: str, folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(script(kind, name), "utf-8")
    return path


def copied(kind: str, name: str, folder: Path) -> Path:
    """A copy, for a script may write next to itself."""
    return Path(shutil.copy(SCRIPTS / kind / f"{name}.py", folder))


def names(kind: str) -> list[str]:
    return sorted(path.stem for path in (SCRIPTS / kind).glob("*.py"))


def check_sound(path: Path, advice: str = "") -> None:
    found = examine_script(path, seconds=200)
    assert found.state == "clean" and advice in ("", *found.advised), found
    assert dict(found.facts)["updates"] and [*path.parent.iterdir()] == [path]


def check_faulty(path: Path, fault: str) -> None:
    found = examine_script(path, seconds=200)
    assert found.exit_code == 1 and fault in found.names, found
    assert len(found.findings) <= 2, found


@pytest.mark.parametrize("name", DATA["sound"])
def test_a_sound_loop_is_not_accused(name: str, tmp_path: Path) -> None:
    check_sound(written("sound", name, tmp_path), DATA["sound"][name].get("advice", ""))


@pytest.mark.parametrize("name", names("sound"))
def test_a_sound_script_is_not_accused(name: str, tmp_path: Path) -> None:
    check_sound(copied("sound", name, tmp_path))


@pytest.mark.parametrize("name", DATA["faulty"])
def test_the_fault_of_a_loop_is_named(name: str, tmp_path: Path) -> None:
    check_faulty(written("faulty", name, tmp_path), DATA["faulty"][name]["fault"])


@pytest.mark.parametrize("name", names("faulty"))
def test_the_fault_of_a_script_is_named(name: str, tmp_path: Path) -> None:
    path = copied("faulty", name, tmp_path)
    check_faulty(path, path.read_text("utf-8").splitlines()[0].removeprefix("# fault: ").strip())


@pytest.mark.parametrize("name", DATA["odd"])
def test_a_script_that_misbehaves_is_told_what_was_seen(name: str, tmp_path: Path) -> None:
    found = examine_script(written("odd", name, tmp_path), seconds=20 if name == "waits for ever" else 120)
    assert found.exit_code == DATA["odd"][name]["code"], found
    assert DATA["odd"][name]["says"] in " ".join(str(found).split()), found


@pytest.mark.parametrize(("name", "args", "state"), [
    ("ddp_amp.py", ("--dtype", "fp16", "--epochs", "2"), "clean"), ("tensor_parallel_amp.py", (), "clean"),
    ("fsdp2_amp.py", ("--epochs", "1"), "could not run"), ("skip_alone.py", (), "could not run"),
])  # fmt: skip
def test_the_scripts_of_chapter_10_on_two_ranks(name: str, args: tuple[str, ...], state: str) -> None:
    found = examine_script(CHAPTER_10 / name, args, ranks=2, seconds=200)
    assert found.state == state, found


def test_a_script_for_torchrun_says_so() -> None:
    assert "--ranks 2" in examine_script(CHAPTER_10 / "ddp_amp.py").problem


def test_at_least_ten_patients_are_named() -> None:
    ward = ward_round()
    assert ward.named >= 10, ward
    assert {name for name in KNOWN if ward.verdict(name) == "another"} == set(), ward
    assert ward.verdict("scaler_syncs") == "as observed"
