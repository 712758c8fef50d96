"""Each recipe against the same loop written out by hand, bit for bit; options; bad input."""

import copy
import dataclasses
import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

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
    pairs = list(zip(tensors, others, strict=True))
    assert pairs
    # equal_nan: an overflow upstream poisons batch norm's running statistics, in both loops alike
    return all(
        a.dtype is b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        for a, b in pairs
    )


def amp_by_hand(setting, dtype, make_optimizer):
    """torch.autocast and torch.amp.GradScaler, as PyTorch's documentation has them."""
    model = setting.model()
    optimizer, scaler = make_optimizer(model.parameters()), torch.amp.GradScaler("cpu", **SCALE)
    losses, scales = [], []
    for inputs, targets in setting.batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
        scales.append(scaler.get_scale())
    return model, optimizer, losses, scales


@pytest.mark.parametrize("make", ["sgd", "adam"])
@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16], ids=str)
def test_o1_is_autocast_and_grad_scaler_bit_for_bit(overflowing, dtype, make):
    make_optimizer = getattr(overflowing, make)
    model, optimizer, losses, scales = amp_by_hand(overflowing, dtype, make_optimizer)
    session = overflowing.prepare(O1(dtype=dtype), make_optimizer)
    session.scaler.load_state_dict(torch.amp.GradScaler("cpu", **SCALE).state_dict())
    found, found_scales = [], []
    for batch in overflowing.batches:
        found.append(session.step(*batch))
        found_scales.append(session.scale)
    assert same(found, losses)
    assert found_scales == scales
    falls = sum(b < a for a, b in zip([SCALE["init_scale"], *scales], scales, strict=False))
    assert session.skipped == falls == (4 if dtype is HALF else 0)
    assert same(session.model.state_dict().values(), model.state_dict().values())
    for a, b in zip(session.model.parameters(), model.parameters(), strict=True):
        assert same(
            [
                value
                for value in session.optimizer.state[a].values()
                if isinstance(value, torch.Tensor)
            ],
            [value for value in optimizer.state[b].values() if isinstance(value, torch.Tensor)],
        )


def test_o0_is_the_fp32_loop(setting):
    model = setting.model()
    optimizer = setting.adam(model.parameters())
    session = setting.prepare(O0(), setting.adam)
    for inputs, targets in setting.batches:
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert torch.equal(session.step(inputs, targets), loss.detach())
    assert same(session.model.parameters(), model.parameters())
    assert session.scaler is None and session.skipped == 0 and session.scale == 1.0


def test_amp_bf16_is_autocast_without_a_scaler(setting):
    model = setting.model()
    optimizer = setting.sgd(model.parameters())
    session = setting.prepare(AMP_BF16())
    for inputs, targets in setting.batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(inputs, targets)
    assert session.scaler is None and same(session.model.parameters(), model.parameters())


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
    for inputs, targets in setting.batches:
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
                parameter.copy_(stochastic_round(updated, find_bf16(), draws))
        model.zero_grad()
        session.step(inputs, targets)
    assert same(session.model.parameters(), model.parameters())


def find_bf16():
    from amp_course.bits.formats import find_format

    return find_format("bf16")


def test_stochastic_rounding_moves_weights_that_nearest_rounding_leaves():
    """100 updates of 1e-4 from 1.0: bf16 stays at 1.0;
    the mean over many weights reaches 1.01, as in fp32.
    """

    def trained(recipe):
        model = nn.Linear(4000, 1, bias=False)
        nn.init.ones_(model.weight)
        session = recipe.prepare(
            model,
            lambda params: torch.optim.SGD(params, lr=1e-4),
            lambda outputs, targets: -outputs.sum(),
        )
        for _ in range(100):
            session.step(torch.ones(1, 4000), torch.zeros(1))
        return session.model.weight.float().mean().item()

    assert trained(PURE_BF16()) == 1.0
    # one weight's standard deviation is below sqrt(100) * ulp / 2 = 0.04; of the mean of 4000,
    # below 0.0007
    assert abs(trained(PURE_BF16_SR()) - 1.01) < 0.003


def test_stochastic_recipe_keeps_everything_in_bf16(setting):
    session = setting.prepare(PURE_BF16_SR(), setting.adam)
    for batch in setting.batches[:2]:
        session.step(*batch)
    assert {p.dtype for p in session.model.parameters()} == {torch.bfloat16}
    state = [v for s in session.optimizer.state.values() for v in s.values() if v.dim() > 0]
    assert {v.dtype for v in state} == {torch.bfloat16}
    assert all(p.grad is None for p in session.model.parameters())
    assert len(session.optimizer.param_groups) == 1  # put back as it was


def test_o2_follows_fp32_for_200_steps_where_o3_does_not():
    """Relative distance of all weights from an fp32 twin:
    under 2^-10 with master weights, above without.
    """
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    inputs, targets = (
        torch.randn(64, 16, generator=generator),
        torch.randint(0, 4, (64,), generator=generator),
    )

    def distances(recipe):
        sessions = [
            r.prepare(
                copy.deepcopy(first), lambda params: torch.optim.SGD(params, lr=0.01), cross_entropy
            )
            for r in (recipe, O0())
        ]
        found = []
        for _ in range(200):
            weights = []
            for session in sessions:
                session.step(inputs, targets)
                weights.append(
                    torch.cat(
                        [p.detach().flatten() for p in session.optimizer.param_groups[0]["params"]]
                    )
                )
            found.append(((weights[0].float() - weights[1]).norm() / weights[1].norm()).item())
        moved = (weights[1] - nn.utils.parameters_to_vector(first.parameters())).norm() / weights[
            1
        ].norm()
        assert moved > 0.05  # the reference has gone somewhere
        return found

    assert max(distances(O2())) < 2**-10
    assert distances(O3())[-1] > 2**-10


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
        session.step(
            torch.full((1, 1), 2.0**-25), torch.zeros(1)
        )  # below half of fp16's smallest: 0 as an input too
        session.step(torch.full((1, 1), 2.0**-24), torch.zeros(1))
        return session.pairs[0][1].item()

    assert gradient(1.0) == gradient(1024.0) == -(2.0**-24)


def test_ids_stay_ids():
    model = nn.Sequential(nn.Embedding(7, 8), nn.Flatten(), nn.Linear(24, 3))
    session = O2().prepare(model, lambda params: torch.optim.SGD(params, lr=0.1), cross_entropy)
    assert session.step(torch.randint(7, (4, 3)), torch.tensor([0, 1, 2, 0])).isfinite()


def test_targets_that_are_floats_meet_half_outputs():
    model = nn.Linear(4, 2)
    for recipe in ALL:
        session = recipe.prepare(
            copy.deepcopy(model),
            lambda params: torch.optim.SGD(params, lr=0.1),
            nn.functional.mse_loss,
        )
        assert session.step(torch.randn(3, 4), torch.randn(3, 2)).isfinite()


def test_frozen_layers_stay_as_they_are(setting):
    for recipe in ALL:
        model = setting.model()
        model[0].weight.requires_grad_(False)
        before = model[0].weight.clone()
        session = recipe.prepare(model, setting.sgd, setting.loss_fn)
        session.step(*setting.batches[0])
        assert torch.equal(session.model[0].weight, before.to(session.model[0].weight.dtype))
        assert not torch.equal(
            session.model[4].weight, setting.model()[4].weight.to(session.model[4].weight.dtype)
        )


# Names and options


def test_all_has_each_recipe_once_and_find_knows_them():
    assert len({recipe.name for recipe in ALL}) == len(ALL) == 8
    for recipe in ALL:
        assert find(recipe.name.upper().replace("_", "-")) == recipe and find(recipe) is recipe
    assert find("o2", keep_batchnorm_fp32=False) == O2(keep_batchnorm_fp32=False)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: find("o4"), "unknown recipe 'o4': choose one of o0, o1"),
        (lambda: find("o2", masters=True), "O2 has no option 'masters': it takes .*master_weights"),
        (lambda: HALF_BN32(loss_scale=2.0), "HALF_BN32 has no option 'loss_scale'"),
        (
            lambda: O1(loss_scale="static"),
            "loss_scale is 'static', and it has to be \"dynamic\", a number above 0",
        ),
        (lambda: O1(loss_scale=0), "loss_scale is 0"),
        (lambda: O1(loss_scale=float("nan")), "loss_scale is nan"),
        (lambda: O1(loss_scale=True), "loss_scale is True"),
        (
            lambda: O1(dtype=torch.float32),
            r"dtype is torch.float32, and it has to be one of torch.float16",
        ),
        (
            lambda: O2(keep_batchnorm_fp32=None),
            "keep_batchnorm_fp32 is None, and it has to be one of True, False",
        ),
        (lambda: O0(save_dtype="float32"), "save_dtype is 'float32'"),
        (lambda: O1(fp32_ops=["sofmax"]), "torch has no op 'sofmax': did you mean softmax"),
        (lambda: O2(fp32_ops=["qqqqqqqq"]), "write it as you call it"),
        (lambda: O1(fp32_ops="softmax"), r"one string: write fp32_ops=\['softmax'\]"),
        (
            lambda: O1(fp32_ops=["linear"], lower_ops=["linear"]),
            "linear is in both fp32_ops and lower_ops",
        ),
    ],
)
def test_unknown_recipe_or_option(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_recipes_are_plain_values(recipe):
    assert (
        pickle.loads(pickle.dumps(recipe))
        == recipe
        == copy.deepcopy(recipe)
        == dataclasses.replace(recipe)
    )
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
    with pytest.raises(ValueError, match=r"parameters are on cpu and meta.*model.to\(device\)"):
        prepare(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")))


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_bad_optimizers_and_losses(recipe, setting):
    stray = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="owns parameters that it was not given"):
        setting.prepare(recipe, lambda params: torch.optim.SGD([stray], lr=0.1))
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
