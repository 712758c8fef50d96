import io

from PIL import Image

from amp_course.kit.colours import FORMAT_COLOURS
from amp_course.kit.style import CourseFigure, new_figure, png


def test_a_figure_shows_itself_as_a_sharp_png_of_few_colours():
    figure, axis = new_figure(4, 2, alt="A line.")
    axis.plot([0, 1])
    data, size = figure._repr_png_()
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (640, 320) and image.mode == "P"
        assert image.width > size["width"] > 0  # more dots than are shown: sharp on a dense screen
    assert isinstance(figure, CourseFigure) and data == png(figure)


def test_small_dots_keep_their_colours_next_to_much_text():
    figure, axis = new_figure(8, 4.8, alt="Dots.")
    axis.axvspan(0.2, 0.5, color=FORMAT_COLOURS["fp32"], alpha=0.12)
    for row, colour in enumerate(FORMAT_COLOURS.values()):
        axis.plot([0.1], [row], "o", ms=4, color=colour, alpha=0.8)
        axis.text(0.6, row, "a name as long as those of many variants, in 16 bits", fontsize=8)
    full = io.BytesIO()
    figure.savefig(full, format="png")
    places = axis.transData.transform([(0.1, row) for row in range(len(FORMAT_COLOURS))])
    with Image.open(full) as before, Image.open(io.BytesIO(png(figure))) as after:
        for x, y in places.round().astype(int).tolist():
            spot = x, before.height - y
            drawn, stored = (image.convert("RGB").getpixel(spot) for image in (before, after))
            assert max(abs(a - b) for a, b in zip(drawn, stored, strict=True)) < 25
