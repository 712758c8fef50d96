"""What `LoopWorkbench` draws: lines compared, behaviours judged, everything escaped."""

import itertools

import pytest

from amp_course.diagnosis.catalogue import BEHAVIOURS, finding
from amp_course.diagnosis.report import Report
from amp_course.patterns.workbench import (
    Line,
    Switches,
    judgements,
    marked_lines,
    source_of,
    workbench_view,
)
from amp_course.patterns.workbench.page import headline


def test_lines_are_marked_on_the_side_where_they_stand():
    assert marked_lines("a\nc", "a\nb\nc") == [("", "a"), ("−", "b"), ("", "c")]
    assert marked_lines("a\nb\nc", "a\nc") == [("", "a"), ("+", "b"), ("", "c")]
    assert marked_lines("x", "x") == [("", "x")]


def test_without_the_other_sides_lines_each_loop_is_whole():
    right = source_of(Switches())
    for values in itertools.product(*Switches.CHOICES.values()):
        source = source_of(Switches(*values))
        lines = marked_lines(source, right)
        assert [line.text for line in lines if line.mark != "−"] == source.splitlines()
        assert [line.text for line in lines if line.mark != "+"] == right.splitlines()


def test_each_behaviour_is_right_wrong_or_not_judged():
    wrong, others = finding("clipped-while-scaled"), (("overflow", "no scaler"),)
    found = Report((wrong,), ("objects", "clipping"), others)
    said = {behaviour: (state, word) for state, behaviour, word in judgements(found)}
    assert said["objects"] == ("right", BEHAVIOURS["objects"])
    assert said["clipping"] == ("wrong", "clipped-while-scaled")
    assert said["overflow"] == ("not judged", "no scaler")
    assert said["gradient"] == ("not judged", "fix the faults first")
    assert judgements(Report((), ("objects",)))[1].word == "was not asked for"


@pytest.mark.parametrize("fault", ["sum-not-mean", "clipped-while-scaled", "never-cleared"])
def test_no_gradient_is_praised_beside_a_fault_in_what_makes_it(fault):
    """A sum instead of a mean is not the gradient of the fp32 loss, whatever else was checked."""
    said = {one.behaviour: one for one in judgements(Report((finding(fault),), tuple(BEHAVIOURS)))}
    assert sum(one.state == "wrong" for one in said.values()) == 1
    for behaviour in ("gradient", "shorter last group", "unequal micro-batches"):
        assert said[behaviour].state == "not judged"
    assert said["steps"].state == said["overflow"].state == "right"


def test_the_headline_counts():
    def said(*names, checked=()):
        audit = Report(tuple(map(finding, names)), checked)
        return headline(judgements(audit), audit)

    calm = said(checked=tuple(BEHAVIOURS))
    assert calm == f"<b>✓ No fault</b> in {len(BEHAVIOURS)} behaviours; 0 not judged."
    two = said("sum-not-mean", "not-clipped", checked=("objects",))
    assert two.startswith("<b>✗ 2 faults: sum-not-mean, not-clipped.</b> Behaviours: 1 right")
    assert said("not-clipped").startswith("<b>✗ Fault: not-clipped.</b>")


def test_marks_do_not_depend_on_colour_and_removed_lines_are_not_copied():
    audit = Report((finding("not-clipped", loss_scale=1024.0),), ("objects",))
    lines = [Line("+", "new"), Line("−", "old"), Line("", "same")]
    view = workbench_view(lines, judgements(audit), audit)
    assert '<b style="user-select:none">+</b> <ins' in view
    assert '<del style="user-select:none' in view
    assert "✗ clipping" in view and "✓ objects" in view and "– gradient" in view
    assert "loss scale" in view and "1024" in view  # the evidence
    assert "not executed" in view
    calm = workbench_view([Line("", "same")], judgements(Report((), ())), Report((), ()))
    assert "not executed" not in calm
