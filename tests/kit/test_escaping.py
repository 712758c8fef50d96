"""Foreign text stays text: each object that shows itself as HTML is made with a wicked string in
every field that takes one. No element may come of it, and the string must be there to be read.
"""

import dataclasses
import inspect

import pytest
from matplotlib import rc_context
from torch import nn

from amp_course.kit import svg
from amp_course.kit.report import Page as KitPage
from amp_course.kit.style import new_figure, png
from amp_course.kit.table import html_table
from tests.kit.page import WICKED, assert_harmless, classes, wicked


def test_the_test_sees_what_a_browser_would_run():
    with pytest.raises(AssertionError):
        assert_harmless(f"<b>{WICKED}</b>")
    with pytest.raises(AssertionError):
        assert_harmless(f'<b title="{WICKED}">x</b>')
    with pytest.raises(AssertionError, match="not shown"):
        assert_harmless("<b>nothing</b>")


def wicked_map():
    from amp_course.start.map import CourseMap

    shown = CourseMap()
    shown.progress.note = WICKED
    return shown


def wicked_phrasebook():
    from amp_course.recipes import phrasebook

    slug = phrasebook.AMP.libraries[0].slug
    library = dataclasses.replace(wicked(phrasebook.Library), slug=slug)
    return dataclasses.replace(phrasebook.AMP, libraries=(library,))


def wicked_exercise():
    from amp_course.checking import Card, Exercise

    words = dict.fromkeys(("name", "title", "task", "why", "alternative"), WICKED)
    numbers = {"number": 1, "difficulty": 1, "importance": 1, "minutes": 1, "lines": 1}
    return Exercise(Card(chapter="bits", hints=(WICKED,) * 3, **words, **numbers), None, None, ())


def wicked_finding():
    from amp_course.speed.experiments.finding import Finding

    return Finding(WICKED, None, WICKED)


def wicked_ranges():
    from amp_course.debugging.ranges import Reading, watch_ranges

    ranges = watch_ranges(nn.Linear(1, 1))
    ranges.readings.append(dataclasses.replace(wicked(Reading), kind="activation"))
    return ranges


SPECIAL = {
    "RangeWatch": wicked_ranges,
    "CourseMap": wicked_map,
    "Finding": wicked_finding,
    "Phrasebook": wicked_phrasebook,
    "Exercise": wicked_exercise,
}


SHOWN = [
    kind
    for kind in classes("**/*.py", r"def (_repr_html_|_html)\(|\(Page")
    if inspect.isclass(kind)
    and (issubclass(kind, KitPage) or {"_repr_html_", "_html"} & set(vars(kind)))
    # LauncherTable and Round are tables of the course's own facts, made by `html_table`
    and kind.__name__ not in ("Shown", "Page", "LauncherTable", "Round")
]


@pytest.mark.parametrize("kind", SHOWN, ids=lambda kind: kind.__name__)
def test_what_shows_itself_escapes_its_words(kind):
    shown = SPECIAL.get(kind.__name__, lambda: wicked(kind))()
    assert_harmless(shown._repr_html_() if hasattr(shown, "_repr_html_") else shown._html())


def test_the_map_escapes_the_name_of_the_learners_folder(monkeypatch, tmp_path):
    from amp_course.start.map import CourseMap

    folder = tmp_path / WICKED.replace("/", "")
    folder.mkdir()
    monkeypatch.setenv("AMP_COURSE_WORK", str(folder))
    for name in ("01_bits", "06_loop"):
        (folder / f"{name}.ipynb").write_text("{}")
    assert_harmless(CourseMap()._repr_html_(), is_shown=False)


# What panels are made of.


def test_tables_and_pictures_escape():
    assert_harmless(html_table([[WICKED], [WICKED]]))
    drawn = svg.picture(
        9, 9, svg.text(0, 0, WICKED), svg.box(0, 0, 1, 1, "#123456", tip=WICKED), label=WICKED
    )
    assert_harmless(drawn)


@pytest.mark.parametrize("text", ["$", "$x_1$", r"$\frac{$", "a $b$ c_{d"])
def test_a_dollar_in_a_figure_is_a_dollar(text):
    def drawn(words, **options):
        figure, axis = new_figure(3, 1, alt="A line.")
        axis.text(0.1, 0.5, words, **options)
        return png(figure)

    assert drawn(text) == drawn(text, parse_math=False) != drawn("")


def test_the_powers_on_a_logarithmic_axis_are_still_powers():
    def drawn(parse_math):
        with rc_context({"text.parse_math": parse_math}):
            figure, axis = new_figure(3, 1, alt="A line.")
            axis.plot([1, 2], [2, 2**20])
            axis.set_yscale("log", base=2)
            return png(figure)

    assert drawn(True) != drawn(False)


def test_views_escape_the_names_of_formats_recipes_and_faults():
    from amp_course.bits import FP16
    from amp_course.bits.nearest import nearest
    from amp_course.bits.panel_html import explorer_view, rounding_note
    from amp_course.positions.panel_html import collision_view
    from amp_course.positions.sharing import share
    from amp_course.recipes.measuring import Measured, UpdateReach
    from amp_course.recipes.panel_html import recipe_view

    own = dataclasses.replace(FP16, name=WICKED)
    assert_harmless(explorer_view(0x3C01, own, 1.0001))
    assert_harmless(rounding_note(nearest(1.0001, own)))
    assert_harmless(collision_view(share(own, 16)))
    side = (wicked(Measured), wicked(UpdateReach))
    assert_harmless(recipe_view(side, side, 10**9, WICKED))


def test_the_workbench_escapes_the_loop_and_its_findings():
    from amp_course.diagnosis.report import Report
    from amp_course.patterns.workbench import Judgement, Line, workbench_view

    lines = [Line(mark, WICKED) for mark in ("", "+", "−")]
    assert_harmless(workbench_view(lines, [Judgement("wrong", WICKED, WICKED)], wicked(Report)))
