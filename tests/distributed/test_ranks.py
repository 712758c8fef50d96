"""Two warm processes: what they return, how each kind of failure is told,
and that none is left behind.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from jupyter_client.manager import start_new_kernel

from amp_course.checking import Explained, Failed, Wrong, call_answer
from amp_course.distributed.ranks import Ranks, Report, run_on_ranks, warm_ranks
from amp_course.distributed.ranks.sending import packed

MINE: dict[str, int] = {}
pytestmark = pytest.mark.slow  # `make test` would take too long with it

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    pair = Ranks(2)
    yield pair
    pair.close()


def summed(start: float) -> list[float]:
    numbers = torch.full((2,), start + dist.get_rank())
    dist.all_reduce(numbers)
    return numbers.tolist()


def test_each_rank_gets_the_arguments_and_returns_its_result(ranks: Ranks) -> None:
    reports = ranks.run(summed, 3.0)
    assert [report.value for report in reports] == [[7.0, 7.0]] * 2
    assert [str(one) for one in reports[0].collectives] == [
        "`all_reduce` of a float32 tensor of shape (2,)"
    ]


def ranked() -> tuple[int, int, str]:
    print("hello from", dist.get_rank())
    return dist.get_rank(), dist.get_world_size(), dist.get_backend()


def test_they_are_two_gloo_processes_of_their_own(ranks: Ranks) -> None:
    reports = ranks.run(ranked)
    assert [report.value for report in reports] == [(0, 2, "gloo"), (1, 2, "gloo")]
    assert [report.printed for report in reports] == ["hello from 0\n", "hello from 1\n"]
    assert len(set(ranks.processes)) == 2 and os.getpid() not in ranks.processes


def _only_rank_1_reduces() -> None:
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(1))


def _other_shapes() -> None:
    dist.all_reduce(torch.ones(1 + dist.get_rank()))


def _other_dtypes() -> None:
    dist.all_reduce(torch.ones(1, dtype=[torch.float16, torch.float32][dist.get_rank()]))


def _other_roots() -> None:
    dist.broadcast(torch.ones(1), src=dist.get_rank())


def _another_order() -> None:
    for turn in (0, 1):
        dist.barrier() if turn == dist.get_rank() else dist.all_reduce(torch.ones(1))


def _swallows_it() -> None:
    with contextlib.suppress(BaseException):
        _only_rank_1_reduces()


def _receives_what_nobody_sends() -> None:
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), 0)


def _both_receive() -> None:
    dist.recv(torch.zeros(1), 1 - dist.get_rank())


def _in_a_group_of_its_own() -> None:
    pair = dist.new_group([0, 1])
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(1), group=pair)


def _first(rank: int, of: str = "`all_reduce` of a float32 tensor of shape (1,)") -> str:
    return f"rank {rank}'s collective number 1, {of}, can never complete: "


LEFT = "rank 0 returned without calling it"


@pytest.mark.parametrize(("work", "rank", "told"), [
    (_only_rank_1_reduces, 1, _first(1) + LEFT),
    (_in_a_group_of_its_own, 1, _first(1) + LEFT),
    (_swallows_it, 1, _first(1) + LEFT),
    (_other_shapes, 0, _first(0) + "rank 1's number 1 is `all_reduce` of a float32 tensor of "
    "shape (2,). All ranks have to call"),
    (_other_dtypes, 1, _first(1) + "rank 0's number 1 is `all_reduce` of a float16 tensor of "
    "shape (1,). All ranks have to call"),
    (_other_roots, 0, _first(0, "`broadcast` with root rank 0 of a float32 tensor of shape (1,)")
                      + "rank 1's number 1 is `broadcast` with root rank 1"),
    (_another_order, 1, _first(1) + "rank 0's number 1 is `barrier`"),
    (_receives_what_nobody_sends, 1, _first(1, "`recv` from rank 0 of a float32 tensor of shape "
    "(1,)") + LEFT),
    (_both_receive, 0, _first(0, "`recv` from rank 1 of a float32 tensor of shape (1,)")
                       + "rank 1's number 1 is `recv` from rank 0"),
])  # fmt: skip
def test_a_collective_that_can_never_complete_is_told_at_once(
    ranks: Ranks, work: Any, rank: int, told: str
) -> None:
    ranks.start()
    processes, start = ranks.processes, time.monotonic()
    failure = ranks.run(work)[rank].failure
    assert failure is not None and failure.kind == "stopped"
    assert told in failure.told and failure.told.startswith("your code would wait forever in line ")
    assert time.monotonic() - start < 8.0  # the limit that it does not need
    assert ranks.run(summed, 1.0)[0].value == [3.0, 3.0] and ranks.processes == processes


def _sends_and_gathers() -> Any:
    numbers, objects = torch.zeros(1), [None, None]
    dist.send(torch.ones(1), 1) if dist.get_rank() == 0 else dist.recv(numbers)
    handle = dist.all_reduce(numbers, async_op=True)
    assert handle is not None
    handle.wait()
    dist.all_gather_object(objects, {"rank": dist.get_rank()})
    dist.monitored_barrier()
    return numbers.item(), objects


def test_sends_waits_and_objects_go_through(ranks: Ranks) -> None:
    wanted = (1.0, [{"rank": 0}, {"rank": 1}])
    assert [report.value for report in ranks.run(_sends_and_gathers)] == [wanted] * 2


def _fails(how: Callable[[], Any]) -> None:
    if dist.get_rank() == 1:
        how()
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize(("how", "kind", "told", "others"), [
    (lambda: MINE["mine"], "raised", "your code raised KeyError ('mine') in line ", "rank 1 "
    "ended with an error without"),
    (lambda: sys.exit(3), "raised", "your code raised SystemExit (3)", "rank 1 ended with an "
    "error without calling it"),
    (lambda: os._exit(3), "died", "your code returned: it ended with exit code 3", "rank 1 ended "
    "without calling it"),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), "died", "it was killed by signal 9", "rank 1 "
    "ended without calling it"),
])  # fmt: skip
def test_a_rank_that_fails_is_named_and_the_other_is_not_left_waiting(
    ranks: Ranks, how: Any, kind: str, told: str, others: str
) -> None:
    first, second = ranks.run(_fails, how)
    assert (
        second.failure is not None and second.failure.kind == kind and told in second.failure.told
    )
    assert (
        first.failure is not None
        and first.failure.kind == "stopped"
        and others in first.failure.told
    )
    assert ranks.run(summed, 1.0)[0].value == [3.0, 3.0]


def _loops_for_ever() -> None:
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.01)


def test_a_loop_ends_with_its_time_and_is_the_cause(ranks: Ranks) -> None:
    first, second = ranks.run(_fails, _loops_for_ever, seconds=0.5)
    assert second.failure is not None and second.failure.kind == "time"
    assert second.failure.told.startswith(
        "your code had not finished after 0.5 seconds and was stopped in line "
    )
    assert first.failure is not None and first.failure.kind == "stopped"
    assert ranks.run(summed, 1.0)[0].value == [3.0, 3.0]


def _ends_the_group() -> None:
    dist.destroy_process_group()


def _opens_a_group() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def _leaves_gradients_off() -> None:
    torch.set_grad_enabled(False)


def test_what_is_left_changed_is_told_and_put_back(ranks: Ranks) -> None:
    assert "your code ended the process group." in ranks.run(_ends_the_group)[0].leaks[0]
    opened = ranks.run(_opens_a_group)[1].failure
    assert (
        opened is not None and "trying to initialize the default process group twice" in opened.told
    )
    assert "gradients switched off" in ranks.run(_leaves_gradients_off)[1].leaks[0]
    after = ranks.run(summed, 1.0)
    assert after[0].value == [3.0, 3.0] and not after[0].leaks


def test_a_function_typed_into_a_cell_travels_with_what_it_uses_and_its_lines_are_quoted(
    ranks: Ranks,
) -> None:
    cell = (
        "factor = 3\ndef inner(x):\n    return x * factor\ndef answer(x):\n    return inner(x) "
        "/ (x - 2)\n"
    )
    names: dict[str, Any] = {"__name__": "__main__"}
    linecache.cache["<cell 7>"] = (len(cell), None, cell.splitlines(keepends=True), "<cell 7>")
    exec(compile(cell, "<cell 7>", "exec"), names)
    assert ranks.run(names["answer"], 5)[0].value == 5.0
    failure = ranks.run(call_answer, names["answer"], "for 2", 2)[0].failure
    assert failure is not None and failure.case == "for 2"
    assert (
        failure.told
        == "your code raised ZeroDivisionError (division by zero) in line 5, `return inner(x) / (x "
        "- 2)`"
    )


def test_what_cannot_be_sent_is_refused_with_the_cure() -> None:
    lock = threading.Lock()
    with pytest.raises(
        Wrong,
        match=r"cannot be sent there \(TypeError: cannot pickle .*create it inside your function",
    ):
        packed(lambda: lock)


def test_the_group_of_an_answer_names_the_rank_that_is_the_cause(capsys: Any) -> None:
    with pytest.raises(Failed, match="on rank 1") as raised:
        run_on_ranks(_fails, lambda: MINE["mine"])
    assert (
        isinstance(raised.value.__cause__, Explained) and "KeyError" in raised.value.__cause__.told
    )
    with pytest.raises(Failed, match="on both ranks"):
        run_on_ranks(lambda: MINE["mine"])
    with pytest.raises(Failed, match="on both ranks, for 2"):
        run_on_ranks(call_answer, lambda x: x / 0, "for 2", 2)
    with pytest.raises(Wrong, match="gradients switched off"):
        run_on_ranks(_leaves_gradients_off)
    reports = run_on_ranks(ranked)
    assert all(isinstance(report, Report) for report in reports)
    assert "rank 1: hello from 1" in capsys.readouterr().out
    assert warm_ranks() is warm_ranks()


def test_a_fork_leaves_the_processes_to_its_parent(ranks: Ranks) -> None:
    ranks.start()
    before = ranks.processes
    number = os.fork()
    if number == 0:
        ranks.close()
        os._exit(0)
    os.waitpid(number, 0)
    assert ranks.run(summed, 1.0)[0].value == [3.0, 3.0] and ranks.processes == before


SCRIPT = """
import sys, time, torch.distributed as dist
from amp_course.distributed.ranks import warm_ranks
def loop(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: pass
def told():
    warm_ranks().start()
    print(warm_ranks()._folder, *warm_ranks().processes, flush=True)
"""
BUSY = """
told()
try:
    warm_ranks().run(loop, 60, seconds=60)
except KeyboardInterrupt:
    print('interrupted', warm_ranks().processes)
"""
IDLE = "told()\ntime.sleep(60)"


def _gone(processes: list[int], seconds: float = 10.0) -> bool:
    _, left = psutil.wait_procs(
        [psutil.Process(one) for one in processes if psutil.pid_exists(one)], seconds
    )
    return not left


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "ending"), [(BUSY, signal.SIGKILL), (IDLE, signal.SIGKILL), (BUSY, signal.SIGINT)]
)
def test_the_ranks_end_with_their_parent(code: str, ending: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT + code], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert parent.stdout is not None
    folder, *numbers = parent.stdout.readline().split()
    processes = [int(one) for one in numbers]
    assert len(processes) == 2 and all(map(psutil.pid_exists, processes))
    time.sleep(0.3 if code is BUSY else 0)
    parent.send_signal(ending)
    said, _ = parent.communicate(timeout=30)
    assert _gone(processes, 30.0)
    until = time.monotonic() + 30.0  # who removes the folder may end a moment after the ranks
    while os.path.exists(folder) and time.monotonic() < until:
        time.sleep(0.05)
    assert not os.path.exists(folder)
    assert said.strip() == ("interrupted ()" if ending == signal.SIGINT else "")


def test_the_ranks_end_with_the_kernel() -> None:
    manager, client = start_new_kernel(cwd=str(ROOT))
    try:
        words: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            if message["content"].get("name") == "stdout":
                words.extend(message["content"]["text"].split())

        client.execute_interactive(SCRIPT + "told()", timeout=60, output_hook=hear)
        shown = [int(word) for word in words[1:]]
        assert len(shown) == 2 and all(map(psutil.pid_exists, shown))
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    assert _gone(shown)
