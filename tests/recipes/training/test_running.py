"""The loop of chapter 06 and its report card run the recipes as they are."""

import dataclasses

import pytest
import torch

from amp_course.kit.colours import COLOURS, HATCHES
from amp_course.loop import AMP_BF16 as LOOP_BF16
from amp_course.loop import AMP_FP16, FP32
from amp_course.loop.figures import report_card_figure
from amp_course.loop.report import make_report_card
from amp_course.loop.train import run
from amp_course.loop.workloads import digits_resnet, simple_net
from amp_course.recipes import ALL, AMP_BF16, HALF_BN32, O0, O1, O2, O3

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("recipe", "twin"),
    [(O0(), FP32), (O1(), AMP_FP16), (AMP_BF16(), LOOP_BF16)],
    ids=lambda r: r.name,
)
def test_recipes_and_their_twins_of_chapter_06_are_one(recipe, twin):
    workload = simple_net(CPU, width=16, batch_size=4)
    assert workload.start(recipe).run(4).losses == workload.start(twin).run(4).losses


def test_a_record_of_a_session(overflowing):
    session = overflowing.prepare(O2())
    record = run(session, overflowing.batches, O2(), progress=False)
    assert record.skipped == (3, 4, 11, 19) and session.skipped == 4
    assert record.scales[3:6] == (2.0**16, 2.0**15, 2.0**14)
    assert record.memory.gradients > 0 and record.recipe.name == "o2"


def test_accuracy_is_computed_as_the_recipe_computes():
    session = digits_resnet(CPU, batch_size=16).start(O3()).stepper
    dtypes = []
    session.model.head.register_forward_hook(
        lambda module, args, output: dtypes.append(output.dtype)
    )
    session.model.train()
    assert 0 <= session.accuracy(torch.rand(4, 1, 8, 8), torch.arange(4)) <= 1
    assert dtypes == [torch.float16] and session.model.training


def test_report_card_of_all_recipes():
    workloads = [dataclasses.replace(simple_net(CPU, width=16, batch_size=4), steps=4)]
    card = make_report_card(CPU, workloads=workloads, recipes=ALL, max_seconds=60)
    assert [row.recipe.label for row in card.rows] == [recipe.label for recipe in ALL]
    words = " ".join(
        text.get_text() for axis in report_card_figure(card).axes for text in axis.texts
    )
    for cells, row in zip(card.cells()[1:], card.rows, strict=True):
        assert cells[2] in words and row.bytes_per_parameter > 0
    # SGD without momentum: weights and gradients, and O2's masters
    halved = {row.recipe.name for row in card.rows if row.bytes_per_parameter == 4}
    assert halved == {"o3", "half_bn32", "pure_bf16", "pure_bf16_sr"}
    assert {row.bytes_per_parameter for row in card.rows} == {4, 8}
    assert card.paragraph()


def test_a_recipe_that_dies_is_reported_as_it_is():
    workload = dataclasses.replace(simple_net(CPU, width=16, batch_size=4), steps=4)

    def start(recipe):
        session = workload.start(recipe)
        session.batches = ((inputs * 1e5, targets) for inputs, targets in session.batches)
        return session

    diverging = dataclasses.replace(workload, start=start)
    card = make_report_card(CPU, workloads=[diverging], recipes=[O0(), HALF_BN32()], max_seconds=60)
    assert card.rows[1].final_loss != card.rows[1].final_loss  # NaN
    assert "nan" in card.cells()[2][-3] and "NaN" in card.paragraph()


def test_every_recipe_has_a_colour_and_a_second_cue():
    styles = [(COLOURS[recipe.name], HATCHES[recipe.name]) for recipe in ALL]
    assert len({colour for colour, _ in styles}) == len({hatch for _, hatch in styles}) == len(ALL)
