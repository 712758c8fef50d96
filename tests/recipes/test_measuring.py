"""The measured table: equal to the facts, to counting by hand, and without a trace on the model."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.kit.memory import step_memory
from amp_course.kit.models import DigitsResNet
from amp_course.recipes import (
    ALL,
    AMP_BF16,
    O0,
    O1,
    O2,
    O3,
    PURE_BF16,
    RecipeTable,
    measure,
    measure_all,
)
from amp_course.recipes.measuring import by_format, formats_text, update_reach


@pytest.fixture(scope="module")
def resnet():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return DigitsResNet(4), torch.rand(8, 1, 8, 8), torch.randint(10, (8,))


@pytest.fixture(scope="module")
def table(resnet):
    return measure_all(ALL, *resnet)


def test_bytes_by_hand_with_batch_norm(resnet, table):
    model = resnet[0]
    norm = sum(
        p.numel() for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()
    )
    rest = sum(p.numel() for p in model.parameters()) - norm
    o2, o3, half = table["o2"], table["o3"], table["half_bn32"]
    assert o2.weights == {"fp16": 2 * rest, "fp32": 4 * norm}
    assert o2.master == {"fp32": 4 * rest}
    assert o2.gradients == {"fp16": 2 * rest, "fp32": 4 * norm}
    assert o2.optimizer_state == {"fp32": 8 * (rest + norm)}
    assert o2.bytes_per_parameter == 16
    assert o3.kept == 8 * (rest + norm) and half.kept == 8 * rest + 16 * norm
    # as the optimizer steps, the masters' gradients are float32
    assert o2.at_step == o2.kept + 2 * rest


def test_who_keeps_what(table):
    def said(name):
        return table[name].cells()[1:5]

    assert said("o0") == said("o1") == said("amp_bf16") == ["fp32", "–", "fp32", "fp32"]
    assert said("o2") == ["fp16 + fp32", "fp32", "fp16 + fp32", "fp32"]
    assert said("o3") == ["fp16", "–", "fp16", "fp16"]
    assert said("half_bn32")[:3] == ["fp16 + fp32", "–", "fp16 + fp32"]
    assert said("pure_bf16") == said("pure_bf16_sr") == ["bf16", "–", "bf16", "bf16"]
    norms = {row.name: formats_text(row.batch_norm) for row in table.rows}
    assert norms == dict.fromkeys(norms, "fp32") | {
        "o3": "fp16",
        "pure_bf16": "bf16",
        "pure_bf16_sr": "bf16",
    }
    assert {row.name: row.scaling for row in table.rows if row.scaling != "none"} == {
        "o1": "dynamic, 65,536",
        "o2": "dynamic, 65,536",
        "o3": "static, 1",
    }


def test_activations_and_copies_are_those_of_chapter_06(resnet):
    model, x, y = resnet
    for recipe in (O0(), O1(), AMP_BF16(), O3()):
        session = recipe.prepare(copy.deepcopy(model), torch.optim.Adam, cross_entropy)
        session.step(x, y)
        step = lambda session=session: session.step(x, y)  # noqa: E731
        memory = step_memory(session.model, session.optimizer, step, (x, y))
        row = measure(recipe, model, x, y)
        assert (row.activation_bytes, row.cast_copies) == (memory.activations, memory.cast_copies)
    assert next(iter(measure(O1(), model, x, y).activations)) == "fp16"


def test_measuring_leaves_the_model_alone(resnet):
    model, x, y = resnet
    before = copy.deepcopy(model.state_dict())
    measure(O2(), model, x, y)
    measure(PURE_BF16(), model, x, y)
    for name, tensor in model.state_dict().items():
        assert tensor.dtype is before[name].dtype and torch.equal(tensor, before[name])
    assert all(p.grad is None for p in model.parameters())


def test_steps_that_are_skipped_are_not_measured():
    """A loss that overflows at the first scales: the row is of a step that went through,
    and says what was skipped.
    """
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    row = measure(O2(), model, x, 100 * x, loss_fn=nn.functional.mse_loss)
    assert row.skipped >= 1 and row.optimizer_state and row.scaling != "dynamic, 65,536"
    arrived = update_reach(O2(), model, x, 100 * x, loss_fn=nn.functional.mse_loss)
    assert arrived.skipped == row.skipped and arrived.masters == 1
    for function in (measure, update_reach):
        with pytest.raises(RuntimeError, match="skipped the first 30 steps"):
            function(
                O1(), model, x, x, loss_fn=lambda outputs, targets: outputs.sum() * float("inf")
            )


def test_sgd_without_momentum_has_no_state(resnet):
    row = measure(O3(), *resnet, make_optimizer=lambda params: torch.optim.SGD(params, lr=0.1))
    assert row.optimizer_state == {} and row.bytes_per_parameter == 4 and row.cells()[4] == "–"


def test_table_as_text_and_html(table):
    cells = table.cells()
    assert cells[0] == RecipeTable.HEAD.split("|") and len(cells) == 9
    assert {len(line) for line in cells} == {9}
    for line in cells:
        for cell in line:
            assert cell in repr(table) and cell in table._repr_html_()
    with pytest.raises(KeyError, match=r"o9.*was not measured: choose one of o0, o1"):
        table["o9"]


def test_formats_are_written_largest_first():
    tensors = [torch.zeros(1), torch.zeros(7).half(), torch.zeros(1, dtype=torch.int64)]
    assert by_format(tensors) == {"fp16": 14, "int64": 8, "fp32": 4}
    assert formats_text(by_format(tensors)) == "fp16 + int64 + fp32"
