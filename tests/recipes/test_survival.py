"""The survival map: its rule, its deaths, its record."""

import dataclasses
import json
import math

import pytest
import torch
from torch import nn

from amp_course.bits.formats import FP16
from amp_course.kit.errors import CourseError
from amp_course.recipes import ALL, HALF_BN32, O0, O1, O3
from amp_course.recipes.figures import first_step_figure, survival_figure
from amp_course.recipes.survival import (
    IMAGENET,
    SETTINGS,
    SIZES,
    RunResult,
    SurvivalMap,
    find_setting,
    first_step,
    load_survival,
    train_to_the_end,
)

SHORT = dataclasses.replace(find_setting("raw_sum"), epochs=2)


def test_linear_rule():
    for name, factor in (("resnet", 32), ("raw_sum", 1)):
        setting = find_setting(name)
        assert setting.rate_for(512) == pytest.approx(factor * setting.rate_for(16))


def test_summed_loss_with_a_rate_that_stays_is_the_linear_rule():
    """One step of plain SGD in float64 from the same weights: both forms move them alike."""
    moved, size = [], 64
    for name in ("raw", "raw_sum"):
        setting = find_setting(name)
        model, batches, _ = setting.start(size, seed=0)
        model.double()
        before = [weight.detach().clone() for weight in model.parameters()]
        x, y = next(iter(batches))
        optimizer = torch.optim.SGD(model.parameters(), lr=setting.rate_for(size))
        setting.loss(model(x.double()), y).backward()
        optimizer.step()
        moved.append(
            [after.detach() - old for after, old in zip(model.parameters(), before, strict=True)]
        )
    for mean, summed in zip(*moved, strict=True):
        torch.testing.assert_close(mean, summed, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_pure_half_dies_at_batch_512_and_the_scaled_recipes_live(recipe):
    outcome = train_to_the_end(SHORT, recipe, 512, seed=1)
    assert outcome.died_at == (0 if recipe.name in ("o3", "half_bn32") else None)
    assert (outcome.accuracy is None) == (outcome.died_at is not None)


def test_the_scale_has_to_fall_below_one():
    """Why O1 lives: its largest gradient is past fp16's largest number,
    so only a scale below 1 lets a step through.
    """
    assert first_step("raw_sum", 512, seed=0).largest_gradient > FP16.max
    halvings_to_one = math.log2(torch.amp.GradScaler("cpu").get_scale())
    outcome = train_to_the_end(dataclasses.replace(SHORT, epochs=10), O1(), 512)
    assert outcome.skipped > halvings_to_one


def test_mean_loss_is_infinite_and_kills_nobody():
    """The sum inside of the mean overflows in fp16; its gradient does not,
    for it is divided first.
    """
    outcome = train_to_the_end(dataclasses.replace(find_setting("raw"), epochs=2), HALF_BN32(), 512)
    assert math.isinf(outcome.first_loss) and outcome.died_at is None
    assert first_step("raw", 512).loss_sum > FP16.max > first_step("raw", 512).largest_gradient


@pytest.mark.parametrize("name", ["raw_sum", "resnet"])
def test_first_step_against_float64(name):
    setting = find_setting(name)
    model, batches, _ = setting.start(64, seed=2)
    x, y = next(iter(batches))
    model.double()
    nn.functional.cross_entropy(model(x.double()), y, reduction=setting.reduction).backward()
    largest = max(weight.grad.abs().max().item() for weight in model.parameters())
    assert first_step(name, 64, seed=2).largest_gradient == pytest.approx(largest, rel=1e-4)


def test_a_run_whose_every_step_is_skipped_is_dead():
    setting = dataclasses.replace(find_setting("raw"), white=1e6)  # overflows in every batch
    outcome = train_to_the_end(setting, O1(), 16)
    assert outcome.died_at == 0 and outcome.steps == 50 and outcome.skipped == 50


def test_spoiled_statistics_are_death():
    setting = dataclasses.replace(find_setting("resnet"), white=1e6, epochs=3)
    assert train_to_the_end(setting, O1(), 512).died_at == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: find_setting("raw_net"), "resnet, raw, raw_sum"),
        (lambda: train_to_the_end("raw", O0(), 5000), "more than the 1437 pictures"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_no_record(monkeypatch, tmp_path):
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setenv("AMP_COURSE_ROOT", str(tmp_path))
    with pytest.raises(CourseError, match=r"python -m benchmarks\.survival"):
        load_survival()


def test_round_trip():
    row = RunResult("raw", "o3", 512, 0, 0.1, 1, None, 0, 0, math.inf)
    found = SurvivalMap((row,), "a machine", "2.13.0", "2026-11-21")
    assert SurvivalMap.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert found.deaths("raw", "o3") == {512: 1}


def test_the_record_is_whole():
    found = load_survival()
    assert found.recipes() == tuple(recipe.name for recipe in ALL)
    for setting in SETTINGS:
        assert found.sizes(setting.name) == SIZES
        for recipe in found.recipes():
            for size in SIZES:
                runs = found.cell(setting.name, recipe, size)
                assert tuple(run.seed for run in runs) == setting.seeds


@pytest.mark.parametrize("recipe", [O0(), O3()], ids=lambda recipe: recipe.name)
def test_the_record_is_what_comes_out_here(recipe):
    """Deaths are a matter of range and come out the same on any machine;
    accuracy may differ in the last digits.
    """
    again = train_to_the_end("raw_sum", recipe, 512, seed=0)
    recorded = load_survival().cell("raw_sum", recipe.name, 512)[0]
    assert (again.died_at is None) == (recorded.died_at is None)
    assert again.rate == recorded.rate
    assert again.first_loss == pytest.approx(recorded.first_loss, rel=1e-2)


def test_survival_figure_has_every_cell():
    found = load_survival()
    figure = survival_figure(found)
    assert "Runs that died: " in figure.alt
    *maps, published = figure.axes
    for axis, setting in zip(maps, ("raw_sum", "raw", "resnet"), strict=True):
        assert len(axis.patches) == len(ALL) * len(SIZES)
        diverged = sum(len(found.deaths(setting, recipe)) for recipe in found.recipes())
        crosses = sum("✗" in text.get_text() for text in axis.texts)
        assert crosses == diverged + 1  # and the one in the line under the title
    assert len(published.patches) == len(IMAGENET)
    assert [text.get_text() for text in published.texts].count("NaN") == 3


def test_first_step_figure_has_a_mark_for_each():
    steps = [first_step(setting, size) for setting in SETTINGS for size in (16, 512)]
    left, right = first_step_figure(steps).axes
    # three settings, and fp16's largest number
    assert [len(line.get_xdata()) for line in left.lines] == [2, 2, 2, 2]
    assert right.lines[-1].get_ydata()[0] == FP16.max
