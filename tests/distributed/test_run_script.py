"""`run_script`: arguments, output by rank, and its page."""

import html

import pytest

from amp_course.distributed.launching import ScriptRun, run_script
from amp_course.distributed.launching.diagnosis import notes
from amp_course.distributed.launching.evidence import Rank
from amp_course.distributed.launching.script_run import shortened
from amp_course.kit.errors import CourseError
from amp_course.kit.hardware import usable_cores

SCRIPT = """
import os, pickle, sys
class Local:
    pass
print("rank", os.environ["RANK"], sys.argv[1:], __name__, os.path.basename(__file__))
print("threads", os.environ["OMP_NUM_THREADS"])
print("path", os.path.basename(sys.path[0]), type(pickle.loads(pickle.dumps(Local()))).__name__)
print("<b>&", file=sys.stderr)
if __name__ == "__main__":
    os.system(f"echo from a child")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_two_ranks_see_what_they_would_see_in_a_shell(script, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # no torchrun there: it is run as a module
    run = run_script("train.py", "--rate", 0.5, "two words")
    assert run.check() is run and run.ok
    assert [rank.exit_code for rank in run.ranks] == [0, 0]
    typed = "torchrun --standalone --nproc-per-node 2 train.py --rate 0.5 'two words'"
    assert run.command == typed
    for rank in (0, 1):
        assert run.output[rank].splitlines() == [
            f"rank {rank} ['--rate', '0.5', 'two words'] __main__ train.py",
            "threads 1",
            f"path {tmp_path.name} Local",
            "from a child",
        ]
        assert run.ranks[rank].err == "<b>&\n"
    assert run.launcher == ""
    assert html.escape("<b>&") in run._repr_html_()
    assert "<b>&" not in run._repr_html_()
    assert "[rank 1, stderr] <b>&" in str(run)


def test_more_ranks_than_cores_are_worth_a_note():
    cores = usable_cores()
    assert notes(cores, "1") == ()
    assert f"{cores + 1} ranks share the {cores} cores" in notes(cores + 1, "1")[0]


@pytest.mark.slow
def test_two_nodes_make_one_world(tmp_path):
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
    options = "--nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:"
    assert run.command.count(options) == 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ranks": 0}, "ranks=0, nodes=1: use 1 to 64 ranks"),
        ({"ranks": 65}, "ranks=65"),
        ({"ranks": 3, "nodes": 2}, "the same number on each node"),
        ({"seconds": 0}, "seconds is 0"),
    ],
)
def test_wrong_numbers_raise_at_once(script, wrong, words):
    with pytest.raises(ValueError, match=words):
        run_script(script, **wrong)


def test_what_is_no_script_raises_at_once(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    cases = [
        (tmp_path / "no.py", "there is no file .*no.py: correct the path"),
        ("no_such_script", "there is no file no_such_script: .*the course's scripts"),
        (tmp_path, "is a folder: name the Python file"),
        (tmp_path / "notes.txt", "is not a Python script"),
    ]
    for wrong, words in cases:
        with pytest.raises(CourseError, match=words):
            run_script(wrong)


def test_a_failed_run_shows_its_problem_and_raises_it_on_demand():
    ranks, problem = (Rank(0, "", "<oops>\n", 1),), "rank 0 raised `<E>`."
    run = ScriptRun("torchrun a.py", ranks, 1.5, problem, ("a note",))
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


def test_long_output_is_cut_in_its_middle():
    lines = shortened("\n".join(str(number) for number in range(1100))).splitlines()
    assert lines[:12] == [str(number) for number in range(12)]
    assert lines[12] == "… 1,060 lines left out …"
    assert lines[13:] == [str(number) for number in range(1072, 1100)]
    assert len(shortened("b" * 1000)) == 301
