"""What goes wrong on a rank is named: real runs of scripts that fail,
and the reading of reports that other versions write.
"""

import socket
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from amp_course.distributed.launching import ScriptRun, run_script
from amp_course.distributed.launching.diagnosis import diagnose
from amp_course.distributed.launching.evidence import End, Evidence, Place, Rank, gather
from amp_course.distributed.launching.running import Ended
from amp_course.distributed.launching.wording import meaning

Runs = dict[str, "Future[ScriptRun]"]
GROUP = """
import os, signal, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
"""
RANK = "import os, signal, socket, sys, time\nrank = int(os.environ['RANK'])\n"
SECONDS = {"hangs": 15, "three are wanted": 30}  # the others end because of their fault
SCRIPTS = {  # name → the script, what the problem says
    "raises": (
        f"{RANK}if rank == 1:\n    raise ValueError('bad batch')\ntime.sleep(60)",
        "rank 1 raised ValueError: bad batch in line 4, `raise ValueError('bad batch')`.",
    ),
    # on every rank, unless torchrun ends one before it raises
    "syntax": (f"{RANK}x = = 3", "raised SyntaxError", "in line 3, `x = = 3`"),
    "exits": (
        f"{RANK}if rank == 1:\n    sys.exit(3)\ntime.sleep(60)",
        "rank 1 ended with exit code 3 in line 4, `sys.exit(3)`",
    ),
    "killed": (
        f"{RANK}if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)",
        "rank 1 was killed by signal 9 (SIGKILL). Out of memory is the usual cause",
    ),
    "hangs": (
        f"{RANK}def wait():\n    time.sleep(600)\nif rank == 1:\n    wait()",
        "time was up after 15 seconds: rank 0 had finished; rank 1 was still at line 4, "
        "`time.sleep(600)`",
    ),
    "takes a port": (
        f"{RANK}port = int(sys.argv[1])\nsocket.create_server(('', port))",
        "Address already in use",
        "The port is in use",
        "line 4",
    ),
    "loses a rank that raises": (
        f"{GROUP}if rank == 1:\n    raise KeyError('label')\ndist.all_reduce(torch.ones(1))",
        "rank 1 raised KeyError: 'label' in line 6",
    ),
    "one finishes": (
        f"{GROUP}if rank == 0:\n    dist.all_reduce(torch.ones(1))",
        "rank 0 was waiting for other ranks in line 6",
        "when rank 1 finished. A collective returns only once every rank",
    ),
    "shapes": (
        f"{GROUP}dist.all_reduce(torch.ones(4 if rank == 0 else 8))",
        "received a tensor of another size than its own",
        "in line 5, `dist.all_reduce(torch.ones(",
    ),
    "models": (
        f"{GROUP}torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3 + rank))",
        "rank 1 raised RuntimeError",
        "in line 5",
        "than on rank 0: its parameter number 0 has the shape (4, 4)",
    ),
    "three are wanted": (
        "import torch.distributed as dist\ndist.init_process_group('gloo', world_size=3)",
        "time was up after 30 seconds: ranks 0 and 1 were still at line 2",
        "waiting for other ranks in `init_process_group`. The ranks never found each other: use "
        "one address and a free port on all of them, and a `world_size` of 2.",
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run all scripts, some at a time: most of their time goes by in waiting."""
    folder = tmp_path_factory.mktemp("scripts")
    with socket.create_server(("", 0)) as server, ThreadPoolExecutor(3) as pool:
        started = {}
        for name in sorted(SCRIPTS, key=lambda name: name not in SECONDS):  # the slow ones first
            path = folder / f"{name.replace(' ', '_')}.py"
            path.write_text(SCRIPTS[name][0])
            port, seconds = server.getsockname()[1], SECONDS.get(name, 60)
            started[name] = pool.submit(run_script, path, port, seconds=seconds)
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_first_cause_is_named_with_its_rank(runs, name):
    run = runs[name].result()
    assert not run.ok
    for words in SCRIPTS[name][1:]:
        assert words in str(run.problem)
    assert run.seconds < SECONDS.get(name, 45) + 5


def exit_codes(run):
    return [rank.exit_code for rank in run.ranks]


@pytest.mark.slow
def test_exit_codes_by_rank(runs):
    for name, code in [("raises", 1), ("exits", 3), ("killed", -9)]:
        other, own = exit_codes(runs[name].result())
        assert own == code, name
        # None: it ended before it recorded its process
        assert other in (-15, None), name
    ended, hanging = exit_codes(runs["hangs"].result())
    assert ended == 0
    assert hanging in (None, -6)  # -6: SIGABRT, which asks where it hangs, has ended it in time


@pytest.mark.slow
def test_a_traceback_is_that_of_the_script_alone(runs):
    run = runs["raises"].result()
    lines = run.ranks[1].err.splitlines()
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "ValueError: bad batch")
    assert "rank_main" not in run.ranks[1].err + run.launcher


def rank(
    number,
    end=None,
    code=None,
    err="",
    place=None,
):
    return Rank(number, "", err, code, True, end, place)


ECHOED = "[pair.cc:553] Connection closed by peer [127.0.0.1]:31144"
ECHO = End("raised", 5.0, "RuntimeError", ECHOED, 1, 7, "all_reduce()")
CAUSE = End("raised", 6.0, "ValueError", "bad", 1, 3, "raise")
FINISHED = End("finished", 4.0)
WAITED = "rank 0 was waiting for other ranks in line 7, `all_reduce()` when rank 1 finished."
KILLED = "rank 1 was killed by signal 9 (SIGKILL). Out of memory is the usual cause"
TERMINATED = "rank 0 was killed by signal 15 (SIGTERM), which another program sent"
NATIVE = "step 3\nRuntimeError in native code\n"
CRASHED = (
    "rank 1 was killed by signal 11 (SIGSEGV) in line 4, `kernel(x)`: native code crashed. Its "
    "last words: RuntimeError in native code."
)
WITHOUT = "rank 1's process ended with exit code 5 without an exception, as by `os._exit`"


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        # an echo is passed over, even if it came first
        (rank(0, ECHO, 1), rank(1, CAUSE), "rank 1 raised ValueError: bad in line 3, `raise`."),
        (rank(0, ECHO, 1), rank(1), "rank 1's process ended without a word: it was killed."),
        (rank(0, ECHO, 1), rank(1, None, -9), KILLED),
        # its rank aborts as it ends; torchrun may have ended the other before it finished
        (rank(0, ECHO, -6), rank(1, FINISHED, 0), WAITED),
        (rank(0, ECHO, -6), rank(1, FINISHED, -15), WAITED),
        (rank(0, ECHO, 1), rank(1, ECHO, 1), "rank 0 lost its connection to another rank in line"),
        # SIGTERM is a cause only if there is no other
        (rank(0, None, -15), rank(1), TERMINATED),
        (rank(0, None, -15), rank(1, None, -9), KILLED),
        (rank(0, None, -15), rank(1, None, -11, NATIVE, Place(4, "kernel(x)", "")), CRASHED),
        (rank(0, None, -15), rank(1, None, 5), WITHOUT),
    ],
)
def test_the_cause_is_distinguished_from_its_echoes(first, second, words):
    evidence = Evidence(Ended(False, (1,), 2.0), (first, second), "")
    assert str(diagnose(evidence)).startswith(words)


def test_a_rank_that_raised_is_named_even_if_time_was_up():
    waits = rank(0, place=Place(9, "all_reduce()", "all_reduce"))
    evidence = Evidence(Ended(True, (None,), 2.0), (waits, rank(1, CAUSE)), "")
    assert "rank 1 raised ValueError" in str(diagnose(evidence))


MESSAGES = {
    "DDP expects same model across all ranks, but Rank 0 has 2 params, while rank 1 has "
    "inconsistent 4 params.": "DDP found different models: 2 parameters on rank 0, 4 on rank 1.",
    "wait timeout after 4000ms, keys: /default_pg/0//cpu//0/2": "it waited 4000 ms for rank 2, "
    "which never joined.",
    "Timed out after 6 seconds waiting for clients. 2/3 clients joined.": "it waited 6 seconds "
    "for 3 ranks, and 2 came.",
    "Timed out waiting 5000ms for recv operation to complete": "it waited 5000 ms for another "
    "rank, which never came.",
    "a message that needs no explanation": "",
}


@pytest.mark.parametrize(("message", "words"), MESSAGES.items())
def test_obscure_messages_are_explained(message, words):
    """The messages are those of torch 2.13, each from a real run."""
    assert words in meaning(message)
    assert bool(words) == bool(meaning(message))


REPORTS = {
    "a line of the log": "E1124 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 42) of "
    "binary: python",
    "the report": "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 42)\n  error_file: "
    "<N/A>",
    "the report with a signal": "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 42)  "
    "(SIGKILL)",
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS.keys())
def test_exit_codes_are_read_from_either_report(tmp_path, report):
    (tmp_path / "command0.err").write_text(report)
    for number in (0, 1):
        (tmp_path / f"rank{number}.pid").write_text(str(41 + number))
    found = gather(tmp_path, tmp_path / "train.py", 2, Ended(False, (1,), 1.0))
    assert [rank.exit_code for rank in found.ranks] == [None, -9]


def test_what_gloo_and_torch_print_about_themselves_goes_to_launcher(tmp_path):
    gloo = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks : 1"
    c10d = "[W1124 01:56:38.015824587 socket.cpp:469] [c10d] waitForInput: poll for socket: 0"
    (tmp_path / "rank0.out").write_text(f"{gloo}\nloss 0.5\n")
    (tmp_path / "rank0.err").write_text(f"{c10d}\n")
    found = gather(tmp_path, tmp_path / "train.py", 1, Ended(False, (0,), 1.0))
    assert [(rank.out, rank.err) for rank in found.ranks] == [("loss 0.5", "")]
    assert found.launcher == f"{gloo}\n{c10d}"
