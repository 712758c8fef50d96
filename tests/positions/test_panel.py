"""The panel without a browser: its controls drive it, bad input is reported in place,
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
from amp_course.positions.panel import CollisionExplorer
from amp_course.positions.panel_html import collision_view, id_text, map_uri
from amp_course.positions.sharing import share


@pytest.fixture
def panel():
    return CollisionExplorer()


def text_of(panel):
    return re.sub("<[^>]+>", "", panel.html)


def test_it_opens_on_bf16_with_512_tokens(panel):
    said = text_of(panel)
    for words in ("385 ids for 512 tokens", "first collision at token 257", "at most 3 tokens"):
        assert words in said


def test_controls_change_the_view(panel):
    panel.format.value = FP16
    said = text_of(panel)
    for words in ("512 ids for 512 tokens", "would be at token 2,049", "the maps are equal"):
        assert words in said
    panel.length.value = "2^17"
    said = text_of(panel)
    for words in ("7,169 ids for 131,072 tokens", "inf from token 65,520 on", "Grey: an id is"):
        assert words in said
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
        ("1000.5", "tokens come in whole numbers. Type 1000, for example"),
        ("many", "type a number such as 4096"),
        ("", "The field is empty"),
        ("nan", "is not a context length"),
        ("1e999", "too large for a context length"),
        ("9" * 400, "is not a context length"),
        ("1099511627777", "type 1099511627776 or less"),
    ],
)
def test_bad_lengths_are_reported_and_change_nothing(panel, typed, words):
    before = panel.html
    panel.length.value = typed
    assert words in panel.message and "Nothing changed" in panel.message
    assert panel.html == before and panel.shown.n == 512
    panel.length.value = "1,024"
    assert panel.message == "" and panel.shown.n == 1024


@pytest.mark.parametrize("field", ["length", "head_size"])
@pytest.mark.parametrize("typed", ["1/2", "-2.5", "99999999999999.5", "63.5", "1e3.5"])
def test_the_number_that_a_hint_suggests_is_accepted(panel, field, typed):
    control = getattr(panel, field)
    control.value = typed
    refusal = panel.message
    suggested = re.search(r"(?:Type|such as) ([0-9]+)", refusal)[1]
    control.value = suggested
    assert panel.message == "", (refusal, panel.message)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("63", "RoPE needs an even head size"),
        ("0", "too small"),
        ("100000", "1024 or less"),
        ("wide", "is not a head size"),
    ],
)
def test_bad_head_sizes_are_reported(panel, typed, words):
    panel.head_size.value = typed
    assert words in panel.message and panel.shown.head_size == 64


def test_bad_bases_are_reported(panel):
    for typed in ("1", "inf", "", "1e13", "base"):
        panel.base.value = typed
        assert "base" in panel.message and panel.shown.base == 10_000
    panel.base.value = "5e5"
    assert panel.message == "" and panel.shown.base == 500_000


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_every_format_has_a_view_and_markup_that_closes(fmt):
    for n in (1, 500, 2**40):
        html = collision_view(share(fmt, n))
        for tag in ("div", "span", "svg", "figure", "g", "b"):
            assert len(re.findall(f"<{tag}[ >]", html)) == html.count(f"</{tag}>"), (n, tag)


def test_maps_are_small_pictures_in_nearly_the_colours_of_viridis():
    row = [place / 254 for place in range(255)]
    uri = map_uri([row] * 254 + [[float("nan")] * 255], 0.0)
    with Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))) as image:
        drawn = np.asarray(image.convert("RGB")).astype(int)
    right = colormaps["viridis"](np.linspace(0, 1, 255))[:, :3] * 255
    assert abs(drawn[0] - right).max() < 18
    assert (drawn[-1] == 150).all()  # grey


def test_ids_are_written_as_people_do():
    assert [id_text(value) for value in (4096.0, 7.5, float("inf"))] == ["4,096", "7.5", "inf"]
    assert "from token" not in re.sub("<[^>]+>", "", collision_view(share(FP8_E4M3, 600)))
