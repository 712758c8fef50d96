"""`tools/on_gpu.sh` with a stand-in for Python: a part that hangs or fails costs the others
nothing, and all is reported.
"""

import os
import re
import subprocess
import tarfile
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow  # it waits for what hangs
SCRIPT = Path(__file__).parents[1] / "tools" / "on_gpu.sh"
PYTHON = """#!/usr/bin/env bash
case "$*" in
*"-m pytest"*) trap '' TERM; echo "a test hangs"; while true; do sleep 1; done ;;
*"import ipykernel"*) sleep 3 ;;
*gpu_notebooks*) mkdir "$scratch/notebooks"; echo "$*" >"$scratch/notebooks/arguments" ;;
*cuda.synchronize*) exit 1 ;; # there is no GPU
*clip-scaled*) exit 1 ;; # the doctor has found the fault
*"course bench"*) echo "no memory left"; exit 3 ;;
esac
"""


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    folder = tmp_path_factory.mktemp("on_gpu")
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)

    def call(*arguments):
        environment = os.environ | {"PYTHON": str(folder / "python"), "OUT": str(folder / "out")}
        return subprocess.run(
            [SCRIPT, *arguments], env=environment, capture_output=True, text=True
        ), folder / "out"

    return call


def test_a_part_that_hangs_costs_the_others_nothing(call):
    done, out = call("--seconds", "50", "tests", "notebooks", "loop", "bench")
    lines = [line.split() for line in (out / "report.txt").read_text().splitlines()]
    verdicts = {
        line[0]: line[1] for line in lines if line[0] in ("tests", "notebooks", "loop", "bench")
    }
    assert verdicts == {
        "tests": "TIMED",
        "notebooks": "passed",
        "loop": "passed",
        "bench": "FAILED",
    }
    assert done.returncode == 1 and (out / "report.txt").read_text() == done.stdout
    assert done.stdout.splitlines()[-1].startswith("2 of 4 parts failed: tests bench; ")
    assert "    | a test hangs" in done.stdout and "    | no memory left" in done.stdout
    assert sorted(path.name for path in out.iterdir()) == [
        "logs.txt",
        "notebooks.tar.gz",
        "report.txt",
    ]
    with tarfile.open(out / "notebooks.tar.gz") as kept:
        arguments = kept.extractfile("notebooks/arguments").read().decode()
    (limit,) = re.findall(r"notebooks .* of (\d+) s", done.stdout)
    # They end by themselves, and are saved, before the part is stopped; it has spent 3 s before.
    assert int(re.search(r"--seconds (-?\d+)", arguments)[1]) <= int(limit) - 20 - 3
    left = [" ".join(one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
    assert not [command for command in left if f"{out.parent}/python" in command]


def test_parts_are_chosen_by_name(call):
    done, out = call("loop")
    assert done.returncode == 0 and "0 of 1 parts failed" in done.stdout
    assert sorted(path.name for path in out.iterdir()) == ["logs.txt", "report.txt"]
    assert call("machine")[0].returncode == 1 and call("--dry-run", "machine")[0].returncode == 0
    done, _ = call("loop", "cooking")
    assert done.returncode == 2 and "no part 'cooking'; the parts are machine tests" in done.stderr
