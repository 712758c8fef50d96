"""Each recipe against the same loop written out by hand, bit for bit; options; bad input."""

import copy
import dataclasses
import itertools

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.bits.formats import BF16
from amp_course.recipes import (
    ALL,
    AMP_BF16,
    HALF_BN32,
    O0,
    O1,
    O2,
    O3,
    PURE_BF16,
    PURE_BF16_SR,
    find,
)
from amp_course.underflow.stochastic import stochastic_round

HALF = torch.float16
SCALE = {"init_scale": 2.0**10, "growth_interval": 4}


def same(tensors, others):
    # equal_nan: an overflow upstream poisons batch norm's running statistics, in both loops alike
    pair = list(tensors), list(others)
    torch.testing.assert_close(*pair, rtol=0, atol=0, equal_nan=True)
    return len(pair[0]) > 0


@pytest.mark.parametrize("make", ["sgd", "adam"])
@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16], ids=str)
def test_o1_is_autocast_and_grad_scaler_bit_for_bit(overflowing, dtype, make):
    """Against torch.autocast and torch.amp.GradScaler, as PyTorch's documentation has them."""
    make_optimizer, model = getattr(overflowing, make), overflowing.model()
    optimizer, scaler = make_optimizer(model.parameters()), torch.amp.GradScaler("cpu", **SCALE)
    session = overflowing.prepare(O1(dtype=dtype), make_optimizer)
    session.scaler.load_state_dict(scaler.state_dict())
    scales = [scaler.get_scale()]
    for inputs, targets in overflowing.batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        assert same([session.step(inputs, targets)], [loss.detach()])
        assert session.scale == scales[-1]
    falls = sum(b < a for a, b in itertools.pairwise(scales))
    assert session.skipped == falls == (4 if dtype is HALF else 0)
    assert same(session.model.state_dict().values(), model.state_dict().values())
    for a, b in zip(session.model.parameters(), model.parameters(), strict=True):
        assert same(session.optimizer.state[a].values(), optimizer.state[b].values())


@pytest.mark.parametrize("recipe", [O0(), AMP_BF16()], ids=lambda recipe: recipe.name)
def test_what_scales_nothing_is_the_plain_loop(setting, recipe):
    model = setting.model()
    optimizer = setting.adam(model.parameters())
    session = setting.prepare(recipe, setting.adam)
    for inputs, targets in setting.batches[:12]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=recipe != O0()):
            loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert torch.equal(session.step(inputs, targets), loss.detach())
    assert same(session.model.parameters(), model.parameters())
    assert session.scaler is None and session.skipped == 0 and session.scale == 1.0


def test_o2_is_master_weights_by_hand(overflowing):
    model = overflowing.model().half()
    model[1].float()
    originals = list(model.parameters())
    owned = [p if p.dtype is torch.float32 else nn.Parameter(p.detach().float()) for p in originals]
    optimizer, scaler = overflowing.sgd(owned), torch.amp.GradScaler("cpu")
    session = overflowing.prepare(O2())
    for inputs, targets in overflowing.batches:
        loss = cross_entropy(model(inputs.half()).float(), targets)
        scaler.scale(loss).backward()
        for parameter, master in zip(originals, owned, strict=True):
            if master is not parameter:
                master.grad = parameter.grad.float()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for parameter, master in zip(originals, owned, strict=True):
                if master is not parameter:
                    parameter.copy_(master)
        model.zero_grad()
        optimizer.zero_grad()
        session.step(inputs, targets)
    assert session.skipped == 4 and session.scale == scaler.get_scale()
    assert same(session.model.parameters(), originals)
    assert same(session.optimizer.param_groups[0]["params"], owned)
    assert {p.dtype for p in session.model[1].parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("recipe", "low", "keeps_norm", "fp32_loss"),
    [
        (O3(), HALF, False, True),
        (O3(keep_batchnorm_fp32=True), HALF, True, True),
        (HALF_BN32(), HALF, True, False),
        (PURE_BF16(), torch.bfloat16, False, False),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_half_models_are_half_by_hand(setting, recipe, low, keeps_norm, fp32_loss):
    model = setting.model().to(low)
    if keeps_norm:
        model[1].float()
    optimizer = setting.sgd(model.parameters())
    session = setting.prepare(recipe)
    for inputs, targets in setting.batches[:12]:
        outputs = model(inputs.to(low))
        loss = cross_entropy(outputs.float() if fp32_loss else outputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found = session.step(inputs, targets)
        assert torch.equal(found, loss.detach().float()) and found.dtype is torch.float32
    assert same(session.model.state_dict().values(), model.state_dict().values())


def test_stochastic_update_by_hand(setting):
    model = setting.model().bfloat16()
    draws = torch.Generator().manual_seed(7)
    session = setting.prepare(PURE_BF16_SR(seed=7), lambda params: torch.optim.SGD(params, lr=0.05))
    for inputs, targets in setting.batches[:8]:
        cross_entropy(model(inputs.bfloat16()), targets).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                updated = parameter.float().add_(parameter.grad.float(), alpha=-0.05)
                parameter.copy_(stochastic_round(updated, BF16, draws))
        model.zero_grad()
        session.step(inputs, targets)
    assert same(session.model.parameters(), model.parameters())


@pytest.mark.parametrize("loss_scale", ["dynamic", 128.0, None])
@pytest.mark.parametrize("master_weights", [True, False])
def test_levels_train_with_every_scale(setting, loss_scale, master_weights):
    session = setting.prepare(O2(loss_scale=loss_scale, master_weights=master_weights))
    losses = [session.step(*setting.batches[0]).item() for _ in range(12)]
    assert losses[-1] < 0.7 * losses[0]
    assert session.scale == {"dynamic": 2.0**16, 128.0: 128.0, None: 1.0}[loss_scale]
    assert hasattr(session, "pairs") == master_weights


def test_a_static_scale_saves_small_gradients_and_cancels_out():
    def gradient(loss_scale):
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        session = O3(loss_scale=loss_scale, master_weights=True).prepare(
            model,
            lambda params: torch.optim.SGD(params, lr=1.0),
            lambda outputs, targets: outputs.sum(),
        )
        # below half of fp16's smallest: 0 as an input too
        session.step(torch.full((1, 1), 2.0**-25), torch.zeros(1))
        session.step(torch.full((1, 1), 2.0**-24), torch.zeros(1))
        return session.pairs[0][1].item()

    assert gradient(1.0) == gradient(1024.0) == -(2.0**-24)


def test_ids_stay_ids():
    model = nn.Sequential(nn.Embedding(7, 8), nn.Flatten(), nn.Linear(24, 3))
    session = O2().prepare(model, lambda params: torch.optim.SGD(params, lr=0.1), cross_entropy)
    assert session.step(torch.randint(7, (4, 3)), torch.tensor([0, 1, 2, 0])).isfinite()


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_targets_that_are_floats_meet_half_outputs(setting, recipe):
    session = recipe.prepare(nn.Linear(4, 2), setting.sgd, nn.functional.mse_loss)
    assert session.step(torch.randn(3, 4), torch.randn(3, 2)).isfinite()


def test_frozen_layers_stay_as_they_are(setting):
    for recipe in ALL:
        model = setting.model()
        model[0].weight.requires_grad_(False)
        before = model[0].weight.clone()
        session = recipe.prepare(model, setting.sgd, setting.loss_fn)
        session.step(*setting.batches[0])
        first, last = session.model[0].weight, session.model[4].weight
        assert torch.equal(first, before.to(first.dtype))
        assert not torch.equal(last, setting.model()[4].weight.to(last.dtype))


# Names and options


def test_all_has_each_recipe_once_and_find_knows_them():
    assert len({recipe.name for recipe in ALL}) == len(ALL) == 8
    for recipe in ALL:
        assert find(recipe.name.upper().replace("_", "-")) == recipe
    assert find("o2", keep_batchnorm_fp32=False) == O2(keep_batchnorm_fp32=False)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: find("o2", masters=True), "O2 has no option 'masters': it takes .*master_weights"),
        (
            lambda: O1(loss_scale="static"),
            "loss_scale is 'static', and it has to be \"dynamic\", a",
        ),
        (lambda: O1(loss_scale=0), "loss_scale is 0"),
        (lambda: O1(loss_scale=float("nan")), "loss_scale is nan"),
        (lambda: O1(loss_scale=True), "loss_scale is True"),
        (lambda: O1(dtype=torch.float32), r"dtype is torch.float32, and .* one of torch.float16"),
        (lambda: O2(keep_batchnorm_fp32=None), "fp32 is None, .* one of True, False"),
        (lambda: O0(save_dtype="float32"), "save_dtype is 'float32'"),
        (lambda: O2(fp32_ops=["qqqqqqqq"]), "write it as you call it"),
        (lambda: O1(fp32_ops="softmax"), r"one string: write fp32_ops=\['softmax'\]"),
        (lambda: O1(fp32_ops=["linear"], lower_ops=["linear"]), "linear is in both fp32_ops and"),
    ],
)
def test_unknown_recipe_or_option(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_recipes_are_plain_values(recipe):
    assert copy.deepcopy(recipe) == recipe == dataclasses.replace(recipe)
    assert hash(recipe) == hash(type(recipe)())
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.save_dtype = torch.float16


# Models that no recipe can start from


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_bad_models(recipe, setting):
    def prepare(model):
        return recipe.prepare(model, setting.sgd, setting.loss_fn)

    with pytest.raises(ValueError, match="ReLU has no parameters"):
        prepare(nn.ReLU())
    with pytest.raises(ValueError, match=r"0.weight is float16 already.*before half\(\)"):
        prepare(setting.model().half())


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_bad_optimizers_and_losses(recipe, setting):
    with pytest.raises(ValueError, match="made a list: hand over a function"):
        setting.prepare(recipe, lambda params: params)
    session = recipe.prepare(setting.model(), setting.sgd, nn.CrossEntropyLoss(reduction="none"))
    with pytest.raises(ValueError, match=r"shape \(8,\).*reduc"):
        session.step(*setting.batches[0])


def test_an_optimizer_of_the_models_own_weights_is_refused_where_masters_are_meant(setting):
    model = setting.model()
    with pytest.raises(ValueError, match=r"not from model.parameters\(\)"):
        O2().prepare(
            model, lambda params: torch.optim.SGD(model.parameters(), lr=0.1), setting.loss_fn
        )
