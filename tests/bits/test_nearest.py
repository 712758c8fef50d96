"""What becomes of exact numbers, against torch's, numpy's and ml_dtypes' casts,
and against exact fractions.
"""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_course.bits import formats as f
from amp_course.bits.formats import FORMATS
from amp_course.bits.nearest import is_finite, nearest, pattern_for, step
from amp_course.bits.scalar import decode, encode

ID = {"ids": lambda fmt: fmt.name}


@given(st.fractions(), st.sampled_from(FORMATS))
def test_error_and_relative_error_are_exact(exact, fmt):
    found = nearest(exact, fmt)
    if is_finite(found.value):
        assert found.error == Fraction(decode(found.pattern, fmt)) - exact
        assert found.relative == (abs(found.error) / abs(exact) if exact else None)
        if found.outcome in ("up", "down"):
            assert (found.error > 0) == (found.outcome == "up")


@given(st.sampled_from([f.FP16, f.BF16, f.FP8_E5M2, f.FP4_E2M1]), st.data())
def test_a_tie_is_half_way_and_goes_to_the_even_pattern(fmt, data):
    pattern = data.draw(st.integers(0, fmt.max_pattern - 1))
    middle = (Fraction(decode(pattern, fmt)) + Fraction(decode(pattern + 1, fmt))) / 2
    sign = data.draw(st.sampled_from([1, -1]))
    found = nearest(sign * middle, fmt)
    assert found.tie and found.pattern % 2 == 0
    assert not nearest(sign * middle * Fraction(1001, 1000), fmt).tie


@pytest.mark.parametrize(
    ("exact", "fmt", "outcome", "value"),
    [
        (Fraction(2048), f.FP16, "exact", 2048),
        (Fraction(2049), f.FP16, "down", 2048),
        (Fraction(2051), f.FP16, "up", 2052),
        (Fraction(-2049), f.FP16, "up", -2048),
        (Fraction(65520), f.FP16, "infinity", math.inf),
        (Fraction(65519), f.FP16, "down", 65504),
        (Fraction(1, 10**8), f.FP16, "zero", 0),
        (Fraction(-(10**9)), f.FP8_E4M3, "largest", -448),
        (math.inf, f.FP8_E4M3, "largest", 448),
        (math.inf, f.FP16, "exact", math.inf),
        (-0.0, f.FP16, "exact", 0),
    ],
)
def test_outcomes(exact, fmt, outcome, value):
    found = nearest(exact, fmt)
    assert (found.outcome, found.value) == (outcome, value)


def test_nan_is_kept_or_has_no_pattern():
    assert nearest(math.nan, f.FP8_E4M3).outcome == "exact"
    none = nearest(math.nan, f.FP4_E2M1)
    assert none.outcome == "none" and none.pattern is None and none.error is None
    with pytest.raises(ValueError, match=r"fp4 E2M1 has no NaN.*choose a format with NaN"):
        pattern_for(math.nan, f.FP4_E2M1)


@pytest.mark.parametrize("fmt", [f.FP8_E5M2, f.FP8_E4M3, f.FP4_E2M1], **ID)
def test_steps_visit_every_value_in_order_and_end_with_a_reason(fmt):
    low = encode(-math.inf, fmt)
    values, pattern = [decode(low, fmt)], low
    while True:
        try:
            pattern = step(pattern, fmt, up=True)
        except ValueError as error:
            assert "step the other way" in str(error)
            break
        values.append(decode(pattern, fmt))
    assert values == sorted(set(values))
    everything = {decode(pattern, fmt) for pattern in range(2**fmt.bits)}
    assert set(values) == {value for value in everything if value == value}
    with pytest.raises(ValueError, match="step the other way"):
        step(low, fmt, up=False)


def test_nan_has_no_step():
    with pytest.raises(ValueError, match="NaN is neither above nor below"):
        step(0x7E00, f.FP16, up=True)
