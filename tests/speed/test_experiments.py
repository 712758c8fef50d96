"""The experiments: arithmetic on made-up times, what they count, and that they leave no trace.
No speed is asserted.
"""

import dataclasses
import os
import sys
import time
import warnings
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch

# a process's first optimizer step loads it, and it sets filters and an environment variable of its
# own
import torch._dynamo

from amp_course.kit import measure
from amp_course.kit.children import ChildError, run_python
from amp_course.kit.dtypes import _BACKENDS
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
from amp_course.speed.experiments.finding import PUBLISHED, Finding
from amp_course.speed.experiments.interleaved import (
    Comparison,
    Ratio,
    compare,
    number_text,
    sentences,
)
from amp_course.speed.experiments.memory import Heap, describe_freed_memory, freed_memory

CPU = torch.device("cpu")
SHORT = 0.02  # seconds: three rounds at the least


def made_up(**seconds):
    """Return a Comparison in which side a_b took so many seconds a step,
    a little more and a little less from round to round.
    """
    wobble = np.array((0.99, 1.0, 1.0, 1.0, 1.01))
    times = {name: tuple(one * wobble) for name, one in seconds.items()}
    return Comparison(times, dict.fromkeys(times, next(iter(times))), {})


def rounds(a, b):
    return Comparison({"a": tuple(a), "b": tuple(b)}, {"a": "a", "b": "a"}, {})


def settings():
    modes = torch.get_float32_matmul_precision(), torch.is_grad_enabled()
    modes += torch.is_autocast_enabled("cpu"), torch.get_num_threads()
    backends = [backend.fp32_precision for backend in _BACKENDS]
    return modes, backends, dict(os.environ), list(warnings.filters)


# ── compare ──


def test_each_side_gets_the_same_number_of_blocks_in_changing_order():
    calls = []
    sides = {name: lambda name=name: calls.append(name) for name in "abc"}
    found = compare(sides, rounds=6, steps=2, seconds=5)
    assert all(len(times) == 6 for times in found.seconds.values())
    # after the first call and the pace: an extra step, then two
    blocks = [calls[at : at + 3] for at in range(6, len(calls), 3)]
    assert all(len(set(block)) == 1 for block in blocks) and len(blocks) == 18
    order = ["".join(block[0] for block in blocks[at : at + 3]) for at in range(0, 18, 3)]
    assert all(Counter(places) == dict.fromkeys("abc", 2) for places in zip(*order, strict=True))


def test_results_are_those_of_the_first_calls():
    values = iter([torch.tensor(1), *range(2, 99)])
    found = compare({"a": lambda: next(values), "b": lambda: "text"}, rounds=1, steps=1)
    assert found.results == {"a": 1.0, "b": None}


def test_time_ends_the_rounds_but_not_before_the_third():
    sides = dict.fromkeys("ab", lambda: time.sleep(0.01))
    assert len(compare(sides, rounds=50, seconds=0.001).seconds["a"]) == 3
    assert 5 <= len(compare(sides, rounds=50, steps=1, seconds=0.3).seconds["a"]) < 50


def test_torch_computes_on_one_thread_meanwhile_and_gets_its_threads_back():
    before, thread_counts = torch.get_num_threads(), set()
    sides = dict.fromkeys("ab", lambda: thread_counts.add(torch.get_num_threads()))
    torch.set_num_threads(2)
    try:
        compare(sides, rounds=1)
        assert thread_counts == {1} and torch.get_num_threads() == 2
        compare(sides, rounds=1, single=False)
        assert thread_counts == {1, 2}
        with pytest.raises(ZeroDivisionError):
            compare({"a": lambda: None, "b": lambda: 1 / 0})
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_ratio_is_taken_round_by_round():
    assert rounds((1, 10, 1), (2, 20, 2)).ratio("a", "b") == Ratio(2.0, 2.0, 2.0)
    a, b = np.random.default_rng(0).uniform(1, 2, (2, 9))
    found = rounds(a, b).ratio("b", "a")
    quartiles = np.quantile(a / b, [0.25, 0.5, 0.75])
    assert np.allclose([found.q1, found.median, found.q3], quartiles)


@pytest.mark.parametrize(
    "ratio, verdict, words",
    [
        ((1.8, 1.7, 1.9), "faster", "is 1.80 times as fast as fp32 (quartiles 1.70 to 1.90)"),
        ((0.25, 0.2, 0.5), "slower", "takes 4.00 times as long as fp32 (quartiles 2.00 to 5.00)"),
        ((1.5, 1.01, 1.9), "same", "(1.50 times as fast, quartiles 1.01 to 1.90)"),
        ((1.01, 1.01, 1.01), "same", "no difference that this run can tell"),
        ((0.99, 0.99, 0.99), "same", "no difference"),
    ],
)
def test_only_quartiles_that_leave_1_behind_make_a_difference(ratio, verdict, words):
    ratio = Ratio(*ratio)
    assert ratio.verdict == verdict and words in ratio.describe("AMP", "fp32")
    plural = {"faster": "AMPs are ", "slower": "AMPs take ", "same": "between AMPs and "}
    assert ratio.describe("AMPs", "fp32", plural=True).startswith(plural[verdict])


@pytest.mark.parametrize(
    "against, number, faster, verdict",
    [
        (0, 5, 1.5, "faster"),
        (1, 5, 1.5, "same"),
        (1, 9, 1.5, "faster"),
        (3, 15, 1.5, "faster"),
        (4, 15, 1.5, "same"),
        (0, 3, 1.5, "faster"),
        (0, 3, 1.05, "same"),  # three rounds have to differ by a tenth
    ],
)
def test_rounds_that_disagree_make_no_difference(against, number, faster, verdict):
    """What chance gives in less than 7 of 100 runs: 5 of 5 heads, 8 of 9, 12 of 15,
    by the binomial distribution.
    """
    found = rounds([1.0] * number, [0.99] * against + [faster] * (number - against))
    assert found.ratio("a", "b").verdict == verdict


def test_what_the_crowded_sides_wait_does_not_count(monkeypatch):
    now, waits = [0.0], [0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(measure, "read_waits", lambda: {"main": int(waits[0] * 1e9)})

    def side(waited):
        now[0] += 1.0
        waits[0] += waited

    sides = {"one": lambda: side(0.125), "many": lambda: side(0.875)}
    assert compare(sides, rounds=4, steps=1).waited == pytest.approx(0.5, abs=0.2)
    assert compare(sides, rounds=4, steps=1, crowded=["many"]).waited == pytest.approx(0.125)


def test_a_finding_shows_its_table_and_on_a_busy_machine_no_ratios():
    found = made_up(plain=0.002, other=0.001)
    head, plain, other = str(found).splitlines()
    assert "times as fast" in head and "2.00 ms" in plain
    assert "2.00" in other and other.endswith("plain")
    assert found._repr_html_().count("<tr>") == 3
    quiet = Finding("A title", found, "The claim.", ("too_small",))
    busy = dataclasses.replace(quiet, comparison=dataclasses.replace(found, waited=0.4))
    for page in (str(quiet), quiet._repr_html_()):
        assert "A title" in page and "The claim." in page and "Elsewhere: ResNet-20" in page
    for page in (str(busy), busy._repr_html_()):
        assert page.count("too busy to tell: this process waited for a CPU 40% of the time") == 1
        assert "times as" not in page and "claim" not in page and "2.00 ms" in page


@pytest.mark.parametrize(
    "number, text",
    [
        (0.0123, "0.012"),
        (0.123, "0.12"),
        (9.99, "9.99"),
        (9.996, "10.0"),
        (123.4, "123"),
        (1234.5, "1,234"),
    ],
)
def test_figures(number, text):
    assert number_text(number) == text


def test_sentences_begin_with_a_capital_and_end_with_one_stop():
    assert sentences("one", "", "two!", "`x` is three") == "One. Two! `x` is three."


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


# ── memory, children, published figures ──


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


def test_a_child_returns_its_last_line_or_its_last_error():
    code = "import os; print('one'); print(os.environ['X'])"
    assert run_python(code, environment={**os.environ, "X": "y"}) == "y"
    with pytest.raises(ChildError, match=r"^ValueError: no$"):
        run_python("raise ValueError('no')")
    with pytest.raises(ChildError, match="exit code 3"):
        run_python("import os; os._exit(3)")


def test_a_published_figure_is_a_sentence_with_its_source():
    assert all(one[0].isupper() and one.endswith(").") for one in PUBLISHED.values())
