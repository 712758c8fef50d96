"""The loading experiments: items that are the same in any worker, workers that end with the block,
whatever ends it.
"""

import gc
import multiprocessing
import os
import time
import warnings

import pytest
import torch

from amp_course.kit.measure import Timing
from amp_course.speed.experiments import loading, workers
from amp_course.speed.experiments.datasets import AugmentedDigits, SlowSource
from amp_course.speed.experiments.loading import (
    Pace,
    describe_loader_bound,
    loader_bound,
    measure_pace,
    open_loader,
    read,
)
from amp_course.speed.experiments.workers import describe_worker_counts
from tests.speed.made_up import CPU, SHORT, made_up


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
    assert picture.shape == (1, 24, 24) and picture.dtype == torch.float32
    assert picture.isfinite().all() and 0.1 < picture.max() < 1.5 and label == dataset.labels[3]
    again = len(dataset.pictures)  # the same digit, bent otherwise
    assert dataset[0][1] == dataset[again][1]
    assert not torch.equal(dataset[0][0], dataset[again][0])


@pytest.mark.parametrize(
    "dataset", [AugmentedDigits(5, size=16), SlowSource(5, 0, size=16)], ids=["digits", "slow"]
)
def test_items_are_drawn_from_their_index_and_end_where_they_end(dataset):
    assert all(torch.equal(a, b) for a, b in zip(dataset[4], dataset[4], strict=True))
    assert not torch.equal(dataset[3][0], dataset[4][0])
    with pytest.raises(IndexError, match="item 5 of 5"):
        dataset[5]


# ── loaders ──


def test_batches_are_the_same_with_and_without_workers():
    dataset, found = AugmentedDigits(6, size=16), {0: [], 2: []}
    for count, batches in found.items():
        with open_loader(dataset, 4, count) as loader:
            read(loader, batches.append)
            read(loader, batches.append)
    assert len(found[0]) == 4
    for none, two in zip(found[0], found[2], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(none, two, strict=True))


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_workers_end_with_the_block(error):
    def use(batch):
        assert len(multiprocessing.active_children()) == 2
        if error:
            raise error

    caught = None
    try:
        with open_loader(SlowSource(8, 0.001, size=4), 2, 2) as loader:
            read(loader, use)
            read(loader, use)
    except KeyboardInterrupt as one:
        caught = one  # a traceback keeps the frames, and with them the loader, as a notebook does
    assert (caught is None) == (error is None)
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
    with pytest.raises(KeyboardInterrupt) as raised, open_loader(SlowSource(4, 0), 2, 2) as loader:
        read(loader)
    # `raised` has the frames, as a notebook has those of its last error
    assert raised and started and not started[0].is_alive()
    del raised, loader
    gc.collect()  # now, while the warning about it is let pass


@pytest.mark.slow
def test_workers_that_are_spawned_find_the_data_set():
    found = []
    multiprocessing.set_start_method("spawn", force=True)
    try:
        with open_loader(SlowSource(4, 0, size=4), 2, 1) as loader:
            read(loader, found.append)
    finally:
        multiprocessing.set_start_method(None, force=True)
    assert torch.cat([labels for _, labels in found]).tolist() == [0, 1, 2, 3]


def test_more_workers_than_cores_bring_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with open_loader(SlowSource(8, 0, size=4), 4, (os.cpu_count() or 1) + 1) as loader:
            read(loader)


# ── waiting or computing ──


def test_the_pace_of_a_loop_that_waits_and_computes():
    batches = []

    def step(batch):
        batches.append(batch)
        time.sleep(0.01)

    with open_loader(SlowSource(4, 0.02, size=4), 1, 0) as loader:
        found = measure_pace(loader, step, CPU)
    assert len(batches) == 4  # the first one is not timed
    for times, least in ((found.waiting, 0.019), (found.computing, 0.009)):
        assert len(times.samples) == 3 and min(times.samples) >= least


@pytest.mark.parametrize(
    "waiting, waited, words",
    [
        (0.0001, 0.0, "The step is the bottleneck"),
        (
            0.003,
            0.0,
            "75% of the time (3.00 ms of waiting and 1.00 ms of computing a step): the lo",
        ),
        (0.003, 0.5, "This machine was too busy to tell"),
    ],
)
def test_a_loader_that_cannot_keep_up_in_words(waiting, waited, words):
    times = {
        "fp32, from the loader": 4.0,
        "fp32, preloaded": 2.0,
        "AMP, from the loader": 4.0,
        "AMP, preloaded": 1.0,
    }
    pace = Pace(Timing((waiting,) * 3, waited), Timing((0.001,) * 3, waited))
    text = describe_loader_bound(made_up(**times), pace)
    assert words.lower() in text.lower()
    for clause in (
        "bottleneck",
        "With the loader, between AMP and fp32 there is no difference",
        "With preloaded batches, AMP is 2.00 times as fast as fp32",
        "The fp32 loop with preloaded batches is 2.00 times as fast as that with the loader",
    ):
        assert (clause in text) == (not waited)


# ── each experiment, run ──


@pytest.mark.parametrize("name", ["loader_bound", "worker_counts"])
def test_an_experiment_speaks_and_shows_its_numbers(name, monkeypatch):
    monkeypatch.setattr(loading, "pick_size", lambda device, **sizes: 64)
    monkeypatch.setattr(loading, "_BATCH", 4)
    source = SlowSource(8, 0.0001, size=4)
    found = (
        loader_bound(seconds=SHORT)
        if name == "loader_bound"
        else workers.worker_counts(source, counts=(0, 2), seconds=SHORT)
    )
    assert found.sentence.endswith(".") and found.sentence in str(found)


def test_worker_counts_in_words():
    times = {"no workers": 0.4, "1 worker": 0.4, "2 workers": 0.2, "4 workers": 0.4}
    text = describe_worker_counts(made_up(**times), (0, 1, 2), 8)
    assert "An epoch with 2 workers is 2.00 times as fast as one with no workers" in text
    assert "Between an epoch with 1 worker and one with no workers there is no difference" in text
    assert "a single worker only moves the work" in text
    assert "The most here: 40 batches a second, with 2 workers." in text
    text = describe_worker_counts(made_up(**times), (0, 1, 2, 4), 8)
    assert "More workers help only where there are free cores for them." in text
