"""The panel without a browser: its controls drive it, bad input is told in place,
and it is quick.
"""

import base64
import io
import re

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image

from amp_course.bits import BF16, FORMATS, FP8_E4M3, FP16
from amp_course.positions.panel import CollisionExplorer, base_number, whole_number
from amp_course.positions.panel_html import collision_view, id_text, map_uri
from amp_course.positions.sharing import share


@pytest.fixture
def panel():
    return CollisionExplorer()


def text_of(panel):
    return re.sub("<[^>]+>", "", panel.html)


def test_it_opens_on_bf16_with_512_tokens(panel):
    assert "385 ids for 512 tokens" in text_of(panel)
    assert "first collision at token 257" in text_of(
        panel
    ) and "at most 3 tokens share one id" in text_of(panel)


def test_controls_change_the_view(panel):
    panel.format.value = FP16
    assert "512 ids for 512 tokens" in text_of(
        panel
    ) and "the first would be at token 2,049" in text_of(panel)
    assert "the maps are equal" in text_of(panel)
    panel.length.value = "2^17"
    assert "7,169 ids for 131,072 tokens" in text_of(
        panel
    ) and "inf from token 65,520 on" in text_of(panel)
    assert "Grey: an id is inf" in text_of(panel)
    panel.format.value, panel.length.value = BF16, "1000"
    before = panel.html
    panel.base.value = "500"
    middle = panel.html
    panel.head_size.value = "8"
    assert len({before, middle, panel.html}) == 3 and panel.shown.head_size == 8


def test_half_and_double(panel):
    panel.double.click()
    assert panel.length.value == "1024" and panel.shown.n == 1024
    panel.halve.click()
    panel.halve.click()
    assert panel.shown.n == 256
    panel.length.value = "1"
    panel.halve.click()
    assert panel.shown.n == 1
    panel.length.value = "2^40"
    panel.double.click()
    assert panel.shown.n == 2**40


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("-5", "too small for a context length: type 1 or more"),
        ("0", "too small"),
        ("1000.5", "tokens come in whole numbers. Type 1000, for example"),
        ("1/3", "whole numbers"),
        ("many", "type a number such as 4096"),
        ("", "The field is empty"),
        ("nan", "is not a context length"),
        ("-inf", "is not a context length"),
        ("1e999", "too large for a context length"),
        ("2^99999", "is not a context length"),
        ("9" * 400, "is not a context length"),
        ("1099511627777", "type 1099511627776 or less"),
        ("0x40", "is not a context length"),
        ("<b>512</b>", "&lt;b&gt;512"),
    ],
)
def test_bad_lengths_are_told_and_nothing_changes(panel, typed, words):
    before = panel.html
    panel.length.value = typed
    assert words in panel.message and "Nothing changed" in panel.message
    assert panel.html == before and panel.shown.n == 512
    panel.length.value = "1,024"
    assert panel.message == "" and panel.shown.n == 1024


@pytest.mark.parametrize("field", ["length", "head_size"])
@pytest.mark.parametrize(
    "typed",
    ["1/2", "2^-1", "0.5", "1/3", "-2.5", "1000.5", "99999999999999.5", "63.5", "1e-300", "1e3.5"],
)
def test_the_number_that_a_hint_suggests_is_accepted(panel, field, typed):
    control = getattr(panel, field)
    control.value = typed
    told = panel.message
    suggested = re.search(r"(?:Type|such as) ([0-9]+)", told)[1]
    control.value = suggested
    assert panel.message == "", (told, panel.message)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("63", "RoPE needs an even head size"),
        ("64.5", "whole numbers"),
        ("0", "too small"),
        ("-64", "too small"),
        ("100000", "1024 or less"),
        ("wide", "is not a head size"),
    ],
)
def test_bad_head_sizes_are_told(panel, typed, words):
    panel.head_size.value = typed
    assert words in panel.message and panel.shown.head_size == 64


EVIL = "<img src=x onerror=alert(1)>"


@pytest.mark.parametrize("field", ["length", "base", "head_size"])
def test_typed_markup_stays_text(panel, field):
    for typed in (EVIL, "512" + EVIL, "2^" + EVIL):
        getattr(panel, field).value = typed
        assert "<img" not in panel.message and "&lt;img" in panel.message
        assert "onerror" not in panel.html


def test_a_format_s_name_is_text_and_never_markup():
    html = collision_view(share(FP16.renamed(EVIL), 70_000))
    assert "<img src=x" not in html and "&lt;img src=x" in html


@pytest.mark.parametrize("typed", ["1", "0", "-3", "inf", "", "1e13", "base"])
def test_bad_bases_are_told(panel, typed):
    panel.base.value = typed
    assert "base" in panel.message and panel.shown.base == 10_000


def test_what_is_typed_is_read_exactly():
    assert (
        whole_number(" 2^12 ", "a context length", "", 1, 2**40)
        == whole_number("4,096", "a base", "", 1, 5000)
        == 4096
    )
    assert base_number("5e5") == 500_000.0 and base_number("1.5") == 1.5


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("n", [1, 2, 49, 500, 70_000, 2**40])
def test_every_format_has_a_view_and_markup_that_closes(fmt, n):
    html = collision_view(share(fmt, n))
    for tag in ("div", "span", "svg", "figure", "g", "b"):
        assert len(re.findall(f"<{tag}[ >]", html)) == html.count(f"</{tag}>"), tag


def test_maps_are_small_pictures_of_the_numbers():
    values = [[1.0, 0.2], [float("nan"), 0.0]]
    with Image.open(io.BytesIO(base64.b64decode(map_uri(values, 0.0).split(",")[1]))) as image:
        pixels = image.convert("RGB")
        bright, middle, grey, dark = (
            pixels.getpixel(at) for at in ((0, 0), (1, 0), (0, 1), (1, 1))
        )
    assert grey == (150, 150, 150) and sum(bright) > sum(middle) > sum(dark)
    assert (bright, dark) == ((253, 231, 37), (68, 1, 84))  # the ends of viridis


def test_the_colours_are_nearly_those_of_viridis():
    values = [[place / 254 for place in range(255)]] * 255
    with Image.open(io.BytesIO(base64.b64decode(map_uri(values, 0.0).split(",")[1]))) as image:
        drawn = np.asarray(image.convert("RGB"))[0]
    right = colormaps["viridis"](np.linspace(0, 1, 255))[:, :3] * 255
    assert abs(drawn - right).max() < 18


def test_ids_are_written_as_people_do():
    assert [id_text(value) for value in (4096.0, 7.5, float("inf"))] == ["4,096", "7.5", "inf"]
    assert "from token" not in re.sub("<[^>]+>", "", collision_view(share(FP8_E4M3, 600)))


def test_controls_have_names_and_explanations(panel):
    for control in (
        panel.format,
        panel.length,
        panel.halve,
        panel.double,
        panel.base,
        panel.head_size,
    ):
        assert control.label and control.tip
