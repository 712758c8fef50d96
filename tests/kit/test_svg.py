"""Pictures are well-formed XML, whatever text goes in."""

from xml.etree import ElementTree

import pytest

from amp_course.kit import svg

NAMESPACE = "{http://www.w3.org/2000/svg}"


def parsed(*parts, label="a picture"):
    return ElementTree.fromstring(svg.picture(100, 50, *parts, label=label))


def test_a_picture_has_a_name_and_shrinks():
    root = parsed(label='less < "more"')
    assert root.get("aria-label") == 'less < "more"' and root.get("role") == "img"
    assert root.get("viewBox") == "0 0 100 50" and "max-width:100px" in root.get("style")


def test_text_is_escaped():
    (found,) = parsed(svg.text(1, 2, "<script>&", anchor="end", bold=True))
    assert (
        found.text == "<script>&"
        and found.get("text-anchor") == "end"
        and found.get("font-weight") == "bold"
    )


def test_lines_and_boxes_stand_where_they_are_put():
    line, many, box = parsed(
        svg.line(0, 1, 2, 3, dash="4 3"),
        svg.polyline([(0, 0), (1.25, 2)], stroke="#123456"),
        svg.box(1, 2, -3, 4, "#123456", tip="a & b"),
    )
    assert (line.get("x1"), line.get("y2"), line.get("stroke-dasharray")) == ("0.0", "3.0", "4 3")
    assert many.get("points") == "0.0,0.0 1.2,2.0"
    assert (
        box.get("width") == "0.0" and box.find(f"{NAMESPACE}title").text == "a & b"
    )  # never a negative width


@pytest.mark.parametrize(
    ("colour", "ink"), [("#E69F00", "white"), ("#777777", "white"), ("#FBE3A0", "#222222")]
)
def test_a_hatch_shows_on_pale_colours_too(colour, ink):
    definitions, box = parsed(svg.box(0, 0, 5, 5, colour, hatch="//"))
    pattern = definitions.find(f"{NAMESPACE}pattern")
    assert box.get("fill") == f"url(#{pattern.get('id')})"
    assert pattern.find(f"{NAMESPACE}rect").get("fill") == colour
    assert definitions.find(f"{NAMESPACE}pattern/{NAMESPACE}path").get("stroke") == ink


def test_a_swatch_is_one_small_box_that_screen_readers_skip():
    root = ElementTree.fromstring(svg.swatch("#00aa00"))
    assert root.get("aria-hidden") == "true" and root[0].get("fill") == "#00aa00"
