"""The set-up, `tools/install.py`, run for real on a tiny package, with nothing to download."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.small_clone import INSTALL, make_clone, one_line, set_up, start

pytestmark = pytest.mark.slow  # `make test` would take too long with it


def installed(clone: Path) -> bool:
    code = "import importlib.metadata as m; print(m.version('tiny'))"
    command = [clone / ".venv/bin/python", "-c", code]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone that is set up; tests copy it or leave it working."""
    clone = make_clone(tmp_path_factory.mktemp("ready") / "a clone")  # with a space, as users have
    code, out, err = set_up(clone)
    assert code == 0, out + err
    return clone


def test_a_second_run_does_nothing_and_is_quick(ready: Path) -> None:
    before = (ready / ".venv/installed.json").stat().st_mtime_ns
    began = time.perf_counter()
    assert set_up(ready) == (0, "", "")
    assert time.perf_counter() - began < 2  # about 0.05 s; pip alone would take longer than this
    assert (ready / ".venv/installed.json").stat().st_mtime_ns == before


def test_a_changed_requirement_is_installed_and_the_extras_are_kept(ready: Path) -> None:
    assert set_up(ready, "--extra", "test")[0] == 0
    stamp = json.loads((ready / ".venv/installed.json").read_text())
    assert stamp["extras"] == ["test"]
    assert set_up(ready) == (0, "", "")  # what `test` needs is enough for `lab`
    (ready / "constraints.txt").write_text("torch==2.13.1\n")
    code, out, err = set_up(ready)
    assert (code, err) == (0, "") and "Installed" in out and "Making" not in out
    renewed = json.loads((ready / ".venv/installed.json").read_text())
    assert renewed["extras"] == ["test"] and renewed["requirements"] != stamp["requirements"]


def test_a_killed_set_up_is_picked_up_by_running_again(tmp_path: Path) -> None:
    clone = make_clone(tmp_path / "clone")
    (clone / "slow").touch()
    first = start(clone)
    wait_for(clone / "building")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert not (clone / ".venv/installed.json").exists()
    os.killpg(first.pid, signal.SIGKILL)  # pip, which lives on
    (clone / "slow").unlink()
    code, out, err = set_up(clone)
    assert code == 0, out + err
    assert installed(clone)


def test_the_next_run_waits_for_the_pip_that_a_kill_left_behind(ready: Path) -> None:
    (ready / "slow").touch()
    (ready / ".venv/installed.json").unlink()
    first = start(ready)
    wait_for(ready / "building")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    (ready / "slow").unlink()
    second = start(ready)
    assert "Another set-up is at work" in second.stdout.readline()
    os.killpg(first.pid, signal.SIGKILL)
    out, err = second.communicate(timeout=90)
    assert second.returncode == 0, out + err
    assert installed(ready)


@pytest.mark.parametrize("damage", ["no pip", "no python", "half a package", "half a stamp"])
def test_a_half_made_venv_is_made_whole(ready: Path, damage: str) -> None:
    venv = ready / ".venv"
    if damage == "no pip":
        (pip,) = venv.glob("lib/python*/site-packages/pip")
        shutil.rmtree(pip)
        (venv / "installed.json").unlink()
    elif damage == "no python":
        for python in venv.glob("bin/python*"):
            python.unlink()
    elif damage == "half a package":
        (site,) = venv.glob("lib/python*/site-packages")
        (site / "half-1.dist-info").mkdir()
        (site / "half-1.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: half\nVersion: 1\n"
        )
        (venv / "installed.json").unlink()
    else:
        (venv / "installed.json").write_text('{"requirements": "')
    code, out, err = set_up(ready)
    assert code == 0, out + err
    assert installed(ready)
    assert not list(venv.glob("lib/python*/site-packages/half-1.dist-info"))
    assert set_up(ready) == (0, "", "")


def test_without_a_network_one_line_says_so(ready: Path) -> None:
    lost = make_clone(ready.parent / "lost", requires="surely-not-there")
    shutil.copytree(ready / ".venv", lost / ".venv", symlinks=True)
    began = time.perf_counter()
    index = "http://127.0.0.1:9/simple"
    code, out, err = set_up(lost, PIP_INDEX_URL=index, PIP_CONFIG_FILE=os.devnull)
    assert code == 1
    assert "the package index cannot be reached. Check the network" in one_line(err)
    # pip's own words stay above it
    assert "No matching distribution found for surely-not-there" in out
    assert "surely-not-there" in (lost / ".venv/install.log").read_text()
    assert time.perf_counter() - began < 30
    assert not (lost / ".venv/installed.json").exists()


def test_a_pin_for_another_python_is_named(ready: Path, tmp_path: Path) -> None:
    """With a pin in constraints.txt, pip itself speaks of a conflict, and names no cause."""
    page = tmp_path / "simple" / "needs-new" / "index.html"
    page.parent.mkdir(parents=True)
    links = {version: f"needs_new-{version}-py3-none-any.whl" for version in ("1", "2")}
    new = f'<a href="{links["2"]}" data-requires-python="&gt;=3.99">2</a>'
    page.write_text(f'<a href="{links["1"]}">1</a> {new}')
    lost = make_clone(tmp_path / "lost", requires="needs-new")
    (lost / "constraints.txt").write_text("needs-new==2\ntorch==2.13.0\n")
    shutil.copytree(ready / ".venv", lost / ".venv", symlinks=True)
    code, _, err = set_up(lost, PIP_INDEX_URL=page.parents[1].as_uri(), PIP_CONFIG_FILE=os.devnull)
    assert code == 1
    assert f"needs-new==2 needs another Python than {sys.version.split()[0]}" in one_line(err)


@pytest.mark.parametrize("setting", ["PIP_TARGET", "PIP_USER"])
def test_settings_of_pips_that_lead_elsewhere_do_not_count(
    ready: Path, tmp_path: Path, setting: str
) -> None:
    clone = make_clone(tmp_path / "clone")
    shutil.copytree(ready / ".venv", clone / ".venv", symlinks=True)
    (clone / ".venv" / "installed.json").unlink()
    value = "1" if setting == "PIP_USER" else str(tmp_path / "elsewhere")
    code, out, err = set_up(clone, **{setting: value})
    assert (code, err) == (0, ""), out
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("wrong", ["a file", "a dangling link"])
def test_something_else_called_venv(tmp_path: Path, wrong: str) -> None:
    clone = make_clone(tmp_path / "clone")
    (clone / ".venv").touch() if wrong == "a file" else (clone / ".venv").symlink_to("nowhere")
    code, _, err = set_up(clone)
    assert code == 1 and f"Remove {clone / '.venv'} and run the same command again" in one_line(err)


MAKEFILE = INSTALL.parents[1] / "Makefile"


def make(python: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    clone = make_clone(tmp_path / "a clone")
    shutil.copy(MAKEFILE, clone)
    return subprocess.run(
        ["make", "lab", f"PYTHON={python}"], cwd=clone, capture_output=True, text=True
    )


@pytest.mark.skipif(not shutil.which("make"), reason="no make on this machine")
@pytest.mark.parametrize("python", ["nosuch", "false", "cat"])
def test_make_with_no_python_says_what_to_do(python: str, tmp_path: Path) -> None:
    done = make(python, tmp_path)
    assert done.returncode != 0
    said, stop = done.stderr.strip().splitlines()
    assert said.startswith(f"amp_course: {python} does not run here as a Python 3")
    assert "make lab PYTHON=python3.12" in said
    assert re.match(r"make(\[\d+\])?: \*\*\*", stop)  # a number where make runs the tests


def wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            path.unlink()
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} did not come")
