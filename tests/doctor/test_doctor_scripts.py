"""The doctor on scripts that were written without a look at it: 36 sound ones, 37 with one fault, 16 that misbehave."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from amp_course.debugging.clinic.ward import KNOWN, ward_round
from amp_course.distributed import scripts
from amp_course.doctor import Diagnosis, examine_script
from tests.findings.record import of_diagnosis, stored

CHAPTER_10 = Path(scripts.__file__).parent
SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
# Faults that show themselves as another one, too: what is named first is the gravest.
ALSO = {
    "cleared_before_step": "weights-unchanged",  # the optimizer's own `step` clears, after the gradients were looked at
    "weights_not_finite": "division-by-zero",  # the weights are made NaN by a division, which is watched
}


# of chapter 10, on two ranks
ON_RANKS = {
    "ddp_amp": (("--dtype", "fp16", "--epochs", "2"), "clean"), "tensor_parallel_amp": ((), "clean"),
    "fsdp2_amp": (("--epochs", "1"), "could not run"), "skip_alone": ((), "could not run"),
}  # fmt: skip


def copied(kind: str, name: str, folder: Path) -> Path:
    """A copy, for a script may write next to itself."""
    return Path(shutil.copy(SCRIPTS / kind / f"{name}.py", folder))


def names(kind: str) -> list[str]:
    return sorted(path.stem for path in (SCRIPTS / kind).glob("*.py"))


def examined(kind: str, name: str, folder: Path | None = None) -> Diagnosis:
    """Examine a script that may write next to itself in a folder of its own."""
    if kind == "ranks":
        return examine_script(CHAPTER_10 / f"{name}.py", ON_RANKS[name][0], ranks=2, seconds=200)
    limit = {"sound": 200, "faulty": 200, "odd": 20 if name == "sleeps_for_ever" else 120}[kind]
    return examine_script(copied(kind, name, folder), seconds=limit)


def as_recorded(kind: str, name: str, folder: Path | None = None) -> Diagnosis:
    """Examine a script, and compare what is said with the record."""
    found = examined(kind, name, folder)
    assert of_diagnosis(found) == stored()[f"doctor/{kind}/{name}"], found
    return found


@pytest.mark.parametrize("name", names("sound"))
def test_a_sound_script_is_not_accused(name: str, tmp_path: Path) -> None:
    found = as_recorded("sound", name, tmp_path)
    assert found.state == "clean", found
    assert dict(found.facts)["updates"] and [*tmp_path.iterdir()] == [tmp_path / f"{name}.py"]


@pytest.mark.parametrize("name", names("faulty"))
def test_a_fault_is_named(name: str, tmp_path: Path) -> None:
    source = (SCRIPTS / "faulty" / f"{name}.py").read_text("utf-8")
    fault = source.splitlines()[0].removeprefix("# fault: ").strip()
    found = as_recorded("faulty", name, tmp_path)
    assert found.exit_code == 1 and {fault, ALSO.get(name)} & set(found.names), found
    assert len(found.findings) <= 2, found


# what a script does → exit code, and words of what is said
ODD = {
    "asks_gpu": (2, "asks for a GPU"), "asks_input": (2, "input from a terminal"), "by_hand": (2, "torch.autograd.grad"),
    "catches_everything": (1, "raised in each step and caught"), "exits_0": (2, "ended without training"),
    "exits_3": (0, "No fault"), "forks": (0, "No fault"), "kills_itself": (2, "SIGKILL"),
    "missing_data": (2, "misses a file"), "missing_module": (2, "Install what it needs"),
    "needs_arguments": (2, "over its arguments"), "never_trains": (2, "ended without training"),
    "prints_a_lot": (0, "No fault"), "sleeps_for_ever": (2, "In 20 seconds"), "spawns_subprocess": (0, "No fault"),
    "trains_for_ever": (0, "No fault"),
}  # fmt: skip


@pytest.mark.parametrize("name", names("odd"))
def test_a_script_that_misbehaves_is_told_what_was_seen(name: str, tmp_path: Path) -> None:
    code, words = ODD[name]
    found = as_recorded("odd", name, tmp_path)
    assert found.exit_code == code and words in " ".join(str(found).split()), found


@pytest.mark.parametrize("name", ON_RANKS)
def test_the_scripts_of_chapter_10_on_two_ranks(name: str) -> None:
    found = as_recorded("ranks", name)
    assert found.state == ON_RANKS[name][1], found


def test_a_script_for_torchrun_says_so() -> None:
    assert "--ranks 2" in examine_script(CHAPTER_10 / "ddp_amp.py").problem


def test_at_least_ten_patients_are_named() -> None:
    ward = ward_round()
    assert ward.named >= 10, ward
    for name, one in ward.diagnoses.items():
        assert of_diagnosis(one) == stored()[f"patient/{name}"], one
    assert {name for name in KNOWN if ward.verdict(name) == "another"} == set(), ward
    assert ward.verdict("scaler_syncs") == "as advice"
