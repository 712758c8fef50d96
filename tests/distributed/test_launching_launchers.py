"""The launchers: what the table says they set is what rank 1 finds,
and the templates set what a rank needs.
"""

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from amp_course.distributed.launching import LAUNCHERS, LauncherTable, StartUpTimes, time_launchers
from amp_course.distributed.launching.figures import start_up_figure
from amp_course.distributed.launching.start_up import variables_text

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
MPIRUN = {
    "Open MPI": "OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=4 "
    'OMPI_COMM_WORLD_LOCAL_RANK=$((rank % 2)) "$@"',
    "Hydra": 'PMI_RANK=$rank PMI_SIZE=4 MPI_LOCALRANKID=$((rank % 2)) "$@"',
}


def with_programs(folder: Path, **programs: str) -> dict[str, str]:
    """Put programs, and Python as `python`, before all others on the PATH;
    return the environment.
    """
    (folder / "bin").mkdir()
    for name, text in {
        "python": f'#!/bin/bash\nexec "{sys.executable}" "$@"\n',
        **programs,
    }.items():
        file = folder / "bin" / name
        file.write_text(text)
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return os.environ | {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def bash(*words: object, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["bash", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def found(folder: Path) -> list[str]:
    return [(folder / str(rank)).read_text().strip() for rank in range(4)]


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(RANK)
    (tmp_path / "ranks").mkdir()
    return tmp_path / "ranks"


@pytest.mark.parametrize("name", ["slurm.sbatch", "mpi.sh"])
def test_the_templates_are_bash_and_marked_as_not_run(name: str) -> None:
    subprocess.run(["bash", "-n", str(TEMPLATES / name)], check=True)
    text = (TEMPLATES / name).read_text()
    assert text.startswith("#!/bin/bash\n")
    assert "NOT RUN for this course" in text
    key = "Slurm" if "slurm" in name else "MPI"
    (launcher,) = [one for one in LAUNCHERS if one.name == key]
    assert launcher.key == ""
    for variable in launcher.sets:
        assert variable.removeprefix("or ") in text or variable == "SLURM_NODEID"


def test_the_slurm_script_gives_each_task_its_place(tmp_path: Path, ranks: Path) -> None:
    job = {
        "SLURM_JOB_NODELIST": "node[07-08]",
        "SLURM_JOB_ID": "123456",
        "SLURM_CPUS_PER_TASK": "8",
    }
    environment = with_programs(tmp_path, srun=SRUN, scontrol=SCONTROL) | job
    done = bash(
        TEMPLATES / "slurm.sbatch",
        tmp_path / "train.py",
        ranks,
        "two words",
        environment=environment,
    )
    assert done.returncode == 0, done.stderr
    assert found(ranks) == [f"{rank} 4 {rank % 2} node07 23456 two words" for rank in range(4)]


@pytest.mark.parametrize("name", MPIRUN)
def test_the_mpi_script_gives_each_rank_its_place(tmp_path: Path, ranks: Path, name: str) -> None:
    mpirun = f"#!/bin/bash\nshift 2\nfor rank in 0 1 2 3; do {MPIRUN[name]} || exit $?; done\n"
    environment = with_programs(tmp_path, mpirun=mpirun) | {"MASTER_ADDR": "node07"}
    command = (
        f'mpirun -np 4 bash "{TEMPLATES / "mpi.sh"}" "{tmp_path / "train.py"}" "{ranks}" '
        f'"two words"'
    )
    done = bash("-c", command, environment=environment)
    assert done.returncode == 0, done.stderr
    assert found(ranks) == [f"{rank} 4 {rank % 2} node07 29500 two words" for rank in range(4)]


def test_the_mpi_script_says_what_it_misses(tmp_path: Path, ranks: Path) -> None:
    environment = with_programs(tmp_path)
    done = bash(TEMPLATES / "mpi.sh", tmp_path / "train.py", ranks, environment=environment)
    assert done.returncode == 2
    assert "start it by mpirun" in done.stderr
    done = bash(
        TEMPLATES / "mpi.sh",
        tmp_path / "train.py",
        ranks,
        environment=environment | {"PMI_RANK": "0", "PMI_SIZE": "1"},
    )
    assert done.returncode != 0
    assert "MPI_LOCALRANKID" in done.stderr


@pytest.mark.slow
def test_launchers_are_timed_in_turn_and_set_what_the_table_says() -> None:
    keys = ["spawn", "by hand", "two nodes"]
    times = time_launchers(1, keys)
    assert list(times.seconds) == keys
    for key in keys:
        assert len(times.seconds[key]) == 1
        assert 0 < times.seconds[key][0] < 60
        assert set(BY_KEY[key].sets) <= set(times.environment[key])
        assert key == "spawn" or times.environment[key]["RANK"] == "1"
        assert key in str(times)
    assert times.environment["spawn"] == {}
    assert set(times.environment["by hand"]) == set(BY_KEY["by hand"].sets)


def test_accelerate_is_run_or_said_to_be_missing() -> None:
    times = time_launchers(1, ["accelerate"])
    if times.left_out:
        assert "not installed" in times.left_out["accelerate"]
        assert "not run" in str(times)
    else:
        assert set(BY_KEY["accelerate"].sets) <= set(times.environment["accelerate"])


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"launchers": ["slurm"]}, {"launchers": []}])
def test_wrong_arguments_raise(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="use at least one round, and some of"):
        time_launchers(**wrong)  # type: ignore[arg-type]


def test_the_table_shows_every_launcher_in_text_and_html() -> None:
    table = LauncherTable()
    for one in LAUNCHERS:
        assert one.name in str(table)
        assert one.name in table._repr_html_()
        assert one.source.startswith("https://")
    assert [row[-1] for row in table.rows()[1:]].count("no") == 2


def test_the_figure_draws_medians_and_quartiles() -> None:
    times = StartUpTimes(
        {"torchrun": (2.0, 3.0, 4.0), "spawn": (1.0, 1.0, 2.0)}, {"torchrun": {}, "spawn": {}}, {}
    )
    figure = start_up_figure(times)
    (axis,) = figure.axes
    assert [bar.get_width() for bar in axis.patches if isinstance(bar, Rectangle)] == [3.0, 1.0]
    (spread,) = axis.collections
    ends = [np.asarray(path.vertices) for path in spread.get_paths()]
    assert [one[:, 0].tolist() for one in ends] == [[2.5, 3.5], [1.0, 1.5]]
    assert "torchrun 3.00 s (2.50 s to 3.50 s)" in figure.alt  # type: ignore[attr-defined]


def test_the_figure_of_one_round_shows_no_spread() -> None:
    figure = start_up_figure(
        StartUpTimes({"torchrun": (2.0,), "spawn": (1.0,)}, {"torchrun": {}, "spawn": {}}, {})
    )
    assert not figure.axes[0].collections
    assert "one start of each: torchrun 2.00 s; spawn 1.00 s." in figure.alt  # type: ignore[attr-defined]


def test_variables_are_shortened_for_people() -> None:
    assert (
        variables_text({"WORLD_SIZE": "2", "RANK": "1", "OTHER": "x"})
        == "RANK=1, WORLD_SIZE=2, and 1 more"
    )
    assert variables_text({}) == "nothing"
