"""The launchers: what the table says they set is what rank 1 finds,
and the templates set what a rank needs.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from amp_course.distributed.launching import LAUNCHERS, LauncherTable, StartUpTimes, time_launchers
from amp_course.distributed.launching.figures import start_up_figure

TEMPLATES = (
    Path(sys.modules["amp_course.distributed.launching"].__file__ or "").parent / "templates"
)
BY_KEY = {one.key: one for one in LAUNCHERS if one.key}
RANK = """
import os, sys
wanted = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
with open(f"{sys.argv[1]}/" + os.environ["RANK"], "x") as file:
    print(*(os.environ[name] for name in wanted), *sys.argv[2:], file=file)
"""
# What the real ones set for each task, on two nodes of two tasks: 0 and 1 on the first, 2 and 3 on
# the second.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for rank in 0 1 2 3; do
    SLURM_PROCID=$rank SLURM_NTASKS=4 SLURM_LOCALID=$((rank % 2)) SLURM_NODEID=$((rank / 2)) "$@" \\
        || exit $?
done
"""
SCONTROL = """#!/bin/bash
[[ "$*" == "show hostnames node[07-08]" ]] && printf 'node07\\nnode08\\n'
"""
MPIRUN = "#!/bin/bash\nshift 2\nfor rank in 0 1 2 3; do {} || exit $?; done\n"
OPEN_MPI = (
    "OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=4 "
    'OMPI_COMM_WORLD_LOCAL_RANK=$((rank % 2)) "$@"'
)
HYDRA = 'PMI_RANK=$rank PMI_SIZE=4 MPI_LOCALRANKID=$((rank % 2)) "$@"'


def bash(folder, command, programs, variables):
    """Run a command of a shell in which `python` and these programs come before all others."""
    programs = {"python": f'#!/bin/bash\nexec "{sys.executable}" "$@"\n', **programs}
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environment = os.environ | variables | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    words = ["bash", "-c", command]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("file", "name"), [("slurm.sbatch", "Slurm"), ("mpi.sh", "MPI")])
def test_the_templates_are_marked_as_not_run_and_use_what_the_table_says(file, name):
    text = (TEMPLATES / file).read_text()
    assert text.startswith("#!/bin/bash\n")
    assert "NOT RUN for this course" in text
    (launcher,) = [one for one in LAUNCHERS if one.name == name]
    assert launcher.key == ""
    for variable in launcher.sets:
        assert variable.removeprefix("or ") in text or variable == "SLURM_NODEID"


SLURM = {"SLURM_JOB_NODELIST": "node[07-08]", "SLURM_JOB_ID": "123456"}
BY_MPI = f'mpirun -np 4 bash "{TEMPLATES}/mpi.sh"'


@pytest.mark.parametrize(
    ("command", "programs", "variables", "port"),
    [
        (f'bash "{TEMPLATES}/slurm.sbatch"', {"srun": SRUN, "scontrol": SCONTROL}, SLURM, 23456),
        (BY_MPI, {"mpirun": MPIRUN.format(OPEN_MPI)}, {"MASTER_ADDR": "node07"}, 29500),
        (BY_MPI, {"mpirun": MPIRUN.format(HYDRA)}, {"MASTER_ADDR": "node07"}, 29500),
    ],
)
def test_the_templates_give_each_rank_its_place(tmp_path, command, programs, variables, port):
    (tmp_path / "train.py").write_text(RANK)
    (tmp_path / "ranks").mkdir()
    words = f'"{tmp_path}/train.py" "{tmp_path}/ranks" "two words"'
    done = bash(tmp_path, f"{command} {words}", programs, variables)
    assert done.returncode == 0, done.stderr
    for rank in range(4):
        found = (tmp_path / "ranks" / str(rank)).read_text().strip()
        assert found == f"{rank} 4 {rank % 2} node07 {port} two words"


@pytest.mark.parametrize(
    ("task", "words"),
    [({}, "start it by mpirun"), ({"PMI_RANK": "0", "PMI_SIZE": "1"}, "MPI_LOCALRANKID")],
)
def test_the_mpi_script_says_what_it_misses(tmp_path, task, words):
    done = bash(tmp_path, f'bash "{TEMPLATES}/mpi.sh" train.py', {}, task)
    assert done.returncode != 0 and words in done.stderr


@pytest.mark.slow
def test_launchers_are_timed_in_turn_and_set_what_the_table_says():
    keys = ["spawn", "by hand", "two nodes"]
    times = time_launchers(1, keys)
    assert list(times.seconds) == keys
    for key in keys:
        assert len(times.seconds[key]) == 1
        assert 0 < times.seconds[key][0] < 60
        assert set(BY_KEY[key].sets) <= set(times.environment[key])
        assert key == "spawn" or times.environment[key]["RANK"] == "1"
    assert times.environment["spawn"] == {}
    assert set(times.environment["by hand"]) == set(BY_KEY["by hand"].sets)


def test_accelerate_is_run_or_said_to_be_missing():
    times = time_launchers(1, ["accelerate"])
    if times.left_out:
        assert "not installed" in times.left_out["accelerate"]
    else:
        assert set(BY_KEY["accelerate"].sets) <= set(times.environment["accelerate"])


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"launchers": ["slurm"]}, {"launchers": []}])
def test_wrong_arguments_raise(wrong):
    with pytest.raises(ValueError, match="use at least one round, and some of"):
        time_launchers(**wrong)


def test_the_table_shows_every_launcher_in_text_and_html():
    text, page = repr(LauncherTable()), LauncherTable()._repr_html_()
    for one in LAUNCHERS:
        assert one.name in text and one.name in page
        assert one.source.startswith("https://")
    assert text.count("run here           no") == page.count(">no</td>") == 2


def test_the_figure_draws_medians_and_quartiles():
    times = StartUpTimes({"torchrun": (2.0, 3.0, 4.0), "spawn": (1.0, 1.0, 2.0)}, {}, {})
    figure = start_up_figure(times)
    (axis,) = figure.axes
    assert [bar.get_width() for bar in axis.patches if isinstance(bar, Rectangle)] == [3.0, 1.0]
    (spread,) = axis.collections
    ends = [np.asarray(path.vertices) for path in spread.get_paths()]
    assert [one[:, 0].tolist() for one in ends] == [[2.5, 3.5], [1.0, 1.5]]
    assert "torchrun 3.00 s (2.50 s to 3.50 s)" in figure.alt


def test_the_figure_of_one_round_shows_no_spread():
    figure = start_up_figure(StartUpTimes({"torchrun": (2.0,), "spawn": (1.0,)}, {}, {}))
    assert not figure.axes[0].collections
    assert "one start of each: torchrun 2.00 s; spawn 1.00 s." in figure.alt
