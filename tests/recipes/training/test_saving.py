"""What a session saves, and that a resumed one goes on as if nothing had been."""

import io

import pytest
import torch

from amp_course.recipes import ALL, O0, O2, O3, PURE_BF16


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_a_resumed_run_is_the_unbroken_one(overflowing, recipe):
    batches = overflowing.batches
    whole = overflowing.prepare(recipe, overflowing.adam)
    state = None
    losses = []
    for number, batch in enumerate(batches[:14]):
        if number == 7:
            state = through_a_file(whole.state_dict())
        losses.append(whole.step(*batch))
    resumed = overflowing.prepare(recipe, overflowing.adam)
    resumed.load_state_dict(state)
    for number in range(7, 14):
        loss = resumed.step(*batches[number])
        assert torch.equal(loss, losses[number]) or (loss.isnan() and losses[number].isnan())
    states = whole.model.state_dict(), resumed.model.state_dict()
    torch.testing.assert_close(*states, rtol=0, atol=0, equal_nan=True)
    assert resumed.scale == whole.scale


def test_state_is_a_snapshot(setting):
    session = setting.prepare(O2())
    state = session.state_dict()
    before = [master.clone() for master in state["masters"]]
    session.step(*setting.batches[0])
    assert all(torch.equal(a, b) for a, b in zip(before, state["masters"], strict=True))


@pytest.mark.parametrize("recipe", [O2, PURE_BF16], ids=lambda recipe: recipe.name)
def test_save_dtype_is_honoured_and_changes_no_training(setting, recipe):
    session = setting.prepare(recipe(save_dtype=torch.float32))
    session.step(*setting.batches[0])
    state = session.state_dict()
    floats = {t.dtype for t in state["model"].values() if t.is_floating_point()}
    assert floats == {torch.float32}
    assert state["model"]["1.num_batches_tracked"].dtype is torch.int64
    setting.model().load_state_dict(state["model"])  # an fp32 model takes it as it is
    other = setting.prepare(recipe(save_dtype=torch.float32))
    other.load_state_dict(state)
    assert torch.equal(other.step(*setting.batches[1]), session.step(*setting.batches[1]))


def test_a_narrow_save_dtype_rounds_the_saved_weights_only(setting):
    session = setting.prepare(O0(save_dtype=torch.float16))
    assert session.state_dict()["model"]["0.weight"].dtype is torch.float16
    assert session.model[0].weight.dtype is torch.float32


def test_states_of_another_recipe_are_refused(setting):
    o0, o2, o3 = (
        setting.prepare(recipe).state_dict() for recipe in (O0(), O2(), O3(loss_scale="dynamic"))
    )
    with pytest.raises(ValueError, match="4 master weights are needed, and this state has none"):
        setting.prepare(O2()).load_state_dict(o3)
    with pytest.raises(ValueError, match=r"no scaler.*load_state_dict"):
        setting.prepare(O3(loss_scale="dynamic")).load_state_dict(o0)
    o2["masters"].pop()
    with pytest.raises(ValueError, match="of other shapes or in another number"):
        setting.prepare(O2()).load_state_dict(o2)
