import importlib
import types

import pytest
import torch

from amp_course.checking import progress
from amp_course.course import CHAPTERS, available
from amp_course.kit.data import digit_batches, digits
from amp_course.kit.dtypes import DtypeSupport
from amp_course.loop import AMP_BF16, FP32
from amp_course.loop.exercises import count_bytes
from amp_course.loop.workloads import Session, digits_resnet
from amp_course.start import CourseMap, in_words, taste
from amp_course.start.figures import taste_figure
from amp_course.start.taste import Side

taste_module = importlib.import_module(
    "amp_course.start.taste"
)  # the package has a function of that name


@pytest.fixture(scope="module")
def sides():
    """The sides after one pass; the page's own cell asserts what four give."""
    return taste(torch.device("cpu"), max_seconds=0)


def test_taste_trains_both_sides_and_amp_takes_less_memory(sides):
    fp32, amp = sides
    assert (fp32.recipe, amp.recipe) == (FP32, AMP_BF16)
    assert fp32.accuracy > 0.4 and amp.accuracy > 0.4  # by chance it is 0.1
    assert amp.peak_bytes < fp32.peak_bytes


def test_figure_shows_both_sides(sides):
    figure = taste_figure(sides)
    bars = [patch.get_width() for patch in figure.axes[0].patches]
    assert sorted(bars) == sorted(side.seconds_per_step for side in sides)
    assert f"{sides[0].accuracy:.1%}" in figure._supxlabel.get_text()


NATIVE, EMULATED = (
    DtypeSupport("bf16", "native", 1e-3, 0.5),
    DtypeSupport("bf16", "emulated", 1e-1, 41.2),
)


@pytest.mark.parametrize(
    ("seconds", "peak", "accuracy", "bf16", "words"),
    [
        (0.005, 50, 0.99, None, ["2.0 times as fast", "50% less memory", "the same accuracy"]),
        (
            0.0101,
            100,
            0.98,
            None,
            ["as fast as before", "no less memory", "1.0 percentage points apart"],
        ),
        (0.03, 120, 0.99, NATIVE, ["3.0 times as long", "no less memory", "This net is small"]),
        (
            0.128,
            60,
            0.99,
            EMULATED,
            ["12.8 times as long", "40% less memory", "41.2 times as long", "emulate it"],
        ),
    ],
)
def test_words_follow_the_numbers(seconds, peak, accuracy, bf16, words):
    base = Side(FP32, 0.010, 100, 0.99)
    text = in_words(base, Side(AMP_BF16, seconds, peak, accuracy), bf16)
    assert all(word in text for word in words)
    assert ("emulate" in text) == (bf16 is EMULATED)


def test_on_a_busy_machine_nothing_is_said_of_the_time():
    base, slow = Side(FP32, 0.010, 100, 0.99, 0.05), Side(AMP_BF16, 0.128, 60, 0.99, 0.6)
    text = in_words(base, slow, EMULATED)
    assert "too busy to tell" in text and "40% less memory" in text
    assert not any(word in text for word in ("as fast", "as long", "emulate"))
    figure = taste_figure([base, slow])
    assert "too busy to tell" in figure.axes[0].get_title(loc="left")


@pytest.mark.slow
def test_the_order_of_the_batches_moves_the_accuracy_by_points():
    """As the words claim: in the taste's training, in fp32, after its least number of passes."""
    found = []
    for seed in range(4):
        stepper = digits_resnet(torch.device("cpu")).start(FP32).stepper
        for inputs, targets in digit_batches(digits(), 64, epochs=1, seed=seed):
            stepper.step(inputs, targets)
        found.append(stepper.accuracy(digits().test_x, digits().test_y))
    assert max(found) - min(found) > 0.02


def test_words_ask_the_machine_only_if_amp_is_slower(monkeypatch):
    asked = []
    monkeypatch.setattr(
        taste_module, "dtype_support", lambda device: asked.append(device) or (EMULATED,)
    )
    base = Side(FP32, 0.010, 100, 0.99)
    in_words(base, Side(AMP_BF16, 0.005, 50, 0.99))
    assert not asked
    assert "41.2 times" in in_words(base, Side(AMP_BF16, 0.2, 50, 0.99)) and len(asked) == 1


def test_taste_keeps_its_time_limit_and_both_sides_take_the_same_steps(monkeypatch):
    now, steps, records = [0.0], {"fp32": 0, "amp_bf16": 0}, {}
    real = Session.run

    def run(self, count, max_seconds=None):
        now[0] += 0.1 if self.recipe is FP32 else 1.9
        steps[self.recipe.name] += count
        name = self.recipe.name
        if name not in records:  # two steps are enough for a record
            records[name] = real(self, 2, max_seconds)
        return records[name]

    monkeypatch.setattr(Session, "run", run)
    monkeypatch.setattr(taste_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    for limit, passes in ((20.0, 4), (4.5, 2), (-1.0, 1)):
        now[0], steps = 0.0, dict.fromkeys(steps, 0)
        taste(torch.device("cpu"), max_seconds=limit)
        assert steps == {"fp32": 22 * passes, "amp_bf16": 22 * passes}


def test_map_lists_every_chapter_and_counts_what_is_solved(tmp_path, monkeypatch):
    monkeypatch.setenv("AMP_COURSE_WORK", str(tmp_path / "my_work"))
    assert "0 of 7 solved" in repr(CourseMap())
    progress.record(count_bytes.id, "correct")
    page = CourseMap()
    assert "1 of 7 solved" in repr(page) and "1 of 7" in page._repr_html_()
    for chapter in CHAPTERS:
        assert chapter.question in repr(page)
        link = f'href="{chapter.stem}.ipynb"'
        assert (link in page._repr_html_()) == (chapter in available())


def test_map_leads_through_the_chapters_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv("AMP_COURSE_WORK", str(tmp_path / "a <work> folder"))
    assert CourseMap().next().stem == "01_bits"
    assert (
        "Next: 01_bits.ipynb" in repr(CourseMap())
        and 'href="01_bits.ipynb">01 · bits</a>' in CourseMap()._repr_html_()
    )
    for exercise in CHAPTERS[6].exercises():
        progress.record(exercise.id, "correct")
    assert (
        CourseMap().next().stem == "01_bits"
    )  # whoever began in the middle still has the foundations before them
    for chapter in (CHAPTERS[1], CHAPTERS[2]):
        for exercise in chapter.exercises():
            progress.record(exercise.id, "correct")
    assert CourseMap().next().stem == "03_positions"
    for chapter in available():
        for exercise in chapter.exercises():
            progress.record(exercise.id, "correct")
    assert CourseMap().next() is None and "solved every exercise" in CourseMap()._repr_html_()


def test_map_tells_of_a_damaged_progress_file(tmp_path, monkeypatch):
    monkeypatch.setenv("AMP_COURSE_WORK", str(tmp_path))
    (tmp_path / "progress.json").write_text("{ torn")
    assert "is damaged" in repr(CourseMap()) and "is damaged" in CourseMap()._repr_html_()
