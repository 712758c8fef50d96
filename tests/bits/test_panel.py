"""BitExplorer without a browser: its controls drive it, it keeps the exact number,
and it never throws.
"""

import math
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amp_course.bits.formats import FORMATS, FP4_E2M1, FP8_E4M3, FP16, FP64
from amp_course.bits.panel import OWN, BitExplorer
from amp_course.bits.scalar import decode, encode
from amp_course.kit.panel_widgets import widget_of

SOME = [FP64, FP16, FP8_E4M3, FP4_E2M1]


@pytest.fixture
def panel():
    return BitExplorer()


def state(panel):
    return (
        panel.pattern,
        panel.fmt,
        panel.exact,
        panel.bits.value,
        panel.html,
    )


def assert_consistent(panel):
    assert panel.pattern == panel.bits.value
    assert len(panel.bits) == panel.fmt.bits and 0 <= panel.pattern < 2**panel.fmt.bits


def test_starts_with_a_tenth_in_fp16(panel):
    assert (panel.fmt, panel.exact, panel.pattern) == (FP16, Fraction(1, 10), 0x2E66)
    assert panel.value == 0.0999755859375 and "0.0999755859375" in panel.html
    assert "0.1 is not in fp16" in panel.message
    assert_consistent(panel)


def test_typing_a_number_rounds_it_and_a_pattern_sets_the_bits(panel):
    panel.text.value = "2049"
    assert (panel.value, panel.pattern, panel.exact) == (2048, 0x6800, 2049)
    assert "2049 is not in fp16: rounded to <b>2048</b>, 1 too small" in panel.message
    panel.text.value = "0xFBFF"
    assert panel.value == -65504 == panel.exact
    assert_consistent(panel)


def test_a_change_of_format_rounds_the_typed_number_not_the_rounded_one(panel):
    panel.text.value = "2049"
    panel.format.value = "bf16"
    assert panel.value == 2048 and panel.exact == 2049
    panel.format.value = "fp32"
    assert panel.value == 2049 and "2049 is in fp32 exactly" in panel.message
    panel.format.value = "fp16"
    assert "2049 is not in fp16: rounded to <b>2048</b>" in panel.message
    assert_consistent(panel)


@pytest.mark.parametrize("fmt", SOME, ids=lambda fmt: fmt.name)
def test_every_bit_toggles(fmt, panel):
    panel.format.value = fmt.name
    for weight in range(fmt.bits):
        before = panel.pattern
        panel.bits.toggle(weight)
        assert panel.pattern == before ^ (1 << weight)
        value = decode(panel.pattern, fmt)
        assert panel.value == value or (math.isnan(value) and math.isnan(panel.value))
        assert panel.message == ""
        assert_consistent(panel)


def test_after_a_toggle_the_decoded_number_is_the_exact_one(panel):
    panel.text.value = "2049"
    panel.bits.toggle(15)
    assert panel.exact == -2048 and panel.text.value == "-2048"
    panel.format.value = "fp32"
    assert panel.value == -2048


def test_the_sign_of_zero_stays(panel):
    panel.text.value = "0"
    panel.bits.toggle(15)
    assert panel.text.value == "-0" and "−0" in panel.html
    panel.format.value = "bf16"
    assert panel.pattern == 0x8000
    panel.text.value = "-0.0"
    assert math.copysign(1, panel.value) == -1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1,5",
        "0x10000",
        "<script>alert(1)</script>",
    ],
)
def test_what_cannot_be_read_changes_nothing_and_is_told(text, panel):
    panel.text.value = "2049"
    before = state(panel)
    panel.text.value = text
    assert state(panel) == before
    assert "Nothing changed." in panel.message and panel.text.value == text
    assert "<script" not in panel.message
    panel.text.value = "1"
    assert "Nothing changed." not in panel.message


def test_numbers_past_all_formats(panel):
    panel.text.value = "1e999"
    assert panel.value == math.inf and "past the largest number of fp16, 65504" in panel.message
    panel.format.value = "fp4 E2M1"
    assert panel.value == 6
    panel.text.value = "9" * 400
    assert panel.value == 6 and panel.exact == 10**400 - 1
    panel.text.value = "-inf"
    assert panel.value == -6


def test_nan_in_a_format_without_nan_is_refused_and_the_format_goes_back(panel):
    panel.text.value = "nan"
    before = state(panel)
    panel.format.value = "fp6 E3M2"
    assert state(panel) == before and panel.format.value == "fp16"
    assert "fp6 E3M2 has no NaN" in panel.message
    panel.text.value = "1"
    panel.format.value = "fp6 E3M2"
    for way in (lambda: panel.picks["NaN"].click(), lambda: setattr(panel.text, "value", "nan")):
        way()
        assert panel.value == 1 and "fp6 E3M2 has no NaN" in panel.message


def test_own_widths(panel):
    assert all(one.hidden for one in panel.own)
    panel.text.value = "300"
    panel.format.value = OWN
    assert not any(one.hidden for one in panel.own) and panel.fmt.name == "E4M3"
    assert panel.value == math.inf
    panel.specials.value = "fn"
    assert panel.value == 288
    panel.exponent_bits.value, panel.significand_bits.value = 5, 10
    panel.specials.value = "ieee"
    assert panel.pattern == encode(300.0, FP16) and "E5M10" in panel.html
    panel.format.value = "fp16"
    assert all(one.hidden for one in panel.own) and panel.value == 300


@pytest.mark.parametrize(
    ("exponent_bits", "significand_bits", "specials"),
    [
        (0, 3, "ieee"),
        (4, 10**12, "ieee"),
        (4, -1, "finite"),
        (11, 52, "fn"),
    ],
)
def test_own_widths_out_of_range_are_told(exponent_bits, significand_bits, specials, panel):
    panel.format.value = OWN
    panel.specials.value = specials
    panel.exponent_bits.value = exponent_bits
    panel.significand_bits.value = significand_bits
    assert "Nothing changed." in panel.message and "take" in panel.message
    assert_consistent(panel)
    panel.exponent_bits.value, panel.significand_bits.value = 3, 2
    assert panel.fmt.name == "E3M2" and "Nothing changed." not in panel.message


def test_previous_and_next(panel):
    panel.text.value = "1"
    panel.up.click()
    assert panel.value == 1 + FP16.eps
    panel.down.click()
    panel.down.click()
    assert panel.value == 1 - FP16.eps / 2
    panel.picks["smallest"].click()
    panel.down.click()
    panel.down.click()
    assert panel.value == -FP16.smallest_subnormal
    panel.picks["inf"].click()
    before = state(panel)
    panel.up.click()
    assert state(panel) == before and "step the other way" in panel.message
    panel.picks["NaN"].click()
    panel.down.click()
    assert "NaN is neither above nor below" in panel.message


@pytest.mark.parametrize("fmt", SOME, ids=lambda fmt: fmt.name)
def test_quick_picks(fmt, panel):
    panel.format.value = fmt.name
    expected = {
        "1": 1,
        "largest": fmt.max,
        "smallest normal": fmt.smallest_normal,
        "smallest": fmt.smallest_subnormal,
    }
    for name, value in expected.items():
        panel.picks[name].click()
        assert panel.value == value == float(panel.exact)
        text = panel.text.value
        panel.picks["0.1"].click()
        panel.text.value = text  # the text in the field can be typed again
        assert panel.value == value
    panel.picks["0.1"].click()
    assert panel.exact == Fraction(1, 10) and panel.text.value == "0.1"
    panel.picks["inf"].click()
    assert panel.value == (math.inf if fmt.specials == "ieee" else fmt.max)


def test_quick_picks_type_what_a_person_would(panel):
    """Not 0.00006103515625."""
    texts = {}
    for name in ("largest", "smallest normal", "smallest"):
        panel.picks[name].click()
        texts[name] = panel.text.value
    assert texts == {"largest": "65504", "smallest normal": "2^-14", "smallest": "2^-24"}
    panel.text.value = "0.1"
    panel.up.click()
    assert panel.text.value == "0.10003662109375"  # no short way to write this one
    panel.text.value = "-1.5"
    panel.up.click()
    panel.down.click()
    assert panel.text.value == "-1.5"


def test_bits_have_names_and_places(panel):
    names = {weight: name for *_, group in panel.bits.groups for weight, name in group.items()}
    assert list(names) == list(range(15, -1, -1))
    assert names[15] == "bit 15: sign" and names[14] == "bit 14: exponent, counts 16"
    assert names[9] == "bit 9: significand, counts 2⁻¹"
    assert names[0] == "bit 0: significand, counts 2⁻¹⁰"
    panel.format.value = "fp8 E4M3"
    assert [head for _, head, _ in panel.bits.groups] == [
        "<b>s</b> sign",
        "<b>e</b> exponent, 4 bits",
        "<b>m</b> significand, 3 bits",
    ]


def widgets_of(box):
    yield box
    for child in getattr(box, "children", ()):
        yield from widgets_of(child)


def test_buttons_are_made_once_and_a_toggle_sends_only_what_changed(panel):
    box = widget_of(panel)
    field = next(one for one in widgets_of(box) if "amp-field" in one._dom_classes)
    first = [one for one in widgets_of(field) if hasattr(one, "icon")]
    assert len(first) == 16
    panel.format.value = "fp64"
    wide = [one for one in widgets_of(field) if hasattr(one, "icon")]
    assert len(wide) == 64 and set(first) < set(wide)
    panel.text.value = "1.5"
    sent = []
    for bit in wide:
        bit.observe(lambda change: sent.append(change["owner"].description), "value")
    widget_of(panel)  # another widget of the same panel
    panel.bits.toggle(51)
    assert sent == ["bit 51: significand, counts 2⁻¹"]


events = st.one_of(
    st.tuples(
        st.just("text"),
        st.one_of(st.text(max_size=12), st.floats().map(repr), st.sampled_from(["0xFF", "nan"])),
    ),
    st.tuples(st.just("format"), st.sampled_from([*(fmt.name for fmt in FORMATS), OWN])),
    st.tuples(st.just("bit"), st.integers(0, 63)),
    st.tuples(
        st.just("pick"),
        st.sampled_from(["1", "0.1", "largest", "smallest normal", "smallest", "inf", "NaN"]),
    ),
    st.tuples(st.just("widths"), st.tuples(st.integers(-1, 13), st.integers(-1, 54))),
    st.tuples(st.just("specials"), st.sampled_from(["ieee", "fn", "finite"])),
    st.tuples(st.just("step"), st.booleans()),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(events, max_size=12))
def test_no_sequence_of_events_throws_or_contradicts_itself(sequence):
    panel = BitExplorer()
    for name, what in sequence:
        if name == "text":
            panel.text.value = what
        elif name == "format":
            panel.format.value = what
        elif name == "bit":
            panel.bits.toggle(what % len(panel.bits))
        elif name == "pick":
            panel.picks[what].click()
        elif name == "widths":
            panel.exponent_bits.value, panel.significand_bits.value = what
        elif name == "specials":
            panel.specials.value = what
        else:
            (panel.up if what else panel.down).click()
        assert_consistent(panel)
        assert panel.exact != panel.exact or encode(panel.exact, panel.fmt) == panel.pattern
