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
from amp_course.frontiers.fp8_linear import Fp8Linear
from amp_course.frontiers.layers import RoundedConv2d, RoundedLinear
from amp_course.kit.models import CharGPT, DigitsResNet

NAMES = [one.name for one in VARIANTS]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "fp32"])
def test_a_variant_replaces_every_matmul_and_keeps_the_parameters(name: str) -> None:
    for model in (CharGPT(20, 8, layers=1, heads=1, width=32), DigitsResNet(8)):
        before = {key: value.data_ptr() for key, value in model.state_dict().items()}
        find_variant(name).convert(model)
        kinds = {type(module) for module in model.modules()}
        assert not kinds & {nn.Linear, nn.Conv2d} and kinds & {
            RoundedLinear,
            RoundedConv2d,
            Fp8Linear,
        }
        after = {
            key: value.data_ptr()
            for key, value in model.state_dict().items()
            if "history" not in key
        }
        assert after == before


@pytest.mark.slow
def test_the_first_loss_is_that_of_fp32_but_for_rounding_and_seeds_decide() -> None:
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


def test_nothing_of_the_process_changes() -> None:
    torch.manual_seed(3)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    train_resnet(CompressedVariant(), steps=2)
    train_gpt(OPTIMIZERS[2], steps=2)
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads


def test_compressed_activations_are_counted_by_the_step() -> None:
    run = train_resnet(CompressedVariant(), steps=2)
    assert run.variant == "2-bit activations, groups of 256" and 14.5 < run.whole / run.kept < 16
    assert train_resnet(CompressedVariant(group=64), steps=2).kept > run.kept
    assert train_resnet(find_variant("fp32"), steps=2).kept == 0


@pytest.mark.slow
def test_two_bits_cost_at_most_two_points_of_accuracy_over_three_seeds() -> None:
    steps = 150
    exact, few = (
        [train_resnet(v, steps=steps, seed=s) for s in range(3)]
        for v in (VARIANTS[0], CompressedVariant())
    )
    lost = sum(a.score - b.score for a, b in zip(exact, few, strict=True)) / 3
    assert lost < 0.02 and min(run.score for run in exact) > 0.95
    assert all(run.whole >= 12 * run.kept for run in few)


@pytest.mark.parametrize("variant", OPTIMIZERS, ids=lambda one: one.name)
def test_an_optimizer_steps_at_the_rate_of_the_schedule(variant) -> None:
    run = train_gpt(variant, steps=3, rate=1e-3)
    exact = train_gpt(OPTIMIZERS[0], steps=3, rate=1e-3)
    assert run.losses == pytest.approx(exact.losses, abs=0.02) and run.bits == variant.bits
    assert (run.losses == exact.losses) == (variant is OPTIMIZERS[0])


def test_a_gradient_is_far_from_fp32s_by_what_was_rounded() -> None:
    found = {
        one.variant: one for one in gradient_errors(VARIANTS[:2] + VARIANTS[5:7], draws=2, steps=20)
    }
    assert found["fp32"].single == found["fp32"].mean == 0
    assert (
        0
        < found["bf16"].single
        < 0.01
        < found["MXFP8, scale up"].single
        < found["MXFP8, scale down"].single
        < 0.5
    )
    assert found["bf16"].mean == pytest.approx(found["bf16"].single)  # nothing is drawn


@pytest.mark.slow
def test_drawn_rounding_averages_out_only_where_nothing_is_clipped() -> None:
    down, up = gradient_errors(
        [
            find_variant("MXFP4, scale down, stochastic"),
            find_variant("MXFP4, scale up, stochastic"),
        ],
        draws=6,
    )
    assert up.mean < 0.75 * down.mean


def test_the_table_says_what_ran_and_comes_back_from_a_file(tmp_path) -> None:
    runs = [train_resnet(VARIANTS[0], steps=2, seed=seed) for seed in (0, 1)]
    runs += [train_resnet(CompressedVariant(), steps=2, rate=0.5), train_gpt(VARIANTS[0], steps=2)]
    path = tmp_path / "runs.json"
    path.write_text(json.dumps({"runs": [as_json(run) for run in runs]}))
    tables = load_trainings(path)
    table = tables["resnet"]
    assert set(tables) == {"resnet", "gpt"} and [
        len(one.runs) for one in (table, tables["gpt"])
    ] == [3, 1]
    head, first, second = table.rows()
    assert head == ["variant", "rate", "bits", "last loss", "right digits", "seeds", "fp32 bytes"]
    assert (
        first[0] == "fp32"
        and first[5] == "2"
        and " to " in first[3]
        and "%" in first[4]
        and first[6] == ""
    )
    assert second[1] == "0.5" and second[6].startswith("÷ 15")
    assert table.score("fp32") == pytest.approx((runs[0].score + runs[1].score) / 2)
    assert "held-out loss" in repr(tables["gpt"]) and "<table" in table._repr_html_()
    better = [replace(run, variant="other", score=run.score + 0.25) for run in runs[1::-1]]
    assert TrainingTable((*runs[:2], *better)).differences("other", "fp32") == pytest.approx(
        [0.25, 0.25]
    )
    assert (
        table.only("fp32").runs == tuple(table.runs[:2])
        and table.only(rate=0.5).runs == table.runs[2:]
    )
    with pytest.raises(KeyError, match="was not trained"):
        table.score("fp16")
    with pytest.raises(ValueError, match="one workload"):
        TrainingTable(tuple(runs))


def test_a_loss_that_is_not_finite_is_said() -> None:
    run = replace(train_resnet(VARIANTS[0], steps=2), losses=(2.0, float("nan")))
    assert TrainingTable((run,)).rows()[1][2] == "not finite"
    assert as_json(run)["losses"] == [2.0, None]


def test_an_unknown_variant_is_refused_with_the_names() -> None:
    with pytest.raises(ValueError, match=r"choose one of fp32; bf16; .*Kahan"):
        find_variant("fp4")


def test_real_tensors_are_those_of_one_matmul() -> None:
    found = real_tensors(steps=2)
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    assert shapes == {"weights": (256, 64), "activations": (1024, 64), "gradients": (1024, 256)}
    rows = found["activations"]
    assert (
        rows.mean(1).abs().max() < 0.2 and found["gradients"].abs().amax() < 0.01
    )  # layer norm's output; a mean loss
    assert all(
        tensor.dtype is torch.float32 and not tensor.requires_grad for tensor in found.values()
    )


def test_each_row_of_the_head_gradient_balances_its_label() -> None:
    found = head_gradient(steps=2)
    assert found.shape[0] == 1024 and found.dtype is torch.float32 and not found.requires_grad
    assert ((found < 0).sum(1) == 1).all()
    torch.testing.assert_close(found.sum(1), torch.zeros(1024), atol=1e-8, rtol=0)
    sides = found.clamp(max=0).sum(1)  # a probability minus 1, over 1,024
    assert sides.min() >= -1 / 1024 and sides.max() < 0


def test_an_imbalance_costs_more_than_what_is_lost_on_both_sides() -> None:
    assert imbalance_error(1.0, 1.0, steps=2) == 0
    assert imbalance_error(0.8, 0.8, steps=2) == pytest.approx(
        0.2, abs=1e-4
    )  # all of the gradient is a fifth too short
    assert imbalance_error(1.0, 0.8, steps=2) > 0.21  # which loses less


@pytest.mark.slow
def test_the_imbalance_alone_explains_what_mxfp4_does_to_gradients() -> None:
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
