"""`run_script` from outside: arguments, output by rank, what it shows; and the text of a page."""

import html
import os
from pathlib import Path

import pytest

from amp_course.distributed.launching import RankOutput, ScriptRun, run_script
from amp_course.distributed.launching.running import free_port
from amp_course.distributed.launching.script_run import shortened
from amp_course.kit.errors import CourseError

SCRIPT = """
import os, pickle, sys
class Local:
    pass
file, colour = os.path.basename(__file__), os.environ.get("COLOUR")
print("rank", os.environ["RANK"], sys.argv[1:], __name__, file, colour)
print("threads", os.environ["OMP_NUM_THREADS"])
print("path", os.path.basename(sys.path[0]), type(pickle.loads(pickle.dumps(Local()))).__name__)
print("<b>&", file=sys.stderr)
if __name__ == "__main__":
    os.system(f"echo from a child")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_two_ranks_see_what_they_would_see_in_a_shell(
    script: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # no torchrun there: it is run as a module
    run = run_script("train.py", "--rate", 0.5, env={"COLOUR": "dark blue"})
    assert run.check() is run
    assert run.ok
    assert run.problem is None
    assert run.exit_codes == (0, 0)
    assert (
        run.command
        == "COLOUR='dark blue' torchrun --standalone --nproc-per-node 2 train.py --rate 0.5"
    )
    for rank in (0, 1):
        assert run.output[rank].splitlines() == [
            f"rank {rank} ['--rate', '0.5'] __main__ train.py dark blue",
            "threads 1",
            f"path {tmp_path.name} Local",
            "from a child",
        ]
        assert run.ranks[rank].err == "<b>&\n"
    assert run.launcher == ""
    assert html.escape("<b>&") in run._repr_html_()
    assert "<b>&" not in run._repr_html_()
    assert "[rank 1, stderr] <b>&" in str(run)


@pytest.mark.slow
def test_more_ranks_than_cores_run_and_a_note_says_so(script: Path) -> None:
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if cores > 7:
        pytest.skip("too many cores to start more ranks than that in a test")
    run = run_script(script, ranks=cores + 1)
    assert run.ok
    assert len(run.output) == cores + 1
    assert f"{cores + 1} ranks share the {cores} cores" in str(run)


@pytest.mark.slow
def test_two_nodes_make_one_world(tmp_path: Path) -> None:
    path = tmp_path / "nodes.py"
    path.write_text(
        "import os\nprint(*(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'GROUP_RANK', "
        "'LOCAL_RANK')))"
    )
    run = run_script(path, ranks=4, nodes=2)
    assert run.ok, run
    assert sorted(line.split() for line in run.output) == [
        [str(rank), "4", str(rank // 2), str(rank % 2)] for rank in range(4)
    ]
    assert len(run.command.splitlines()) == 2
    assert (
        run.command.count(
            "--nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:"
        )
        == 2
    )


@pytest.mark.slow
def test_a_port_can_be_chosen(script: Path) -> None:
    port = free_port()
    run = run_script(script, port=port)
    assert run.ok, run
    assert f"--master-port {port}" in run.command


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"ranks": 0}, "ranks=0, nodes=1: use 1 to 64 ranks"),
        ({"ranks": 65}, "ranks=65"),
        ({"ranks": 3, "nodes": 2}, "the same number on each node"),
        ({"seconds": 0}, "seconds is 0"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"nodes": 2, "absent": [0, 1]}, "but not all"),
        ({"nodes": 2, "absent": [2]}, "name some of the nodes 0 to 1"),
    ],
)
def test_wrong_numbers_raise_at_once(script: Path, wrong: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        run_script(script, **wrong)  # type: ignore[arg-type]


def test_what_is_no_script_raises_at_once(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    cases: list[tuple[str | Path, str]] = [
        (tmp_path / "no.py", "there is no file .*no.py: correct the path"),
        ("no_such_script", "there is no file no_such_script: .*the course's scripts"),
        (tmp_path, "is a folder: name the Python file"),
        (tmp_path / "notes.txt", "is not a Python script"),
    ]
    for wrong, told in cases:
        with pytest.raises(CourseError, match=told):
            run_script(wrong)


def test_a_failed_run_tells_its_problem_and_raises_it_on_demand() -> None:
    run = ScriptRun(
        "torchrun a.py",
        (RankOutput(0, "", "<oops>\n", 1),),
        1.5,
        "rank 0 raised `<E>`.",
        ("a note",),
    )
    assert not run.ok
    with pytest.raises(CourseError, match="rank 0 raised `<E>`"):
        run.check()
    assert str(run) == (
        "$ torchrun a.py\n[rank 0, stderr] <oops>\nThe run failed: rank 0 raised `<E>`.\nNote: a "
        "note"
    )
    page = run._repr_html_()
    assert "&lt;oops&gt;" in page
    assert "<code>&lt;E&gt;</code>" in page
    assert "Rank 0 raised" in page


def test_long_output_is_cut_in_its_middle() -> None:
    lines = shortened("\n".join(str(number) for number in range(1100))).splitlines()
    assert lines[:12] == [str(number) for number in range(12)]
    assert lines[12] == "… 1,060 lines left out …"
    assert lines[13:] == [str(number) for number in range(1072, 1100)]
    assert shortened("\n".join("a" * 41)).count("a") == 41
    assert len(shortened("b" * 1000)) == 301
