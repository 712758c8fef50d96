import pytest
import torch

from amp_course.checking import progress
from amp_course.course import CHAPTERS, available
from amp_course.loop import AMP_BF16, FP32
from amp_course.loop.exercises import count_bytes
from amp_course.start import CourseMap, in_words, taste
from amp_course.start.figures import taste_figure
from amp_course.start.taste import Side


@pytest.fixture(scope="module")
def sides():
    return taste(torch.device("cpu"))


def test_taste_trains_both_sides_to_the_same_quality(sides):
    fp32, amp = sides
    assert (fp32.recipe, amp.recipe) == (FP32, AMP_BF16)
    assert fp32.accuracy > 0.95 and amp.accuracy > 0.95
    assert amp.peak_bytes < fp32.peak_bytes


def test_figure_shows_both_sides(sides):
    figure = taste_figure(sides)
    bars = [patch.get_width() for patch in figure.axes[0].patches]
    assert sorted(bars) == sorted(side.seconds_per_step for side in sides)
    assert f"{sides[0].accuracy:.1%}" in figure._supxlabel.get_text()


@pytest.mark.parametrize(
    ("seconds", "peak", "accuracy", "words"),
    [
        (0.005, 50, 0.99, ["2.0 times as fast", "50% less memory", "the same accuracy"]),
        (0.0101, 100, 0.98, ["no faster", "no less memory", "1.0 percentage points apart"]),
        (0.03, 120, 0.99, ["3.0 times slower", "no less memory"]),
    ],
)
def test_words_follow_the_numbers(seconds, peak, accuracy, words):
    base = Side(FP32, 0.010, 100, 0.99)
    text = in_words(base, Side(AMP_BF16, seconds, peak, accuracy))
    assert all(word in text for word in words)


def test_map_lists_every_chapter_and_counts_what_is_solved(tmp_path, monkeypatch):
    monkeypatch.setenv("AMP_COURSE_WORK", str(tmp_path / "my_work"))
    assert "0 of 6 solved" in repr(CourseMap())
    progress.record(count_bytes.id, "correct")
    page = CourseMap()
    assert "1 of 6 solved" in repr(page) and "1 of 6" in page._repr_html_()
    for chapter in CHAPTERS:
        assert chapter.question in repr(page)
        link = f'href="{chapter.stem}.ipynb"'
        assert (link in page._repr_html_()) == (chapter in available())


def test_map_tells_of_a_damaged_progress_file(tmp_path, monkeypatch):
    monkeypatch.setenv("AMP_COURSE_WORK", str(tmp_path))
    (tmp_path / "progress.json").write_text("{ torn")
    assert "is damaged" in repr(CourseMap()) and "is damaged" in CourseMap()._repr_html_()
