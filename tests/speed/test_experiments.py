"""The experiments: arithmetic on made-up times, what they count, and that they leave no trace.
No speed is asserted.
"""

import dataclasses
import json
import os
import sys
import time
import warnings

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
from amp_course.speed.experiments import casts, causes, compare, memory, threads
from amp_course.speed.experiments.casts import BreakEven
from amp_course.speed.experiments.causes import NoFastUnits, OddSizes, ReadsEachStep, TooLittleWork
from amp_course.speed.experiments.finding import PUBLISHED
from amp_course.speed.experiments.interleaved import Comparison, Ratio, figures, sentence
from amp_course.speed.experiments.memory import FreedMemory, Heap
from amp_course.speed.experiments.workbench import drawn, format_name, low_recipe

CPU = torch.device("cpu")
SHORT = 0.02  # seconds: three rounds at the least


def made_up(**seconds):
    """Return a Comparison in which side a_b took so many seconds a step,
    a little more and a little less from round to round.
    """
    times = {
        name: tuple(one * wobble for wobble in (0.99, 1.0, 1.0, 1.0, 1.01))
        for name, one in seconds.items()
    }
    return Comparison(times, dict.fromkeys(times, next(iter(times))), 1, dict.fromkeys(times))


def named(**seconds):
    """As `made_up`, with sides like "narrow net, AMP", written narrow_net__AMP."""
    return made_up(
        **{name.replace("__", ", ").replace("_", " "): one for name, one in seconds.items()}
    )


def settings():
    precision = (
        torch.get_float32_matmul_precision(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
    )
    backends = [backend.fp32_precision for backend in _BACKENDS]
    return torch.get_num_threads(), *precision, backends, dict(os.environ), list(warnings.filters)


# ── compare ──


def test_each_side_gets_the_same_number_of_blocks_in_changing_order():
    calls = []
    found = compare(
        {name: lambda name=name: calls.append(name) for name in "abc"}, rounds=6, steps=2, seconds=5
    )
    assert found.rounds == 6 and found.steps == 2
    blocks = [
        calls[at : at + 3] for at in range(6, len(calls), 3)
    ]  # after the first call and the pace: an extra step, then two
    assert all(len(set(block)) == 1 for block in blocks) and len(blocks) == 18
    rounds = ["".join(block[0] for block in blocks[at : at + 3]) for at in range(0, 18, 3)]
    assert rounds == [
        "abc",
        "acb",
        "cab",
        "cba",
        "bca",
        "bac",
    ]  # each side is first twice, and last twice


def test_results_are_those_of_the_first_calls():
    counts = {"a": 0, "b": 10}

    def side(name):
        counts[name] += 1
        return torch.tensor(counts[name])

    found = compare(
        {"a": lambda: side("a"), "b": lambda: side("b"), "c": lambda: "text"}, seconds=SHORT
    )
    assert found.results == {"a": 1.0, "b": 11.0, "c": None}


def test_time_ends_the_rounds_but_not_before_the_third():
    calls = []
    sides = {name: lambda: (time.sleep(0.01), calls.append(1)) for name in "ab"}
    assert compare(sides, rounds=50, seconds=0.001).rounds == 3
    assert 5 <= compare(sides, rounds=50, steps=1, seconds=0.2).rounds < 50


def test_torch_computes_on_one_thread_meanwhile_and_gets_its_threads_back():
    before, seen = torch.get_num_threads(), set()
    torch.set_num_threads(2)
    try:
        compare({name: lambda: seen.add(torch.get_num_threads()) for name in "ab"}, rounds=1)
        assert seen == {1} and torch.get_num_threads() == 2
        compare(
            {name: lambda: seen.add(torch.get_num_threads()) for name in "ab"},
            rounds=1,
            single=False,
        )
        assert seen == {1, 2}
        with pytest.raises(ZeroDivisionError):
            compare({"a": lambda: None, "b": lambda: 1 / 0})
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("sides, options", [("a", {}), ("ab", {"rounds": 0}), ("ab", {"steps": 0})])
def test_what_cannot_be_compared_is_refused(sides, options):
    with pytest.raises(ValueError, match="at least two sides, one round and one step"):
        compare({name: lambda: None for name in sides}, **options)


def test_the_ratio_is_taken_round_by_round():
    slow_moment = Comparison(
        {"a": (1.0, 10.0, 1.0), "b": (2.0, 20.0, 2.0)}, {"a": "a", "b": "a"}, 1, {}
    )
    assert slow_moment.ratio("a", "b") == Ratio(2.0, 2.0, 2.0)
    times = np.random.default_rng(0).uniform(1, 2, (2, 9))
    found = Comparison(
        {"a": tuple(times[0]), "b": tuple(times[1])}, {"a": "a", "b": "a"}, 1, {}
    ).ratio("b", "a")
    assert np.allclose(
        [found.q1, found.median, found.q3], np.quantile(times[0] / times[1], [0.25, 0.5, 0.75])
    )


@pytest.mark.parametrize(
    "ratio, verdict, words",
    [
        (
            Ratio(1.8, 1.7, 1.9),
            "faster",
            "AMP is 1.80 times as fast as fp32 (quartiles 1.70 to 1.90)",
        ),
        (
            Ratio(0.25, 0.2, 0.5),
            "slower",
            "AMP takes 4.00 times as long as fp32 (quartiles 2.00 to 5.00)",
        ),
        (
            Ratio(1.5, 1.01, 1.9),
            "same",
            "no difference that this run can tell (1.50 times as fast, quartiles 1.01 to 1.90)",
        ),
        (Ratio(1.01, 1.01, 1.01), "same", "no difference"),
        (Ratio(0.99, 0.99, 0.99), "same", "no difference"),
    ],
)
def test_only_quartiles_that_leave_1_behind_make_a_difference(ratio, verdict, words):
    assert ratio.verdict == verdict and words in ratio.tell("AMP", "fp32")
    assert ratio.tell("AMPs", "fp32", plural=True).startswith(
        ("AMPs are ", "AMPs take ", "between AMPs and ")
    )


@pytest.mark.parametrize(
    "against, rounds, verdict",
    [
        (0, 5, "faster"),
        (1, 5, "same"),
        (1, 9, "faster"),
        (3, 15, "faster"),
        (4, 15, "same"),
        (0, 3, "faster"),
    ],
)
def test_rounds_that_disagree_make_no_difference(against, rounds, verdict):
    """What chance gives in less than 7 of 100 runs: 5 of 5 heads, 8 of 9, 12 of 15,
    by the binomial distribution.
    """
    a = (1.0,) * rounds
    b = (0.99,) * against + (1.5,) * (rounds - against)
    assert (
        Comparison({"a": a, "b": b}, {"a": "a", "b": "a"}, 1, {}).ratio("a", "b").verdict == verdict
    )


def test_three_rounds_have_to_differ_by_a_tenth():
    found = Comparison({"a": (1.0,) * 3, "b": (1.05,) * 3}, {"a": "a", "b": "a"}, 1, {})
    assert found.ratio("a", "b").verdict == "same"


def test_a_busy_machine_compares_nothing():
    busy = dataclasses.replace(
        named(narrow_net__fp32=1, narrow_net__AMP=2, wide_net__fp32=4, wide_net__AMP=1), waited=0.4
    )
    found = TooLittleWork(busy, (), (32, 1024), {"fp32": 18, "AMP": 33}, "bf16", False)
    said = str(found)
    assert "too busy to tell: this process waited for a CPU 40% of the time" in said
    assert "times as" not in said and "fix" not in said and "1.00 s" in said
    assert (
        found._repr_html_().count("too busy to tell") == 1 and "times as" not in found._repr_html_()
    )
    assert found.to_dict()["comparison"]["waited"] == 0.4


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


def test_pages_are_counted_on_a_busy_machine_and_their_price_is_not_told():
    heaps = [Heap(Timing((0.02,) * 5, 0.5), pages, 1e-6) for pages in (768.0, 68.0)]
    told = FreedMemory(None, (), *heaps).sentence
    assert (
        "768 new pages a step; told to keep its memory, 68" in told and "too busy to tell" in told
    )
    assert "which take" not in told and "%" not in told.partition("What do they cost?")[0]


def test_an_unknown_side_is_named_with_those_there_are():
    with pytest.raises(KeyError, match="'c' was not timed: choose one of a, b"):
        made_up(a=1, b=2).ratio("a", "c")


def test_a_comparison_shows_itself_and_goes_into_json():
    found = made_up(plain=0.002, other=0.001)
    head, plain, other = str(found).splitlines()
    assert (
        "times as fast" in head
        and "2.00 ms" in plain
        and "2.00" in other
        and other.endswith("plain")
    )
    assert found._repr_html_().count("<tr>") == 3
    assert json.loads(json.dumps(found.to_dict()))["rounds"] == 5


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
    assert figures(number) == text


def test_sentences_begin_with_a_capital_and_end_with_one_stop():
    assert sentence("one", "", "two!", "`x` is three") == "One. Two! `x` is three."


# ── what each experiment counts, and that its sides do the same work ──

QUICK = {
    "too_little_work": causes.too_little_work,
    "no_fast_units": causes.no_fast_units,
    "host_reads": causes.host_reads,
    "odd_sizes": causes.odd_sizes,
    "fp32_island": casts.fp32_island,
    "break_even": casts.break_even,
    "too_many_threads": threads.too_many_threads,
}


@pytest.mark.parametrize("name", QUICK)
def test_an_experiment_speaks_shows_its_numbers_and_leaves_no_trace(name):
    before, random = settings(), torch.get_rng_state()
    found = QUICK[name](seconds=SHORT)
    assert before == settings() and torch.equal(random, torch.get_rng_state())
    assert found.sentence.endswith(".") and (
        found.sentence[0].isupper() or found.sentence[0].isdigit()
    )
    assert (
        found.title in str(found)
        and found.sentence in str(found)
        and "<table>" in found._repr_html_()
    )
    assert json.loads(json.dumps(found.to_dict()))["sentence"] == found.sentence
    losses = [loss for loss in found.comparison.results.values() if loss is not None]
    pairs = (
        zip(losses[::2], losses[1::2], strict=True)
        if name == "too_little_work"
        else [(losses[:1], one) for one in losses]
    )
    for first, other in pairs:  # the same data and weights, in other formats
        assert other == pytest.approx(first if isinstance(first, float) else first[0], rel=1e-3)


def test_amp_launches_more_kernels():
    # Forward: 3 linear, 2 ReLU, 1 loss. Backward: for each linear a product for the weight and a
    #          sum for the bias, for all but
    # the first a product for the input; 2 ReLU; the loss, and the 1 that starts it.
    assert causes.count_kernels(None) == 6 + 3 * 2 + 2 + 2 + 1 + 1
    # AMP casts: the input, 3 weights and 3 biases, the output to fp32 for the loss; back: all of
    # these but the input.
    assert causes.count_kernels(torch.bfloat16) - causes.count_kernels(None) == 8 + 7


def test_reads_are_counted_and_both_loops_log_the_same():
    found = causes.host_reads(seconds=SHORT, steps=7)
    assert found.reads == {"read each step": 14, "read at the end": 1}
    assert found.comparison.results["read each step"] == pytest.approx(
        found.comparison.results["read at the end"], rel=1e-6
    )


def test_a_loop_that_diverges_says_so():
    side = causes._logged(lambda: torch.tensor(1e9), 3, at_once=False)
    with pytest.raises(RuntimeError, match="diverged"):
        side()


def test_padding_with_zeros_leaves_the_product():
    matrix = drawn(127, 127, device=CPU).mul(8).round()  # integers: every sum is exact
    padded = torch.nn.functional.pad(matrix, (0, 1, 0, 1))
    assert torch.equal((padded @ padded)[:127, :127], matrix @ matrix)
    assert not (padded @ padded)[127].any()


def test_the_format_is_the_devices():
    assert low_recipe(CPU).name == "amp_bf16"
    assert [format_name(one) for one in (None, torch.float32, torch.bfloat16, torch.float16)] == [
        "fp32",
        "fp32",
        "bf16",
        "fp16",
    ]


# ── the sentences, on machines that are not at hand ──


@pytest.mark.parametrize(
    "wide, slow, words",
    [
        (
            0.5,
            False,
            "is 2.00 times as fast as fp32 (quartiles 2.00 to 2.00): enough work in each matmul "
            "is the fix",
        ),
        (4.0, True, "more work fixes nothing here, since bf16 has no fast units on this machine"),
        (4.0, False, "the fix would be more work still"),
        (1.0, False, "no difference that this run can tell"),
    ],
)
def test_too_little_work(wide, slow, words):
    times = named(
        narrow_net__fp32=18e-6, narrow_net__AMP=36e-6, wide_net__fp32=1.0, wide_net__AMP=wide
    )
    found = TooLittleWork(times, (), (32, 1024), {"fp32": 18, "AMP": 33}, "bf16", slow)
    assert words in found.sentence
    assert (
        "33 kernels instead of 18" in found.sentence
        and "in fp32 the step comes to 1.00 µs for each of them" in found.sentence
    )


@pytest.mark.parametrize(
    "bf16, fp16, slow, words",
    [
        (0.5, 0.5, (), "Both formats have fast units here."),
        (0.5, 40.0, ("fp16",), "The fix is to use AMP bf16."),
        (3.0, 0.4, ("bf16",), "The fix is to use AMP fp16."),  # a T4
        (
            30.0,
            40.0,
            ("bf16", "fp16"),
            "This machine has fast units for neither format: train in fp32",
        ),
        (
            1.0,
            40.0,
            ("fp16",),
            "no fast units for fp16, and at width 512 the other format does not pay",
        ),
        (1.3, 1.4, (), "at width 512 neither format pays"),
    ],
)
def test_no_fast_units(bf16, fp16, slow, words):
    times = named(fp32=1.0, AMP_bf16=bf16, AMP_fp16=fp16)
    assert words.lower() in NoFastUnits(times, (), 512, slow).sentence.lower()


@pytest.mark.parametrize(
    "device, once, words",
    [
        ("cpu", 1.0, "a CPU has nothing queued"),
        ("cuda", 0.5, "each read waited for the device to finish"),
        ("cuda", 1.0, "the device was never out of work"),
    ],
)
def test_host_reads(device, once, words):
    times = named(read_each_step=1.0, read_at_the_end=once)
    reads = {"read each step": 20, "read at the end": 1}
    assert words.lower() in ReadsEachStep(times, (), 10, reads, device).sentence.lower()


def test_odd_sizes():
    times = {"fp32 127": 1.0, "fp32 128": 1.0, "bf16 127": 3.0, "bf16 128": 1.0}
    told = OddSizes(made_up(**times), (), 128, "bf16").sentence
    assert "In fp32, between size 128 and size 127 there is no difference" in told
    assert "In bf16, size 128 is 3.00 times as fast as size 127" in told and "Pad to 128" in told
    told = OddSizes(made_up(**times | {"bf16 127": 1.0}), (), 128, "bf16").sentence
    assert "padding to a multiple of 8 gains nothing in bf16 here" in told.lower()


def even(saved, cost=1.0, slow=False):
    """Return a BreakEven whose matmuls save so much at each width."""
    times = {}
    for width, one in zip((64, 256, 1024), saved, strict=True):
        times |= {
            f"{width:,}: fp32": 10.0,
            f"{width:,}: bf16": 10.0 - one,
            f"{width:,}: casts": cost,
        }
    return BreakEven(made_up(**times), (), 128, (64, 256, 1024), "bf16", slow)


@pytest.mark.parametrize(
    "saved, width",
    [
        ((2, 3, 4), 64),
        ((-2, 3, 4), 256),
        ((0.5, 0.9, 4), 1024),
        ((2, -3, 4), 1024),
        ((2, 3, 0.5), None),
    ],
)
def test_the_break_even_is_the_width_from_which_on_casting_pays(saved, width):
    assert even(saved).width == width


def test_break_even_in_words():
    assert "With 128 rows, casting pays from width 256 on." in even((-2, 3, 4)).sentence
    assert (
        "At width 64, the matmul loses 2.00 s and the casts take 1.00 s."
        in even((-2, 3, 4)).sentence
    )
    assert (
        "Casting pays at no width here, since bf16 has no fast units"
        in even((-2, -3, -4), slow=True).sentence
    )
    assert "Casting does not pay up to width 1,024 here." in even((-2, -3, -4)).sentence


# ── memory, children, published figures ──


@pytest.mark.slow
def test_freed_memory_counts_in_two_processes_or_says_why_not():
    found = memory.freed_memory(seconds=0.1)
    assert json.loads(json.dumps(found.to_dict()))["sentence"] == found.sentence
    if sys.platform.startswith("linux"):
        assert found.error == "" and found.usual.pages >= 0 and found.kept.seconds_per_page >= 0
        assert "new pages a step" in found.sentence


def test_freed_memory_in_words():
    usual, kept = (Heap(Timing((0.02,)), pages, 1e-6) for pages in (2000, 0))
    told = FreedMemory(None, (), usual, kept).sentence
    assert (
        "2,000 new pages a step, which take 2.00 ms of its 20.0 ms, or 10%; told to keep its "
        "memory, 0, or 0%" in told
    )


def test_freed_memory_without_glibc_or_without_processes(monkeypatch):
    def fails(code, **_):
        raise ChildError("a new process could not be started: no memory")

    monkeypatch.setattr(memory, "run_python", fails)
    monkeypatch.setattr(sys, "platform", "linux")
    assert (
        memory.freed_memory().sentence
        == "This cannot be shown here: a new process could not be started: no memory."
    )
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "glibc" in memory.freed_memory().sentence


def test_a_child_returns_its_last_line_or_its_last_error():
    assert run_python("print('one'); print(6 * 7)") == "42"
    assert (
        run_python("import os; print(os.environ['X'])", environment={**os.environ, "X": "y"}) == "y"
    )
    with pytest.raises(ChildError, match=r"^ValueError: no$"):
        run_python("raise ValueError('no')")
    with pytest.raises(ChildError, match="exit code 3"):
        run_python("import os; os._exit(3)")
    with pytest.raises(ChildError, match="exit code 0"):
        run_python("pass")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="process groups are POSIX's")
@pytest.mark.parametrize(
    "code, seconds", [("print(open('{}').read()); time.sleep(60)", 1.5), ("print('done')", 30)]
)
def test_what_a_child_started_ends_with_it(code, seconds, tmp_path):
    path = tmp_path / "pid"
    start = (
        f"import subprocess, time; p = subprocess.Popen(['sleep', '60']); open({str(path)!r}, "
        f"'w').write(str(p.pid)); "
    )
    try:
        run_python(start + code.format(path), seconds=seconds)
    except ChildError as error:
        assert "it was not done after 2 s" in str(error)
    ends = time.monotonic() + 5
    while time.monotonic() < ends and is_running(int(path.read_text())):
        time.sleep(0.02)
    assert not is_running(int(path.read_text()))


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return (
                stat.read().rpartition(")")[2].split()[0] != "Z"
            )  # nobody may be there to collect an orphan
    except OSError:
        return False


@pytest.mark.parametrize("one", PUBLISHED.values(), ids=PUBLISHED)
def test_a_published_figure_names_its_source(one):
    assert one.what[0].isupper() and one.source and not one.what.endswith(".")
