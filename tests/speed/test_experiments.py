"""The experiments: what they count and say, and that they leave no trace. No speed is asserted."""

import sys
from functools import partial

import pytest
import torch

from amp_course.kit.children import ChildError
from amp_course.kit.measure import Timing
from amp_course.speed.experiments import casts, causes, memory, threads
from amp_course.speed.experiments.casts import judge_break_even
from amp_course.speed.experiments.causes import (
    describe_host_reads,
    describe_no_fast_units,
    describe_odd_sizes,
    describe_too_little_work,
)
from amp_course.speed.experiments.figures import break_even_figure
from amp_course.speed.experiments.finding import PUBLISHED
from amp_course.speed.experiments.memory import Heap, describe_freed_memory, freed_memory
from tests.speed.made_up import SHORT, made_up, settings

# ── what each experiment counts, and that its sides do the same work ──


@pytest.mark.parametrize(
    "run",
    [
        causes.too_little_work,
        causes.no_fast_units,
        causes.host_reads,
        causes.odd_sizes,
        casts.fp32_island,
        casts.break_even,
        threads.too_many_threads,
    ],
    ids=lambda run: run.__name__,
)
def test_an_experiment_speaks_shows_its_numbers_and_leaves_no_trace(run):
    before, random = settings(), torch.get_rng_state()
    found = run(seconds=SHORT)
    assert before == settings() and torch.equal(random, torch.get_rng_state())
    assert found.sentence.endswith(".") and not found.sentence[0].islower()
    assert found.sentence in str(found) and "<table>" in found._repr_html_()
    losses = found.comparison.results
    for side, loss in losses.items():  # the same data and weights, in other formats
        if loss is not None:
            same = [side.replace("AMP", "fp32"), *losses]
            first = next(losses[name] for name in same if name in losses)
            assert loss == pytest.approx(first, rel=1e-3)


def test_reads_are_counted_and_both_loops_log_the_same():
    loss = torch.tensor(2.5)
    read_each, read_once = (
        partial(read, lambda: loss) for read in (causes._read_each, causes._read_once)
    )
    assert (causes._count_reads(read_each), causes._count_reads(read_once)) == (20, 1)
    assert read_each() == read_once() == 2.5


def test_a_loop_that_diverges_says_so():
    with pytest.raises(RuntimeError, match="diverged"):
        causes._read_each(lambda: torch.tensor(1e9))


# ── the sentences, on machines that are not at hand ──


@pytest.mark.parametrize(
    "wide, slow, words",
    [
        (0.5, False, "(quartiles 2.00 to 2.00): enough work in each matmul is the fix"),
        (4.0, True, "more work fixes nothing here, since bf16 has no fast units"),
        (4.0, False, "the fix would be more work still"),
        (1.0, False, "no difference that this run can tell"),
    ],
)
def test_too_little_work(wide, slow, words):
    narrow = {"narrow net, fp32": 18e-6, "narrow net, AMP": 36e-6}
    times = made_up(**narrow, **{"wide net, fp32": 1.0, "wide net, AMP": wide})
    text = describe_too_little_work(times, (32, 1024), {"fp32": 18, "AMP": 33}, "bf16", slow)
    assert words in text
    assert "33 kernels instead of 18: in fp32 the step comes to 1.00 µs for each of them" in text


@pytest.mark.parametrize(
    "bf16, fp16, slow, words",
    [
        (0.5, 0.5, (), "Both formats have fast units here."),
        (0.5, 40.0, ("fp16",), "The fix is to use AMP bf16."),
        (3.0, 0.4, ("bf16",), "The fix is to use AMP fp16."),  # a T4
        (30.0, 40.0, ("bf16", "fp16"), "This machine has fast units for neither format"),
        (1.0, 40.0, ("fp16",), "no fast units for fp16, and at width 512 the other format"),
        (1.3, 1.4, (), "At width 512 neither format pays"),
    ],
)
def test_no_fast_units(bf16, fp16, slow, words):
    times = made_up(**{"fp32": 1.0, "AMP bf16": bf16, "AMP fp16": fp16})
    assert words in describe_no_fast_units(times, 512, slow)


@pytest.mark.parametrize(
    "device, once, words",
    [
        ("cpu", 1.0, "A CPU has nothing queued"),
        ("cuda", 0.5, "Each read waited for the device to finish"),
        ("cuda", 1.0, "The device was never out of work"),
    ],
)
def test_host_reads(device, once, words):
    times = made_up(**{"read each step": 1.0, "read at the end": once})
    text = describe_host_reads(times, {"read each step": 20, "read at the end": 1}, device)
    assert words in text and "read 20 values, and with one read at the end 1." in text


def test_odd_sizes():
    times = {"fp32 127": 1.0, "fp32 128": 1.0, "bf16 127": 3.0, "bf16 128": 1.0}
    text = describe_odd_sizes(made_up(**times), 128, "bf16")
    assert "In fp32, between size 128 and size 127 there is no difference" in text
    assert "In bf16, size 128 is 3.00 times as fast as size 127" in text and "Pad to 128" in text
    text = describe_odd_sizes(made_up(**times | {"bf16 127": 1.0}), 128, "bf16")
    assert "Padding to a multiple of 8 gains nothing in bf16 here" in text


@pytest.mark.parametrize(
    "saved, slow, words",
    [
        ((2, 3, 4), False, "casting pays from width 64 on"),
        ((-2, 3, 4), False, "casting pays from width 256 on"),
        ((0.5, 0.9, 4), False, "casting pays from width 1,024 on"),
        ((2, -3, 4), False, "With 128 rows, casting pays from width 1,024 on."),
        ((2, 3, 0.5), False, "Casting does not pay up to width 1,024 here."),
        ((-2, -3, -4), True, "Casting pays at no width here, since bf16 has no fast units"),
    ],
)
def test_the_break_even_is_the_width_from_which_on_casting_pays(saved, slow, words):
    times = {}
    for width, one in zip(("64", "256", "1,024"), saved, strict=True):
        times |= {f"{width}: fp32": 10.0, f"{width}: bf16": 10.0 - one, f"{width}: casts": 1.0}
    found = judge_break_even(made_up(**times), 128, (64, 256, 1024), "bf16", slow)
    assert words in found.sentence
    if saved[0] == -2:
        words = "At width 64, the matmul loses 2.00 s and the casts take 1.00 s."
        assert words in found.sentence
    figure = break_even_figure(found)
    assert f"width 64: saves {saved[0] * 1e6:,.0f} µs, casts take 1,000,000 µs" in figure.alt
    figure.draw_without_rendering()


@pytest.mark.parametrize("cores, slower", [(1, False), (4, True), (4, False)])
def test_threads_in_words(cores, slower):
    times = {"1 thread": 1.0, "4 threads": 2.0 if slower else 0.5, "16 threads": 3.0}
    text = threads.describe_threads(made_up(**times), cores, 16)
    assert text.startswith(f"This process may use {'one core' if cores == 1 else '4 cores'}.")
    assert "16 threads take 3.00 times as long as one" in text
    assert ("4 threads" in text) == (cores == 4) and ("holds up the whole op" in text) == slower


# ── memory, published figures ──


@pytest.mark.slow
def test_freed_memory_counts_in_two_processes_or_says_why_not():
    text = freed_memory(seconds=0.1).sentence
    assert ("new pages a step" in text) == sys.platform.startswith("linux")


@pytest.mark.parametrize("waited", [0.0, 0.5])
def test_pages_are_counted_on_a_busy_machine_and_their_price_is_not_claimed(waited):
    text = describe_freed_memory(
        *(Heap(Timing((0.02,), waited), pages, 1e-6) for pages in (2000, 0))
    )
    assert "2,000 new pages a step" in text and "told to keep its memory, 0" in text
    price = "which take 2.00 ms of its 20.0 ms, or 10%; told to keep its memory, 0, or 0%"
    assert (price in text) == (waited == 0) == ("too busy to tell" not in text)


def test_freed_memory_without_glibc_or_without_processes(monkeypatch):
    def fails(code, **_):
        raise ChildError("a new process could not be started: no memory")

    monkeypatch.setattr(memory, "run_python", fails)
    monkeypatch.setattr(sys, "platform", "linux")
    words = "This cannot be shown here: a new process could not be started: no memory."
    assert freed_memory().sentence == words
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "glibc" in freed_memory().sentence


def test_a_published_figure_is_a_sentence_with_its_source():
    assert all(one[0].isupper() and one.endswith(").") for one in PUBLISHED.values())
