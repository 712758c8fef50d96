"""The loading experiments: items that are the same in any worker, workers that end with the block,
whatever ends it.
"""

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings

import pytest
import torch

from amp_course.kit.measure import Timing
from amp_course.speed.experiments import loading, threads, workers
from amp_course.speed.experiments.datasets import AugmentedDigits, SlowSource
from amp_course.speed.experiments.loading import (
    LoaderBound,
    Pace,
    PinnedMemory,
    measure_pace,
    open_loader,
    read,
)
from amp_course.speed.experiments.workers import Prefetch, StartUp, WorkerCounts, workers_text
from tests.speed.test_experiments import made_up

SHORT = 0.02


@pytest.fixture(autouse=True)
def no_trace():
    random, before, filters = torch.get_rng_state(), torch.get_num_threads(), list(warnings.filters)
    yield
    assert multiprocessing.active_children() == []
    assert torch.equal(random, torch.get_rng_state())
    assert torch.get_num_threads() == before and list(warnings.filters) == filters


# ── the data sets ──


def test_augmented_digits_are_pictures_with_their_labels():
    dataset = AugmentedDigits(1500, size=24)
    picture, label = dataset[3]
    assert (
        picture.shape == (1, 24, 24) and picture.dtype == torch.float32 and picture.isfinite().all()
    )
    assert 0.1 < picture.max() < 1.5 and len(dataset) == 1500
    assert dataset[0][1] == dataset[len(dataset.pictures)][1] and not torch.equal(
        dataset[0][0], dataset[len(dataset.pictures)][0]
    )
    assert label == dataset.labels[3]


@pytest.mark.parametrize(
    "dataset", [AugmentedDigits(5, size=16), SlowSource(5, 0, size=16)], ids=["digits", "slow"]
)
def test_items_are_drawn_from_their_index_and_end_where_they_end(dataset):
    assert all(torch.equal(a, b) for a, b in zip(dataset[4], dataset[4], strict=True))
    assert not torch.equal(dataset[3][0], dataset[4][0])
    for index in (5, -1):
        with pytest.raises(IndexError, match=f"item {index} of 5"):
            dataset[index]


def test_a_slow_source_pauses_where_it_says(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    source = SlowSource(8, 0.001, pause=0.5, every=4)
    for index in range(8):
        source[index]
    assert slept == pytest.approx([0.001] * 3 + [0.501] + [0.001] * 3 + [0.501])


# ── loaders ──


def batches_of(dataset, count, **options):
    found = []
    with open_loader(dataset, 4, count, **options) as loader:
        read(loader, found.append)
        read(loader, found.append)
    return found


def test_batches_are_the_same_with_and_without_workers():
    dataset = AugmentedDigits(10, size=16)
    none, two, again = (batches_of(dataset, *args) for args in ((0,), (2,), (2,)))
    assert len(none) == 6
    for other in (two, again):
        assert all(
            torch.equal(a, b)
            for one, two in zip(none, other, strict=True)
            for a, b in zip(one, two, strict=True)
        )


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_workers_end_with_the_block(persistent, error):
    def use(batch):
        assert len(multiprocessing.active_children()) == 2
        if error:
            raise error

    caught = None
    try:
        with open_loader(SlowSource(40, 0.001, size=4), 2, 2, persistent=persistent) as loader:
            read(loader, use)
            read(loader, use)
    except (ValueError, KeyboardInterrupt) as one:
        caught = one  # a traceback keeps the frames, and with them the loader, as a notebook does
    assert type(caught) is (type(None) if error is None else error)
    assert multiprocessing.active_children() == []


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of DataLoader's own half-made iterator
def test_workers_end_if_their_start_is_interrupted(monkeypatch):
    start, started = multiprocessing.Process.start, []

    def start_one(process):
        if started:
            raise KeyboardInterrupt
        started.append(process)
        start(process)

    monkeypatch.setattr(multiprocessing.Process, "start", start_one)
    with pytest.raises(KeyboardInterrupt) as kept, open_loader(SlowSource(4, 0), 2, 2) as loader:
        read(loader)
    assert (
        kept and started and not started[0].is_alive()
    )  # `kept` has the frames, as a notebook has those of its last error
    del kept, loader
    gc.collect()  # now, while the warning about it is let pass


@pytest.mark.parametrize("run", [read, measure_pace])
def test_workers_that_do_not_persist_end_with_the_loop_itself(run):
    def fail(batch):
        raise ValueError

    with open_loader(SlowSource(40, 0.001, size=4), 2, 2, persistent=False) as loader:
        with pytest.raises(ValueError) as kept:
            run(loader, fail)
        assert kept and multiprocessing.active_children() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [one for one in ("spawn", "forkserver") if one in multiprocessing.get_all_start_methods()],
)
def test_workers_that_are_spawned_find_the_data_set(method):
    found = []
    with open_loader(SlowSource(4, 0, size=4), 2, 1, multiprocessing_context=method) as loader:
        read(loader, found.append)
    assert torch.cat([labels for _, labels in found]).tolist() == [0, 1, 2, 3]


def test_more_workers_than_cores_bring_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(batches_of(SlowSource(8, 0, size=4), (os.cpu_count() or 1) + 1)) == 4


INTERRUPTED = """
import multiprocessing, sys, threading, time
from amp_course.speed.experiments import loading
from amp_course.speed.experiments.datasets import SlowSource

def tell():
    while not multiprocessing.active_children():
        time.sleep(0.01)
    print("pids", *(child.pid for child in multiprocessing.active_children()), flush=True)

threading.Thread(target=tell, daemon=True).start()
try:
    with loading.open_loader(SlowSource(10_000, 0.001, size=4), 2, 2) as loader:
        loading.read(loader)
except KeyboardInterrupt as error:
    kept = error
    print("left", len(multiprocessing.active_children()), flush=True)
    time.sleep(20)  # as a kernel that lives on
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
@pytest.mark.parametrize("whole_group", [False, True], ids=["kernel", "terminal"])
def test_an_interrupt_leaves_no_worker(whole_group):
    """Jupyter interrupts the kernel's process alone, a terminal the workers as well."""
    child = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        pids = [int(one) for one in child.stdout.readline().split()[1:]]
        time.sleep(0.5)
        (os.killpg if whole_group else os.kill)(child.pid, signal.SIGINT)
        assert child.stdout.readline().strip() == "left 0"
        assert pids and not any(os.path.exists(f"/proc/{pid}/fd/0") for pid in pids)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()


# ── waiting or computing ──


def test_the_pace_of_a_loop_that_waits_and_of_one_that_computes():
    def source(seconds):
        for number in range(8):
            time.sleep(seconds)
            yield number

    seen = []
    waits = measure_pace(source(0.02), seen.append, steps=4, warmup=2)
    assert (
        seen == list(range(6)) and len(waits.waiting.samples) == len(waits.computing.samples) == 4
    )
    assert min(waits.waiting.samples) >= 0.019 and not waits.ahead
    computes = measure_pace(source(0), lambda batch: time.sleep(0.02), steps=100)
    assert len(computes.computing.samples) == 5 and min(computes.computing.samples) >= 0.019
    assert computes.share < waits.share


def test_the_pace_of_no_batches_is_refused():
    with pytest.raises(
        ValueError, match="the batches ran out before one was timed: give more than 3"
    ):
        measure_pace([1, 2, 3], print)


def test_a_loader_with_workers_loads_ahead_and_they_end():
    dataset = SlowSource(20, 0, size=4)
    with open_loader(dataset, 2, 1, persistent=False) as loader:
        assert measure_pace(loader, lambda batch: None, steps=2, warmup=1).ahead
        assert multiprocessing.active_children() == []
    with open_loader(dataset, 2, 0) as loader:
        assert not measure_pace(loader, lambda batch: None).ahead


@pytest.mark.parametrize(
    "waiting, ahead, words",
    [
        (0.0001, True, "the step is the bottleneck"),
        (
            0.003,
            True,
            "waits for its batches 75% of the time (3.00 ms of waiting and 1.00 ms of computing a "
            "step): the loader is",
        ),
        (0.003, False, "If the step took no time at all, the loop would be 1.33 times as fast"),
    ],
)
def test_a_pace_in_words(waiting, ahead, words):
    assert words in Pace(Timing((waiting,) * 3), Timing((0.001,) * 3), ahead).sentence


def test_a_loader_that_cannot_keep_up_in_words():
    times = {
        "fp32, from the loader": 4.0,
        "fp32, preloaded": 2.0,
        "AMP, from the loader": 4.0,
        "AMP, preloaded": 1.0,
    }
    pace = Pace(Timing((0.02,)), Timing((0.01,)), True)
    told = LoaderBound(made_up(**times), (), pace, 1).sentence
    assert "With the loader, between AMP and fp32 there is no difference" in told
    assert "With preloaded batches, AMP is 2.00 times as fast as fp32" in told
    assert (
        "The fp32 loop with preloaded batches is 2.00 times as fast as that with the loader" in told
    )


def test_a_starved_loop_has_no_bottleneck():
    told = Pace(Timing((0.003,) * 3, 0.5), Timing((0.001,) * 3, 0.5), True).sentence
    assert "too busy to tell" in told and "bottleneck" not in told
    times = dict.fromkeys(
        ("fp32, from the loader", "fp32, preloaded", "AMP, from the loader", "AMP, preloaded"), 1.0
    )
    busy = LoaderBound(
        made_up(**times), (), Pace(Timing((0.02,), 0.5), Timing((0.01,), 0.5), True), 1
    )
    assert "too busy to tell" in str(busy) and "bottleneck" not in str(busy)
    start = StartUp(None, (), 2, "spawn", 3.0, 2.5, 0.002, 0.9)
    assert "too busy to tell" in str(start) and "3.00 s" not in str(start)


# ── each experiment, run ──

EXPERIMENTS = {
    "loader_bound": lambda: loading.loader_bound(seconds=SHORT),
    "worker_counts": lambda: workers.worker_counts(
        SlowSource(8, 0.0001, size=4), counts=(0, 2), seconds=SHORT
    ),
    "start_up": workers.start_up,
    "prefetch": lambda: workers.prefetch(factors=(1, 4), seconds=SHORT),
    "threads_and_workers": lambda: threads.threads_and_workers(
        threads=(1,), workers=(0, 1), seconds=SHORT
    ),
    "pinned_memory": loading.pinned_memory,
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_speaks_and_shows_its_numbers(name):
    found = EXPERIMENTS[name]()
    assert found.sentence.endswith(".") and found.sentence in str(found) and found.sentence
    assert json.loads(json.dumps(found.to_dict()))["title"] == found.title


def test_a_worker_computes_on_one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert threads.threads_and_workers(threads=(1,), workers=(0, 1), seconds=SHORT).inside == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_worker_counts_in_words():
    times = {"no workers": 0.4, "1 worker": 0.4, "2 workers": 0.2, "4 workers": 0.4}
    told = WorkerCounts(
        made_up(**{name: times[name] for name in list(times)[:3]}), (), (0, 1, 2), 8
    ).sentence
    assert "An epoch with 2 workers is 2.00 times as fast as one with no workers" in told
    assert "Between an epoch with 1 worker and one with no workers there is no difference" in told
    assert (
        "a single worker only moves the work" in told
        and "The most here: 40 batches a second, with 2 workers." in told
    )
    told = WorkerCounts(made_up(**times), (), (0, 1, 2, 4), 8).sentence
    assert "More workers help only where there are free cores for them." in told
    assert [workers_text(count) for count in range(3)] == ["no workers", "1 worker", "2 workers"]


def test_the_other_findings_in_words():
    told = StartUp(None, (), 2, "spawn", 3.0, 2.5, 0.002).sentence
    assert told.startswith(
        "With 2 workers, started by spawn, the first batch takes 3.00 s. In the second epoch it "
        "takes 2.50 s if"
    )
    times = {"1 batch ahead": 0.4, "8 batches ahead": 0.2}
    assert "bridges the pauses" in Prefetch(made_up(**times), (), (1, 8)).sentence
    assert "does nothing but warn" in PinnedMemory(None, ()).sentence
    copies = made_up(ordinary=0.02, pinned=0.01)
    assert (
        "The copy from pinned memory is 2.00 times as fast as from ordinary memory"
        in PinnedMemory(copies, ()).sentence
    )


def test_the_best_and_the_worst_setting_are_told():
    times = {
        "1 thread and no workers": 0.2,
        "2 threads and no workers": 0.1,
        "2 threads and 2 workers": 0.8,
    }
    told = threads.ThreadsAndWorkers(made_up(**times), (), 1).sentence
    assert (
        "The loop with 2 threads and no workers is 2.00 times as fast as one with 1 thread and no "
        "workers" in told
    )
    assert "The loop with 2 threads and 2 workers takes 4.00 times as long" in told
    told = threads.ThreadsAndWorkers(made_up(**dict.fromkeys(times, 0.1)), (), 1).sentence
    assert told.startswith("No setting differs clearly from 1 thread and no workers.")
