"""`BlockExplorer` without a browser: what it shows is what `quantize` makes of the row,
and each control moves it.
"""

import random
import re

import pytest
import torch

from amp_course.bits import FP4_E2M1, FP8_E5M2
from amp_course.frontiers import MXFP4, BlockFormat, quantize
from amp_course.frontiers.block_errors import spread, weight_row
from amp_course.frontiers.panel import _SCALES, ELEMENTS, BlockExplorer


@pytest.fixture(scope="module")
def made():
    return BlockExplorer()


@pytest.fixture
def panel(made):
    made.size.value, made.element.value, made.rounding.value = 32, FP4_E2M1, "nearest"
    made.scale.value, made.place.value, made.outlier.value = "E8M0, rounded down", 44, 20.0
    return made


def verdict(panel):
    return re.sub(r"<[^>]+>", "", re.search(r'<div role="status"[^>]*>(.*?)</div>', panel.html)[1])


def cells(panel, first):
    """Return the texts of a row of the table, found by how its first cell begins."""
    for row in re.findall(r"<tr>(.*?)</tr>", panel.html):
        texts = [re.sub(r"<[^>]+>", "", cell).strip() for cell in row.split("</td>")]
        if texts[0].startswith(first):
            return texts[1:-1]
    raise LookupError(first)


def own_row(place, times):
    values = torch.tensor(weight_row(), dtype=torch.float64)
    others = torch.cat([values[:place], values[place + 1 :]]).numpy()
    values[place] = times * others.std()
    return values


@pytest.mark.parametrize("scale", _SCALES)
@pytest.mark.parametrize("element", ELEMENTS, ids=lambda fmt: fmt.name)
def test_what_is_shown_is_what_quantize_returns(panel, element, scale):
    panel.element.value, panel.scale.value = element, scale
    for size, times, place in ((4, 1.0, 0), (16, 1000.0, 63), (64, 20.0, 0)):
        panel.size.value, panel.outlier.value, panel.place.value = size, times, place
        x = own_row(place, times)
        fmt = BlockFormat("own", element, size, **_SCALES[scale])
        got, whole = quantize(x, fmt), quantize(x, fmt.with_size(64))
        sides = [got] if size == 64 else [got, whole]
        kept = torch.arange(64) != place
        assert cells(panel, "became 0") == [f"{int((one == 0).sum())} of 64" for one in sides]
        assert cells(panel, "relative error") == [
            f"{100 * float((one - x).norm() / x.norm()):.3g} %" for one in sides
        ]
        without = [float((one - x)[kept].norm() / x[kept].norm()) for one in sides]
        assert cells(panel, "… without") == [f"{100 * one:.3g} %" for one in without]
        assert cells(panel, "bits")[0] == f"{element.bits + 8 / size:.3g}"
        assert "nan" not in panel.html and "inf" not in panel.html


def test_the_verdict_counts_the_neighbours_and_compares(panel):
    lost = {}
    for size, block in ((32, slice(32, 64)), (8, slice(40, 48))):
        rounded = quantize(own_row(44, 20.0), MXFP4.with_size(size))
        lost[size] = int((rounded[block] == 0).sum())
    assert verdict(panel) == (
        f"The outlier sets the scale of 32 numbers: {lost[32]} of its 31 neighbours became 0. With "
        f"blocks of 8, {lost[8]} of the 7 would. The scale is too small for the outlier itself: "
        "20 σ is clipped to 16.7 σ."
    )
    panel.size.value = 8
    assert "With blocks of 4, " in verdict(panel)
    panel.size.value = 4
    assert "With E4M3 elements, none of the 3 would." in verdict(panel)
    panel.size.value, panel.outlier.value = 32, 1000.0
    assert "all of its 31 neighbours became 0. With blocks of 8, all 7 would." in verdict(panel)
    panel.element.value = FP8_E5M2
    words = "none of its 31 neighbours became 0. With E2M1 elements, all 31 would."
    assert words in verdict(panel)
    panel.outlier.value = 1.0
    assert verdict(panel).startswith("At 1 σ, the outlier is smaller than another number of its")
    assert "would" not in verdict(panel)


def test_the_same_choice_shows_the_same_and_leaves_global_generators_alone(panel):
    state, own = torch.get_rng_state(), random.getstate()
    panel.rounding.value = "stochastic"
    first = panel.html
    panel.place.value = 5
    panel.place.value = 44
    assert panel.html == first
    assert torch.get_rng_state().equal(state) and random.getstate() == own


def test_numbers_of_ones_own():
    own = torch.randn(5, 20, generator=torch.Generator().manual_seed(2)).bfloat16().requires_grad_()
    panel = BlockExplorer(own)
    place = panel.place.value
    assert panel.row.values[:place] == own.detach().reshape(-1)[:place].double().tolist()
    assert len(panel.row.values) == 64
    small = BlockExplorer(torch.linspace(-1, 1, 10))
    assert small.size.options == [4, 8, 10]
    for size in small.size.options:
        small.size.value = size
        assert "became 0" in verdict(small)


@pytest.mark.parametrize(
    "wrong, error, words",
    [
        ([1.0] * 64, TypeError, "a list: pass a tensor"),
        (torch.arange(64), TypeError, "a tensor of torch.int64"),
        (torch.ones(7), ValueError, "7 numbers: pass 8 or more"),
        (torch.ones(64), ValueError, "nearly all numbers are equal"),
        (torch.tensor([1.0, *[0.0] * 63]), ValueError, "nearly all numbers are equal"),
        (torch.full((64,), torch.inf), ValueError, "inf or NaN"),
    ],
)
def test_what_is_not_a_row_is_refused_with_a_reason(wrong, error, words):
    with pytest.raises(error, match=words):
        BlockExplorer(wrong)


def test_the_chapters_questions_have_the_answers_that_it_gives(panel):
    panel.outlier.value = 100.0
    assert panel.row.zeroed_neighbours(panel.place.value) == 31
    panel.size.value = 8
    assert panel.row.zeroed_neighbours(panel.place.value) == 7
    panel.size.value, panel.outlier.value, found = 32, 20.0, []
    for rounding in ("down", "up"):
        panel.scale.value = f"E8M0, rounded {rounding}"
        became = panel.row.rounded[panel.place.value] / spread(weight_row(), panel.place.value)
        found.append((round(became, 1), panel.row.zeroed_neighbours(panel.place.value)))
    assert found == [(16.7, 14), (22.3, 26)]
    panel.outlier.value, panel.scale.value, keep = 1000.0, "E8M0, rounded down", []
    for name, element in zip(panel.element.texts, panel.element.options, strict=True):
        panel.element.value = element
        keep += [] if panel.row.zeroed_neighbours(panel.place.value) else [name]
    assert keep == ["E5M2", "E4M3"]
