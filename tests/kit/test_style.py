import io

from PIL import Image

from amp_course.kit.style import CourseFigure, new_figure, png


def test_a_figure_shows_itself_as_a_sharp_png_of_few_colours():
    figure, axis = new_figure(4, 2, alt="A line.")
    axis.plot([0, 1])
    data, size = figure._repr_png_()
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (640, 320) and image.mode == "P"
        assert image.width > size["width"] > 0  # more dots than are shown: sharp on a dense screen
    assert isinstance(figure, CourseFigure) and data == png(figure)


def test_axes_come_as_subplots_gives_them():
    _, axes = new_figure(4, 2, columns=3, alt="A line.")
    assert len(axes) == 3
