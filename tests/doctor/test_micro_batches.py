"""The rules for scripts on single updates: what is added up, cleared, clipped, and never moves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from amp_course.diagnosis.nonfinite import Nonfinite
from amp_course.diagnosis.rules.updates import PairRules
from amp_course.diagnosis.rules.values import check_values
from amp_course.watching.gradients import GradSummary
from amp_course.watching.origins import Line, is_of_a_library, user_line
from amp_course.watching.records import Backward, Event, Step, Training, Update
from amp_course.watching.script import Clip, Summary

HERE = Line(__file__, 1)
OURS = frozenset({0})


class Case:
    """One model of two weights, and events of its updates, written by hand."""

    def __init__(self) -> None:
        model = nn.Linear(2, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.training = Training(lambda: None, [model], [optimizer], [], [])
        self.weight = model.weight

    def adds(self, *values: float, to: float = 0.0, moved: bool = False) -> Backward:
        """A backward pass that adds a gradient, to one of norm `to`."""
        gradient = self.training.slots[0].gradient([torch.tensor([values])])
        before = [GradSummary(to == 0.0, True, to), GradSummary()]
        return Backward(0, line=HERE, arrived={0: gradient}, before=before, moved=moved)

    def steps(self, *values: float) -> Step:
        return Step(0, 0, self.training.slots[0].gradient([torch.tensor([values])]), line=HERE)

    def names(self, *events: Event, updates: int = 8) -> list[str]:
        """The names of what the rules find in so many updates with these events."""
        rules = PairRules()
        passes = [one for one in events if isinstance(one, Backward)]
        summary = Summary(len(passes), (1.0,), (), (), frozenset(), OURS, (), (), 0)
        update = Update(
            [], list(events), calls=len(passes), changed=[True, False], corrupted=[False, False]
        )
        for _ in range(updates):
            rules.judge([update], self.training, summary)
        return [one.name for one in rules.findings()]


@pytest.fixture
def case() -> Case:
    return Case()


def test_a_step_that_uses_the_last_of_several_micro_batches(case: Case) -> None:
    first, last = case.adds(3.0, 4.0), case.adds(1.0, 0.0)
    assert case.names(first, last, case.steps(1.0, 0.0)) == ["cleared-every-micro-batch"]
    assert case.names(first, last, case.steps(0.5, 0.0)) == ["cleared-every-micro-batch"]
    assert not case.names(case.adds(0.0, 0.0), last, case.steps(0.5, 0.0))  # the mean of both
    assert not case.names(first, last, case.steps(4.0, 4.0))  # combined by hand, as PCGrad does
    assert not case.names(first, case.adds(1.0, 0.0, moved=True), case.steps(1.0, 0.0))  # SAM
    added = case.adds(1.0, 0.0, to=5.0)
    assert not case.names(first, added, case.steps(4.0, 4.0))


def test_a_clip_before_the_next_micro_batch_is_added(case: Case) -> None:
    cut = Clip(0, OURS, 1.0, 5.0, frozenset(), line=HERE)
    first, added = case.adds(3.0, 4.0), case.adds(1.0, 0.0, to=1.0)
    step = case.steps(1.6, 0.8)
    assert case.names(first, cut, added, cut, step) == ["clipped-every-micro-batch"]
    assert not case.names(first, added, cut, step)
    loose = Clip(0, OURS, 9.0, 5.0, frozenset(), line=HERE)  # cuts nothing
    assert not case.names(first, loose, added, step)
    cleared = case.adds(1.0, 0.0)  # after the first was taken away, as DP-SGD does
    assert "clipped-every-micro-batch" not in case.names(first, cut, cleared, step)


def test_gradients_that_are_all_exactly_0(case: Case) -> None:
    nothing = case.adds(0.0, 0.0), case.steps(0.0, 0.0)
    assert case.names(*nothing) == ["gradients-all-zero"]
    assert not case.names(*nothing, updates=3)
    assert not case.names(case.adds(1.0, 0.0), case.steps(1.0, 0.0))


def losses(values: Sequence[float]) -> list[str]:
    faults, _ = check_values(
        Nonfinite((), (), (), len(values), None, False), values, len(values), 0
    )
    return [one.name for one in faults]


def test_a_loss_that_grows_by_orders_of_magnitude_diverges_before_it_is_inf() -> None:
    assert losses([0.03 * 100.0**n for n in range(8)]) == ["diverges"]
    assert not losses([0.03 * 1.1**n for n in range(8)])
    assert not losses([0.03 * 100.0**n for n in range(7)] + [1.0])  # it has come back


def test_the_users_line_is_outside_of_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "library"
    (library / "tool-1.0.dist-info").mkdir(parents=True)
    (library / "tool.py").write_text("def call(f):\n    return f()\n", "utf-8")
    monkeypatch.syspath_prepend(library)
    import tool  # type: ignore[import-not-found]

    line = tool.call(user_line)
    assert line is not None and Path(line.file) == Path(__file__)
    assert is_of_a_library(str(library / "tool.py")) and not is_of_a_library(__file__)
