"""The doctor on scripts that were written without a look at it: 36 sound ones, 37 with one fault, 16 that misbehave."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from amp_course.debugging.clinic.ward import KNOWN, ward_round
from amp_course.debugging.doctor import examine_script
from amp_course.debugging.doctor.forking import ForkServer, fork_servers
from amp_course.distributed import scripts

CHAPTER_10 = Path(scripts.__file__).parent
SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
# Faults that show themselves as another one, too: what is named first is the gravest.
ALSO = {
    "cleared_before_step": "weights-unchanged",  # the optimizer's own `step` clears, after the gradients were looked at
    "weights_not_finite": "division-by-zero",  # the weights are made NaN by a division, which is watched
}


def copied(kind: str, name: str, folder: Path) -> Path:
    """A copy, for a script may write next to itself."""
    return Path(shutil.copy(SCRIPTS / kind / f"{name}.py", folder))


def names(kind: str) -> list[str]:
    return sorted(path.stem for path in (SCRIPTS / kind).glob("*.py"))


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer | None]:
    """Fork scripts that have nothing to do with how they are started: each import of torch takes seconds."""
    if sys.platform != "linux":
        yield None
        return
    with fork_servers() as (started,):
        yield started


@pytest.mark.parametrize("name", names("sound"))
def test_a_sound_script_is_not_accused(name: str, tmp_path: Path, server: ForkServer | None) -> None:
    script = copied("sound", name, tmp_path)
    found = examine_script(script, seconds=200, server=server)
    assert found.state == "clean", found
    assert dict(found.facts)["updates"] and [*tmp_path.iterdir()] == [script]


@pytest.mark.parametrize("name", names("faulty"))
def test_a_fault_is_named(name: str, tmp_path: Path, server: ForkServer | None) -> None:
    script = copied("faulty", name, tmp_path)
    fault = script.read_text("utf-8").splitlines()[0].removeprefix("# fault: ").strip()
    found = examine_script(script, seconds=200, server=server)
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


COMMANDS = ("asks_input", "forks", "kills_itself", "prints_a_lot", "sleeps_for_ever", "spawns_subprocess",
            "trains_for_ever")  # fmt: skip


@pytest.mark.parametrize("name", names("odd"))
def test_a_script_that_misbehaves_is_told_what_was_seen(name: str, tmp_path: Path, server: ForkServer | None) -> None:
    code, words = ODD[name]
    found = examine_script(
        copied("odd", name, tmp_path),
        seconds=20 if name == "sleeps_for_ever" else 120,
        server=None if name in COMMANDS else server,
    )
    assert found.exit_code == code and words in " ".join(str(found).split()), found


@pytest.mark.parametrize(("script", "args", "state"), [
    ("ddp_amp.py", ("--dtype", "fp16", "--epochs", "2"), "clean"), ("tensor_parallel_amp.py", (), "clean"),
    ("fsdp2_amp.py", ("--epochs", "1"), "could not run"), ("skip_alone.py", (), "could not run"),
])  # fmt: skip
def test_the_scripts_of_chapter_10_on_two_ranks(script: str, args: tuple[str, ...], state: str) -> None:
    found = examine_script(CHAPTER_10 / script, args, ranks=2, seconds=200)
    assert found.state == state, found


def test_a_script_for_torchrun_says_so() -> None:
    assert "--ranks 2" in examine_script(CHAPTER_10 / "ddp_amp.py").problem


def test_at_least_ten_patients_are_named() -> None:
    ward = ward_round()
    assert ward.named >= 10, ward
    assert {name for name in KNOWN if ward.verdict(name) == "another"} == set(), ward
    assert ward.verdict("scaler_syncs") == "as advice"
