"""Two warm processes: what they return, the message for each kind of failure, and that none is left
behind.
"""

import contextlib
import linecache
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from amp_course.checking import Case, Explained, Failed, Wrong, call_answer
from amp_course.distributed.ranks import (
    Ranks,
    cases_on_ranks,
    collectives_so_far,
    try_on_ranks,
    warm_ranks,
)
from amp_course.distributed.ranks.sending import packed

MINE = {}
pytestmark = pytest.mark.slow  # `make test` would take too long with it

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ranks():
    pair = Ranks()
    yield pair
    pair.close()


def pids(ranks):
    ranks.start()
    return [process.pid for process in ranks._processes]


def summed(start):
    numbers = torch.full((2,), start + dist.get_rank())
    dist.all_reduce(numbers)
    return numbers.tolist()


def works(ranks):
    return [report.value for report in ranks.run(summed, 1.0)] == [[3.0, 3.0]] * 2


def ranked():
    print("hello from", dist.get_rank())
    return dist.get_rank(), dist.get_world_size(), dist.get_backend()


def test_they_are_two_gloo_processes_of_their_own(ranks):
    reports = ranks.run(ranked)
    assert [report.value for report in reports] == [(0, 2, "gloo"), (1, 2, "gloo")]
    assert [report.printed for report in reports] == ["hello from 0\n", "hello from 1\n"]
    assert len({*pids(ranks), os.getpid()}) == 3


def _only_rank_1_reduces():
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(1))


def _other_shapes():
    dist.all_reduce(torch.ones(1 + dist.get_rank()))


def _other_roots():
    dist.broadcast(torch.ones(1), src=dist.get_rank())


def _swallows_it():
    with contextlib.suppress(BaseException):
        _only_rank_1_reduces()


def _in_a_group_of_its_own():
    pair = dist.new_group([0, 1])
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(1), group=pair)


ALONE = "can never complete: rank 0 returned without calling it"
SHAPES = (
    "rank 0's `all_reduce` of a float32 tensor of shape (1,) can never complete: rank 1 calls "
    "`all_reduce` of a float32 tensor of shape (2,) instead. All ranks have"
)
ROOTS = "can never complete: rank 1 calls `broadcast` with root rank 1"


@pytest.mark.parametrize(
    ("work", "rank", "words"),
    [
        (_only_rank_1_reduces, 1, ALONE),
        (_in_a_group_of_its_own, 1, ALONE),
        (_swallows_it, 1, ALONE),
        (_other_shapes, 0, SHAPES),
        (_other_roots, 0, ROOTS),
    ],
)
def test_a_collective_that_can_never_complete_is_stopped_at_once(ranks, work, rank, words):
    processes, start = pids(ranks), time.monotonic()
    failure = ranks.run(work)[rank].failure
    assert failure.kind == "stopped"
    assert words in failure.message
    assert failure.message.startswith("your code would wait forever in line ")
    assert time.monotonic() - start < 8.0  # the limit that it does not need
    assert works(ranks) and pids(ranks) == processes


def _calls_many():
    rank, numbers, objects = dist.get_rank(), torch.zeros(1), [None, None]
    dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(numbers)  # which nobody watches
    handle = dist.all_reduce(numbers, async_op=True)
    handle.wait()
    dist.all_gather_object(objects, {"rank": rank})
    dist.monitored_barrier()
    dist.reduce(torch.ones(1), 1)
    dist.scatter(torch.ones(1), [torch.ones(1)] * 2 if rank == 0 else None)
    return numbers.item(), objects, [one.name for one in collectives_so_far()]


def test_sends_waits_and_objects_go_through(ranks):
    gathers = ["all_gather", "all_gather"]  # the sizes of the objects, then these
    names = ["all_reduce", *gathers, "monitored_barrier", "reduce", "scatter"]
    for report in ranks.run(_calls_many):
        assert report.value == (1.0, [{"rank": 0}, {"rank": 1}], names)


def _fails(how):
    if dist.get_rank() == 1:
        how()
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        (lambda: MINE["mine"], "raised", "your code raised KeyError ('mine') in line "),
        (lambda: sys.exit(3), "raised", "your code raised SystemExit (3)"),
        (lambda: os._exit(3), "exited", "your code returned: it ended with exit code 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "exited", "it was killed by signal 9"),
    ],
)
def test_a_rank_that_fails_is_named_and_the_other_is_not_left_waiting(ranks, how, kind, words):
    first, second = (report.failure for report in ranks.run(_fails, how))
    assert second.kind == kind and words in second.message
    ended = "rank 1 ended with an error" if kind == "raised" else "rank 1 ended"
    assert first.kind == "stopped"
    assert f"{ended} without calling it" in first.message
    assert works(ranks)


def _loops_for_ever():
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.01)


def test_a_loop_ends_with_its_time_and_is_the_cause(ranks):
    first, second = (report.failure for report in ranks.run(_fails, _loops_for_ever, seconds=0.5))
    words = "your code had not finished after 0.5 seconds and was stopped in line "
    assert second.kind == "time" and second.message.startswith(words)
    assert first.kind == "stopped"
    assert works(ranks)


def _ends_the_group():
    dist.destroy_process_group()


def _leaves_gradients_off():
    torch.set_grad_enabled(False)


def test_what_is_left_changed_is_reported_and_restored(ranks):
    assert "your code ended the process group." in ranks.run(_ends_the_group)[0].leaks[0]
    assert "gradients switched off" in ranks.run(_leaves_gradients_off)[1].leaks[0]
    assert not ranks.run(summed, 1.0)[0].leaks


def test_a_function_typed_into_a_cell_travels_with_what_it_uses_and_its_lines_are_quoted(
    ranks,
):
    cell = (
        "factor = 3\ndef inner(x):\n    return x * factor\ndef answer(x):\n    return inner(x) "
        "/ (x - 2)\n"
    )
    names = {"__name__": "__main__"}
    linecache.cache["<cell 7>"] = (len(cell), None, cell.splitlines(keepends=True), "<cell 7>")
    exec(compile(cell, "<cell 7>", "exec"), names)
    assert ranks.run(names["answer"], 5)[0].value == 5.0
    failure = ranks.run(call_answer, names["answer"], "for 2", 2)[0].failure
    assert failure.case == "for 2"
    assert failure.message == (
        "your code raised ZeroDivisionError (division by zero) in line 5, `return inner(x) / "
        "(x - 2)`"
    )


def test_what_cannot_be_sent_is_refused_with_the_fix():
    lock = threading.Lock()
    words = r"cannot be sent there \(TypeError: cannot pickle .*create it inside your function"
    with pytest.raises(Wrong, match=words):
        packed(lambda: lock)


def _cases(text):
    print(text, dist.get_rank())
    return [Case("for 1", {"the sum": summed(1.0)[0]})]


def test_the_cases_of_an_answer_name_the_rank_that_is_the_cause(capsys):
    with pytest.raises(Failed, match="on rank 1") as raised:
        list(cases_on_ranks(_fails, lambda: MINE["mine"]))
    cause = raised.value.__cause__
    assert isinstance(cause, Explained) and "KeyError" in cause.message
    with pytest.raises(Failed, match="on both ranks, for 2"):
        list(cases_on_ranks(call_answer, lambda x: x / 0, "for 2", 2))
    with pytest.raises(Wrong, match="gradients switched off"):
        list(cases_on_ranks(_leaves_gradients_off))
    cases = list(cases_on_ranks(_cases, "hello from"))
    assert [case.name for case in cases] == ["on rank 0, for 1", "on rank 1, for 1"]
    assert [case.outputs for case in cases] == [{"the sum": 3.0}] * 2
    assert "rank 1: hello from 1" in capsys.readouterr().out
    assert warm_ranks() is warm_ranks()


def test_a_trial_prints_what_each_rank_does(capsys):
    try_on_ranks(_fails, lambda: MINE["mine"])
    try_on_ranks(ranked)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("rank 0 ✗ your code would wait forever in line ")
    assert lines[1].startswith("rank 1 ✗ your code raised KeyError ('mine') in line ")
    assert lines[4:] == ["rank 1: hello from 1", "rank 1 → (1, 2, 'gloo')"]


SCRIPT = """
import sys, time, torch.distributed as dist
from amp_course.distributed.ranks import warm_ranks
def loop(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: pass
def show():
    ranks = warm_ranks()
    ranks.start()
    print(ranks._folder, *(one.pid for one in ranks._processes), flush=True)
"""
BUSY = """
show()
try:
    warm_ranks().run(loop, 60, seconds=60)
except KeyboardInterrupt:
    print('interrupted', len(warm_ranks()._processes))
"""
IDLE = "show()\ntime.sleep(60)"


def _gone(processes, seconds=10.0):
    _, left = psutil.wait_procs(
        [psutil.Process(one) for one in processes if psutil.pid_exists(one)], seconds
    )
    return not left


@pytest.mark.parametrize(
    ("code", "ending"), [(BUSY, signal.SIGKILL), (IDLE, signal.SIGKILL), (BUSY, signal.SIGINT)]
)
def test_the_ranks_end_with_their_parent(code, ending):
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT + code], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    folder, *numbers = parent.stdout.readline().split()
    processes = [int(one) for one in numbers]
    assert len(processes) == 2 and all(map(psutil.pid_exists, processes))
    time.sleep(0.3 if code is BUSY else 0)
    parent.send_signal(ending)
    printed, _ = parent.communicate(timeout=30)
    assert _gone(processes, 30.0)
    until = time.monotonic() + 30.0  # the folder may be removed a moment after the ranks end
    while os.path.exists(folder) and time.monotonic() < until:
        time.sleep(0.05)
    assert not os.path.exists(folder)
    assert printed.strip() == ("interrupted 0" if ending == signal.SIGINT else "")
