"""The trainings: the same start for all, what is rounded is rounded, seeds decide,
and the table says what ran.
"""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from amp_course.frontiers import MXFP4, quantize
from amp_course.frontiers.experiments import (
    GRADIENTS_ONLY,
    OPTIMIZERS,
    VARIANTS,
    CompressedVariant,
    TrainingTable,
    find_variant,
    train_gpt,
    train_resnet,
)
from amp_course.frontiers.experiments.gradient_errors import (
    gradient_errors,
    head_gradient,
    imbalance_error,
    real_tensors,
)
from amp_course.frontiers.experiments.table import as_json, load_trainings
from amp_course.kit.models import CharGPT, DigitsResNet


@pytest.fixture(scope="module")
def fp32():
    return train_resnet(VARIANTS[0], steps=2)


@pytest.fixture(scope="module")
def few_bits():
    return train_resnet(CompressedVariant(), steps=2)


@pytest.mark.parametrize("variant", VARIANTS[1:], ids=lambda one: one.name)
def test_a_variant_replaces_every_matmul_and_keeps_the_parameters(variant):
    for model in (CharGPT(20, 8, layers=1, heads=1, width=32), DigitsResNet(8)):
        before = {key: value.data_ptr() for key, value in model.state_dict().items()}
        variant.convert(model)
        assert not {type(module) for module in model.modules()} & {nn.Linear, nn.Conv2d}
        state = model.state_dict().items()
        assert {k: v.data_ptr() for k, v in state if "history" not in k} == before


@pytest.mark.slow
def test_the_first_loss_is_that_of_fp32_but_for_rounding_and_seeds_decide():
    for train, loss in ((train_gpt, 4.9), (train_resnet, 2.5)):
        exact = train(find_variant("fp32"), steps=3)
        assert abs(exact.losses[0] - loss) < 0.5 and exact == replace(
            train(find_variant("fp32"), steps=3), seconds_per_step=exact.seconds_per_step
        )
        assert train(find_variant("fp32"), steps=3, seed=1).losses != exact.losses
        for name, within in (
            ("bf16", 0.01),
            ("fp8, current scale", 0.05),
            ("MXFP4, scale up, stochastic", 0.4),
        ):
            run = train(find_variant(name), steps=3)
            assert 0 < abs(run.losses[0] - exact.losses[0]) < within, name
            assert run.losses == train(find_variant(name), steps=3).losses


def test_nothing_of_the_process_changes():
    torch.manual_seed(3)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    train_resnet(CompressedVariant(), steps=1)
    train_gpt(OPTIMIZERS[2], steps=1)
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads


def test_compressed_activations_are_counted_by_the_step(fp32, few_bits):
    assert few_bits.variant == "2-bit activations, groups of 256"
    assert 14.5 < few_bits.whole / few_bits.kept < 16 and fp32.kept == 0
    assert train_resnet(CompressedVariant(group=64), steps=1).kept > few_bits.kept


def test_an_optimizer_steps_at_the_rate_of_the_schedule():
    exact, *others = (train_gpt(variant, steps=3, rate=1e-3) for variant in OPTIMIZERS)
    for run in others:
        assert run.losses == pytest.approx(exact.losses, abs=0.02) and run.score != exact.score
    assert len({run.score for run in others}) == len(others)


def test_a_gradient_is_far_from_fp32s_by_what_was_rounded():
    exact, bf16, down, up = gradient_errors(VARIANTS[:2] + VARIANTS[5:7], draws=2, steps=10)
    assert exact.single == exact.mean == 0
    assert 0 < bf16.single < 0.01 < up.single < down.single < 0.5
    assert bf16.mean == pytest.approx(bf16.single)  # nothing is drawn


def test_the_table_says_what_ran_and_comes_back_from_a_file(tmp_path, fp32, few_bits):
    other_seed = replace(fp32, seed=1, score=fp32.score + 0.1)
    gpt, coarse = replace(fp32, workload="gpt"), replace(few_bits, rate=0.5)
    path = tmp_path / "runs.json"
    runs = [fp32, other_seed, coarse, gpt]
    path.write_text(json.dumps({"runs": [as_json(run) for run in runs]}))
    tables = load_trainings(path)
    table = tables["resnet"]
    assert {name: len(one.runs) for name, one in tables.items()} == {"resnet": 3, "gpt": 1}
    head, first, second = table.rows()
    assert head == ["variant", "rate", "bits", "last loss", "right digits", "seeds", "fp32 bytes"]
    assert (first[0], first[1], first[5], first[6]) == ("fp32", "0.05", "2", "")
    assert f"{100 * fp32.score + 5:.1f} % ({100 * fp32.score:.1f} to " in first[4]
    assert second[1] == "0.5" and second[6].startswith("÷ 15")
    assert "held-out loss" in repr(tables["gpt"]) and "<table" in table._repr_html_()
    better = [replace(run, variant="other", score=run.score + 0.25) for run in runs[1::-1]]
    compared = TrainingTable((*runs[:2], *better)).differences("other", "fp32")
    assert compared == pytest.approx([0.25, 0.25])
    assert table.only("fp32").runs == table.runs[:2]
    assert table.only(rate=0.5).runs == table.runs[2:]
    with pytest.raises(KeyError, match="was not trained"):
        table.only("fp16")


def test_a_loss_that_is_not_finite_is_said(fp32):
    run = replace(fp32, losses=(2.0, float("nan")))
    assert TrainingTable((run,)).rows()[1][2] == "not finite"
    assert as_json(run)["losses"] == [2.0, None]


def test_an_unknown_variant_is_refused_with_the_names():
    with pytest.raises(ValueError, match=r"choose one of fp32; bf16; .*Kahan"):
        find_variant("fp4")


def test_real_tensors_are_those_of_one_matmul():
    found = real_tensors(steps=2)
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    assert shapes == {"weights": (256, 64), "activations": (1024, 64), "gradients": (1024, 256)}
    assert found["activations"].mean(1).abs().max() < 0.2  # layer norm's output
    assert found["gradients"].abs().amax() < 0.01  # of a mean loss
    assert all(one.dtype is torch.float32 and not one.requires_grad for one in found.values())


def test_each_row_of_the_head_gradient_balances_its_label():
    found = head_gradient(steps=2)
    assert found.shape[0] == 1024 and found.dtype is torch.float32 and not found.requires_grad
    assert ((found < 0).sum(1) == 1).all()
    torch.testing.assert_close(found.sum(1), torch.zeros(1024), atol=1e-8, rtol=0)
    sides = found.clamp(max=0).sum(1)  # a probability minus 1, over 1,024
    assert sides.min() >= -1 / 1024 and sides.max() < 0


def test_an_imbalance_costs_more_than_what_is_lost_on_both_sides():
    assert imbalance_error(1.0, 1.0, steps=2) == 0
    # all of the gradient is a fifth too short
    assert imbalance_error(0.8, 0.8, steps=2) == pytest.approx(0.2, abs=1e-4)
    assert imbalance_error(1.0, 0.8, steps=20) > 0.3  # which loses less


@pytest.mark.slow
def test_the_imbalance_alone_explains_what_mxfp4_does_to_gradients():
    arriving = head_gradient()
    label = arriving < 0
    names = {one.name.removeprefix("only gradients in "): one for one in GRADIENTS_ONLY}
    for rounding, error in (("down", 0.14), ("up", 0.47)):
        stored = quantize(arriving, MXFP4.rounding_scale(rounding))
        kept = [float(stored[side].sum() / arriving[side].sum()) for side in (label, ~label)]
        (measured,) = gradient_errors([names[f"MXFP4, scale {rounding}"]], draws=1)
        assert measured.single == pytest.approx(error, abs=0.04)
        assert imbalance_error(*kept) == pytest.approx(measured.single, abs=0.04)
    # 768 tokens are no power of two: no label is clipped, nothing balances what the others lose.
    (fewer,) = gradient_errors([names["MXFP4, scale down"]], draws=1, stretches=12)
    assert fewer.single > 0.3
