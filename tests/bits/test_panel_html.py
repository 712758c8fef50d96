"""The panel's HTML: it says what the domain says, for every kind of pattern,
and holds no markup that was typed.
"""

import re
from fractions import Fraction
from functools import partial
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_course.bits import formats as f
from amp_course.bits.formats import FORMATS, FloatFormat
from amp_course.bits.nearest import exact_value, nearest
from amp_course.bits.panel_html import (
    explorer_view,
    formula,
    headline,
    number_line,
    reading,
    rounding_note,
    table,
)
from amp_course.bits.parse import read


def plain(html):
    """The text alone, cells separated by |."""
    return re.sub(r"\s*\|[\s|]*", "|", re.sub(r"<[^>]*>", "|", html))


def rows_of(html):
    return [plain(row).strip("|").split("|") for row in re.findall(r"<tr.*?</tr>", html)]


def table_of(exact, fmt=f.FP32):
    return {row[0]: row[1:] for row in rows_of(table(exact, fmt))[1:]}


def test_table_rounds_the_exact_number_into_every_format():
    found = table_of(Fraction(2049), f.FP16)
    assert found["fp64"] == ["0x40A0020000000000", "2049", "0", "0", "exact"]
    assert found["▸ fp16"] == ["0x6800", "2048", "−1", "0.0488 %", "tie"]
    assert found["fp8 E5M2"] == ["0x68", "2048", "−1", "0.0488 %"]
    assert found["fp8 E4M3"] == ["0x7E", "448", "−1601", "78.1 %", "overflow"]
    assert found["fp4 E2M1"] == ["0x7", "6", "−2043", "99.7 %", "overflow"]
    assert len(found) == len(FORMATS)


def test_table_of_what_is_lost_subnormal_or_no_number():
    lost = table_of(Fraction(1, 10**8))
    assert lost["fp16"] == ["0x0000", "0", "−10⁻⁸", "100 %", "lost"]
    smallest = table_of(Fraction(1, 2**24))
    assert smallest["fp16"] == ["0x0001", "2⁻²⁴ ≈ 5.9605 × 10⁻⁸", "0", "0", "exact, subnormal"]
    nan = table_of(float("nan"))
    assert nan["fp16"] == ["0x7E00", "NaN", "–", "–", "exact"]
    assert nan["fp4 E2M1"] == ["–", "–", "–", "–", "no NaN"]
    huge = table_of(Fraction(10) ** 999)["fp64"]
    assert huge == ["0x7FF0000000000000", "inf", "–", "–", "overflow"]


def test_table_adds_a_format_of_one_s_own():
    names = list(table_of(Fraction(1), FloatFormat.of(4, 5)))
    assert names[-1] == "▸ E4M5" and len(names) == len(FORMATS) + 1


def test_formula_of_normal_and_subnormal_numbers():
    rows = rows_of(formula(0x2E66, f.FP16))
    assert rows[1] == ["bits", "0", "01011 = 11", "1001100110 = 614"]
    assert rows[2] == ["formula", "(−1)", "0", "·", "2", "11 − 15", "·", "(1 + 614/1024)"]
    assert rows[3] == ["number", "+1", "·", "2", "−4", "·", "1.599609375", "= 0.0999755859375"]
    rows = rows_of(formula(0x8001, f.FP16))
    assert rows[2] == ["formula", "(−1)", "1", "·", "2", "1 − 15", "·", "(0 + 1/1024)"]
    assert rows[3][1:4] == ["−1", "·", "2"]
    assert "read as 1" in reading(0x8001, f.FP16) and "fewer bits" in reading(0x8001, f.FP16)


@given(st.sampled_from(FORMATS), st.data())
def test_formula_multiplies_to_the_value(fmt, data):
    pattern = data.draw(st.integers(0, fmt.max_pattern))
    pattern += data.draw(st.sampled_from([0, 2 ** (fmt.bits - 1)]))
    cells = rows_of(formula(pattern, fmt))[2]
    field, bias = cells[5].split(" − ")
    fraction = re.fullmatch(r"\((\d) \+ (\d+)/(\d+)\)?", cells[7])
    hidden, top, under = fraction.groups()
    under = int(under) if len(cells) == 8 else 2 ** int(cells[8])
    number = Fraction(2) ** (int(field) - int(bias)) * (int(hidden) + Fraction(int(top), under))
    assert (-1) ** int(cells[2]) * number == exact_value(pattern, fmt)


def test_specials_are_explained():
    assert "in size is 65504; anything from 65520 on becomes infinity" in reading(0x7C00, f.FP16)
    assert "not even itself" in reading(0x7E00, f.FP16)
    assert "Every other pattern is a number" in reading(0x7F, f.FP8_E4M3)


def test_headline():
    smallest = "2⁻²⁴ ≈ 5.9605 × 10⁻⁸|class|subnormal|hex|0x0001|ulp|2⁻²⁴"
    assert plain(headline(0x0001, f.FP16)).strip("|").startswith(smallest)
    tenth = plain(headline(read("0.1", f.FP64).pattern, f.FP64))
    assert "in full|0.1000000000000000055511151231257827021181583404541015625" in tenth
    assert "ulp" not in headline(0x7C00, f.FP16)


def test_number_line_shows_neighbours_and_the_exact_number():
    line = plain(number_line(0x6800, f.FP16, Fraction(2049)))
    for words in ("2047|previous", "2050|next", "2049|▼", "everything that fp16 rounds to 2048"):
        assert words in line
    assert "▼" not in plain(number_line(0x6800, f.FP16, Fraction(2048)))
    assert "inf|next" in plain(number_line(0x7BFF, f.FP16, Fraction(65504)))
    largest = plain(number_line(0x7, f.FP4_E2M1, Fraction(1000)))
    assert "1000, far off|►" in largest and "next" not in largest
    assert "−1000, far off|◄" in plain(number_line(0xF, f.FP4_E2M1, Fraction(-1000)))
    assert number_line(0x7C00, f.FP16, float("inf")) == ""


def shaded(svg):
    """Where the band of all that rounds to the value begins and ends, in pixels."""
    x, width = map(
        float, re.search(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', svg).groups()
    )
    return x, x + width


def test_the_band_ends_half_way_to_the_neighbours_or_never_where_there_is_no_inf():
    near, middle, half = partial(pytest.approx, abs=0.2), 280, 195 / 2
    assert shaded(number_line(0x3C01, f.FP16, Fraction(1))) == near((middle - half, middle + half))
    below_1 = near((middle - half / 2, middle + half))  # the gap below 1 is half the one above
    assert shaded(number_line(0x3C00, f.FP16, Fraction(1))) == below_1
    assert shaded(number_line(0x7, f.FP4_E2M1, Fraction(6))) == near((middle - half, 550))
    assert shaded(number_line(0xFE, f.FP8_E4M3, Fraction(-448))) == near((10, middle + half))


@pytest.mark.parametrize(
    ("text", "fmt", "note"),
    [
        ("2048", f.FP16, "2048 is in fp16 exactly."),
        (
            "2049",
            f.FP16,
            "2049 is not in fp16: rounded to <b>2048</b>, 1 too small (halfway between two "
            "numbers: the even pattern wins).",
        ),
        ("-2051.5", f.FP16, "−2051.5 is not in fp16: rounded to <b>−2052</b>, 0.5 too small."),
        (
            "-inf",
            f.FP6_E2M3,
            "−inf is past the largest number of fp6 E2M3, −7.5, and it has no inf: it becomes "
            "<b>−7.5</b>.",
        ),
        (
            "1e-8",
            f.FP16,
            "10⁻⁸ is too close to 0 for fp16, whose smallest number is 2⁻²⁴: rounded to <b>0</b>.",
        ),
        ("nan", f.FP16, "fp16 has NaN."),
    ],
)
def test_notes(text, fmt, note):
    assert rounding_note(nearest(read(text, fmt).exact, fmt)) == note


class Balanced(HTMLParser):
    """Raises unless each element that opens closes, in order."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


OWN = [
    FloatFormat.of(2, 1),
    FloatFormat.of(1, 0, "finite"),
    FloatFormat.of(2, 0, "fn"),
    FloatFormat.of(11, 52),
]


@pytest.mark.parametrize("fmt", [f.FP6_E3M2, f.FP4_E2M1, *OWN[:3]], ids=lambda fmt: fmt.name)
def test_every_pattern_of_small_formats_gives_a_whole_view(fmt):
    for pattern in range(2**fmt.bits):
        html = explorer_view(pattern, fmt, exact_value(pattern, fmt))
        parser = Balanced()
        parser.feed(html)
        assert parser.open == []


@settings(max_examples=40)
@given(st.sampled_from([*FORMATS, *OWN]), st.fractions())
def test_every_number_gives_a_view(fmt, exact):
    html = explorer_view(nearest(exact, fmt).pattern, fmt, exact)
    assert html.startswith("<div") and "e-" not in plain(html) and "e+" not in plain(html)
