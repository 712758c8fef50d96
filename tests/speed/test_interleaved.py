"""Two sides timed in turn, and the arithmetic on made-up times."""

import dataclasses
import time
from collections import Counter

import numpy as np
import pytest
import torch

from amp_course.kit import measure
from amp_course.speed.experiments.finding import Finding
from amp_course.speed.experiments.interleaved import (
    Comparison,
    Ratio,
    compare,
    number_text,
    sentences,
)
from tests.speed.made_up import made_up


def rounds(a, b):
    return Comparison({"a": tuple(a), "b": tuple(b)}, {"a": "a", "b": "a"}, {})


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
