"""What goes wrong on a rank is named: real runs of scripts that fail,
and the reading of reports that other versions write.
"""

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from amp_course.distributed.launching import ScriptRun, run_script
from amp_course.distributed.launching.diagnosis import diagnose
from amp_course.distributed.launching.evidence import End, Evidence, Place, Rank, gather
from amp_course.distributed.launching.running import Ended
from amp_course.distributed.launching.wording import meaning

pytestmark = pytest.mark.slow  # `make test` would take too long with it

GROUP = """
import os, signal, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
"""
RANK = "import os, signal, socket, sys, time\nrank = int(os.environ['RANK'])\n"
SCRIPTS = {  # name → (script, seconds, what the problem says)
    "raises": (
        f"{RANK}if rank == 1:\n    raise ValueError('bad batch')\ntime.sleep(60)",
        60,
        ["rank 1 raised ValueError: bad batch in line 4, `raise ValueError('bad batch')`."],
    ),
    "raises what has no text": (
        f"{RANK}class Mute(Exception):\n    def __str__(self):\n        return 1 / 0\nif rank == "
        f"1:\n    raise Mute",
        60,
        [
            "rank 1 raised Mute: (its message fails itself when it is asked for) in line 7, `raise "
            "Mute`"
        ],
    ),
    # On every rank, unless torchrun ends one before it has said so
    "syntax": (f"{RANK}x = = 3", 60, ["raised SyntaxError", "in line 3, `x = = 3`"]),
    "exits": (
        f"{RANK}if rank == 1:\n    sys.exit(3)\ntime.sleep(60)",
        60,
        ["rank 1 ended with exit code 3 in line 4, `sys.exit(3)`"],
    ),
    "killed": (
        f"{RANK}if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)",
        60,
        ["rank 1 was killed by signal 9 (SIGKILL). Out of memory is the usual cause"],
    ),
    "hangs": (
        f"{RANK}def wait():\n    time.sleep(600)\nif rank == 1:\n    wait()",
        15,
        [
            "time was up after 15 seconds: rank 0 had finished; rank 1 was still at line 4, "
            "`time.sleep(600)`"
        ],
    ),
    "takes a port": (
        f"{RANK}port = int(sys.argv[1])\nsocket.create_server(('', port))",
        60,
        ["Address already in use", "The port is in use", "line 4"],
    ),
    "loses a rank that raises": (
        f"{GROUP}if rank == 1:\n    raise KeyError('label')\ndist.all_reduce(torch.ones(1))",
        60,
        ["rank 1 raised KeyError: 'label' in line 6"],
    ),
    "one finishes": (
        f"{GROUP}if rank == 0:\n    dist.all_reduce(torch.ones(1))",
        60,
        [
            "rank 0 was waiting for other ranks in line 6",
            "when rank 1 finished. A collective returns only once every rank",
        ],
    ),
    "shapes": (
        f"{GROUP}dist.all_reduce(torch.ones(4 if rank == 0 else 8))",
        60,
        [
            "received a tensor of another size than its own",
            "in line 5, `dist.all_reduce(torch.ones(",
        ],
    ),
    "models": (
        f"{GROUP}torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3 + rank))",
        60,
        [
            "rank 1 raised RuntimeError",
            "in line 5",
            "than on rank 0: its parameter number 0 has the shape (4, 4)",
        ],
    ),
    "three are wanted": (
        "import torch.distributed as dist\ndist.init_process_group('gloo', world_size=3)",
        30,
        [
            "time was up after 30 seconds: ranks 0 and 1 were still at line 2",
            "waiting for other ranks in `init_process_group`. The script asks for world_size=3, "
            "and 2 ranks run",
        ],
    ),
    "meets at a port in use": (
        f"{RANK}import torch.distributed as dist\n"
        "dist.init_process_group('gloo', f'tcp://localhost:{sys.argv[1]}', rank=rank, "
        "world_size=2)",
        30,
        [
            "ranks 0 and 1 were still at line 4",
            "They are connected to port",
            "in use by a program outside this run",
        ],
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[ScriptRun]]]:
    """Run all scripts, some at a time: most of their time goes by in waiting."""
    folder = tmp_path_factory.mktemp("scripts")
    with socket.create_server(("", 0)) as server, ThreadPoolExecutor(3) as pool:
        started = {}
        path = folder / "ok.py"
        path.write_text(
            f"{GROUP}torch.manual_seed(rank)\nmodel = torch.nn.Linear(2, 2)\n"
            "ddp = "
            "torch.nn.parallel.DistributedDataParallel(model)\nprint(model.weight.sum().item())"
        )
        started["seeds"] = pool.submit(run_script, path)
        started["a node is absent"] = pool.submit(run_script, path, nodes=2, absent=[1], seconds=8)
        slow_first = sorted(SCRIPTS.items(), key=lambda item: item[1][1])
        for name, (text, seconds, _) in slow_first:
            path = folder / f"{name.replace(' ', '_')}.py"
            path.write_text(text)
            started[name] = pool.submit(run_script, path, server.getsockname()[1], seconds=seconds)
        yield started


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_first_cause_is_named_with_its_rank(
    runs: dict[str, "Future[ScriptRun]"], name: str
) -> None:
    run = runs[name].result()
    _, seconds, told = SCRIPTS[name]
    assert not run.ok
    for words in told:
        assert words in str(run.problem)
    assert run.seconds < seconds + 5
    if seconds == 60:
        assert run.seconds < 50  # it ends because of its fault, not because its time is up


def test_exit_codes_by_rank(runs: dict[str, "Future[ScriptRun]"]) -> None:
    for name, code in [("raises", 1), ("exits", 3), ("killed", -9)]:
        other, own = runs[name].result().exit_codes
        assert own == code, name
        assert other in (-15, None), (
            name
        )  # None: it had not come so far as to write down its process
    ended, hanging = runs["hangs"].result().exit_codes
    assert ended == 0 and hanging in (
        None,
        -6,
    )  # -6: asked where it hangs, it had time to end of that


def test_a_traceback_is_that_of_the_script_alone(runs: dict[str, "Future[ScriptRun]"]) -> None:
    run = runs["raises"].result()
    assert run.ranks[1].err.splitlines()[0] == "Traceback (most recent call last):"
    assert run.ranks[1].err.splitlines()[-1] == "ValueError: bad batch"
    assert "rank_main" not in run.ranks[1].err
    assert "rank_main" not in run.launcher


def test_different_seeds_are_no_fault(runs: dict[str, "Future[ScriptRun]"]) -> None:
    run = runs["seeds"].result()
    assert run.ok
    assert run.output[0] == run.output[1]  # for DDP gives every rank the weights of rank 0


def test_a_node_that_never_comes(runs: dict[str, "Future[ScriptRun]"]) -> None:
    run = runs["a node is absent"].result()
    assert (
        "no rank had started: the rendezvous was never complete, because 1 of 2 nodes joined"
        in str(run.problem)
    )
    assert run.exit_codes == (None, None)


ECHO = End(
    "raised",
    5.0,
    "RuntimeError",
    "[pair.cc:553] Connection closed by peer [127.0.0.1]:31144",
    1,
    7,
    "all_reduce()",
)


def evidence(
    *ranks: Rank, codes: tuple[int | None, ...] = (1,), launcher: str = "", why: str = "ended"
) -> Evidence:
    return Evidence(Path("train.py"), 1, Ended(why, codes, 2.0), ranks, launcher)  # type: ignore[arg-type]


def test_an_echo_is_passed_over_even_if_it_came_first() -> None:
    cause = End("raised", 6.0, "ValueError", "bad", 1, 3, "raise")
    told = diagnose(
        evidence(Rank(0, True, ECHO, 1, "", "", None), Rank(1, True, cause, None, "", "", None))
    )
    assert told == "rank 1 raised ValueError: bad in line 3, `raise`."


def test_a_rank_that_vanished_is_the_cause_of_an_echo_without_any_report() -> None:
    told = diagnose(
        evidence(Rank(0, True, ECHO, 1, "", "", None), Rank(1, True, None, None, "", "", None))
    )
    assert str(told).startswith("rank 1's process ended without a word: it was killed.")


def test_a_rank_that_is_killed_is_the_cause_of_an_echo() -> None:
    told = diagnose(
        evidence(Rank(0, True, ECHO, 1, "", "", None), Rank(1, True, None, -9, "", "", None))
    )
    assert str(told).startswith(
        "rank 1 was killed by signal 9 (SIGKILL). Out of memory is the usual cause"
    )


def test_an_echo_stays_one_if_its_rank_aborts_on_the_way_out() -> None:
    finished = End("finished", 4.0)
    for code in (0, -15):  # torchrun may still have found it, and ended it
        told = diagnose(
            evidence(
                Rank(0, True, ECHO, -6, "", "", None), Rank(1, True, finished, code, "", "", None)
            )
        )
        assert str(told).startswith(
            "rank 0 was waiting for other ranks in line 7, `all_reduce()` when rank 1 finished."
        )


def test_sigterm_is_a_cause_only_if_there_is_no_other() -> None:
    alone = Rank(0, True, None, -15, "", "", None), Rank(1, True, None, None, "", "", None)
    assert "rank 0 was killed by signal 15 (SIGTERM), which another program sent" in str(
        diagnose(evidence(*alone))
    )
    both = Rank(0, True, None, -15, "", "", None), Rank(1, True, None, -9, "", "", None)
    assert str(diagnose(evidence(*both))).startswith("rank 1 was killed by signal 9")


def test_a_rank_that_crashed_is_named_with_its_line_and_last_words() -> None:
    crashed = Rank(
        1, True, None, -11, "", "step 3\nRuntimeError in native code\n", Place(4, "kernel(x)", "")
    )
    told = diagnose(evidence(Rank(0, True, None, -15, "", "", None), crashed))
    assert told is not None
    assert told.startswith(
        "rank 1 was killed by signal 11 (SIGSEGV) in line 4, `kernel(x)`: native code crashed."
    )
    assert "RuntimeError in native code" in told


def test_an_exit_without_an_exception_is_told_as_one() -> None:
    told = diagnose(
        evidence(Rank(0, True, None, -15, "", "", None), Rank(1, True, None, 5, "", "", None))
    )
    assert str(told).startswith(
        "rank 1's process ended with exit code 5 without an exception, as by `os._exit`"
    )


def test_an_echo_alone_is_told_as_one() -> None:
    told = diagnose(
        evidence(Rank(0, True, ECHO, 1, "", "", None), Rank(1, True, ECHO, 1, "", "", None))
    )
    assert "rank 0 lost its connection to another rank in line 7" in str(told)


def test_a_rank_that_raised_is_named_even_if_time_was_up() -> None:
    cause = End("raised", 6.0, "ValueError", "bad", 1, 3, "raise")
    place = Place(9, "all_reduce()", "all_reduce")
    ranks = Rank(0, True, None, None, "", "", place), Rank(1, True, cause, None, "", "", None)
    assert "rank 1 raised ValueError" in str(diagnose(evidence(*ranks, codes=(None,), why="time")))


MESSAGES = {
    "DDP expects same model across all ranks, but Rank 0 has 2 params, while rank 1 has "
    "inconsistent 4 params.": ("DDP found different models: 2 parameters on rank 0, 4 on rank 1."),
    "wait timeout after 4000ms, keys: /default_pg/0//cpu//0/2": "it waited 4000 ms for rank 2, "
    "which never joined.",
    "Timed out after 6 seconds waiting for clients. 2/3 clients joined.": "it waited 6 seconds "
    "for 3 ranks, and 2 came.",
    "Timed out waiting 5000ms for recv operation to complete": "it waited 5000 ms for another "
    "rank, which never came.",
    "a message that nobody has to explain": "",
}


@pytest.mark.parametrize(("message", "told"), MESSAGES.items())
def test_obscure_messages_are_explained(message: str, told: str) -> None:
    """The messages are those of torch 2.13, each from a real run."""
    assert told in meaning(message)
    assert bool(told) == bool(meaning(message))


def test_a_port_that_torchrun_could_not_open() -> None:
    said = (
        "RuntimeError: The server socket has failed to listen on any local network address. "
        "port: 29500, EADDRINUSE"
    )
    told = diagnose(evidence(Rank(0, False, None, None, "", "", None), launcher=said))
    assert told is not None
    assert told.startswith("no rank started, because the port is in use (29500).")


REPORTS = {
    "a line of the log": "E1124 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 42) of "
    "binary: python",
    "the report": "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 42)\n  error_file: "
    "<N/A>",
    "the report with a signal": "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 42)  "
    "(SIGKILL)",
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS.keys())
def test_exit_codes_are_read_from_either_report(tmp_path: Path, report: str) -> None:
    (tmp_path / "command0.err").write_text(report)
    for rank, pid in ((0, 41), (1, 42)):
        (tmp_path / f"rank{rank}.jsonl").write_text(f'{{"at": 1.0, "pid": {pid}}}\n')
    found = gather(tmp_path, tmp_path / "train.py", 2, 1, Ended("ended", (1,), 1.0))
    assert [rank.exit_code for rank in found.ranks] == [None, -9]


def test_what_gloo_and_torch_print_about_themselves_is_kept_apart(tmp_path: Path) -> None:
    gloo = (
        "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1"
    )
    c10d = (
        "[W1124 01:56:38.015824587 socket.cpp:469] [c10d] waitForInput: poll for socket returned 0"
    )
    (tmp_path / "rank0.jsonl").write_text('{"at": 1.0, "pid": 7}\n')
    (tmp_path / "rank0.out").write_text(f"{gloo}\nloss 0.5\n")
    (tmp_path / "rank0.err").write_text(f"{c10d}\n")
    (rank,) = gather(tmp_path, tmp_path / "train.py", 1, 1, Ended("ended", (0,), 1.0)).ranks
    assert (rank.out, rank.err) == ("loss 0.5", "")
    assert (
        gather(tmp_path, tmp_path / "train.py", 1, 1, Ended("ended", (0,), 1.0)).launcher
        == f"{gloo}\n{c10d}"
    )
