"""The task and the model; how well it trains is in test_chapter.py."""

import pytest
import torch

from amp_course.positions import Repeater, Rope
from amp_course.positions.experiment import (
    BACK,
    VOCAB,
    Trained,
    draw_tokens,
    in_bins,
    repeat_loss,
    train_repeater,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def test_loss_asks_for_the_token_three_back():
    class Knows(torch.nn.Module):
        def forward(self, tokens, ids):
            return 50.0 * torch.nn.functional.one_hot(tokens.roll(BACK, dims=1), VOCAB).float()

    tokens = draw_tokens(2, torch.Generator().manual_seed(0), 40)
    assert repeat_loss(Knows(), tokens, torch.arange(40)) < 1e-6
    assert repeat_loss(Knows(), tokens.roll(1, dims=1), torch.arange(40)) < 1e-6


def test_the_model_sees_the_past_only():
    model, ids = Repeater(), torch.arange(30)
    tokens = draw_tokens(1, torch.Generator().manual_seed(0), 30)
    changed = tokens.clone()
    changed[0, 20] = (changed[0, 20] + 1) % VOCAB
    with torch.no_grad():
        before, after = model(tokens, ids), model(changed, ids)
    assert torch.equal(before[0, :20], after[0, :20]) and not torch.equal(
        before[0, 20:], after[0, 20:]
    )


def test_only_position_ids_tell_positions_apart():
    model = Repeater()
    torch.nn.init.normal_(model.query.weight)
    tokens = draw_tokens(1, torch.Generator().manual_seed(0), 30)
    with torch.no_grad():
        same = [model(tokens, ids)[0, -1] for ids in (torch.arange(30), torch.arange(500, 530))]
        other = model(tokens, 2 * torch.arange(30))[0, -1]
    assert (same[0] - same[1]).abs().max() < 1e-3 < (same[0] - other).abs().max()


def test_training_is_the_same_for_a_seed_and_leaves_the_random_state_alone():
    ids = torch.arange(40)
    state = torch.random.get_rng_state()
    first, second, other = (train_repeater(ids, seed, steps=3) for seed in (0, 0, 1))
    assert first.losses == second.losses != other.losses and len(first.losses) == 3
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first.hits.isnan().tolist() == [True] * BACK + [False] * 37


def test_bins_and_accuracy_are_means_of_positions():
    hits = torch.tensor([float("nan")] * 3 + [1.0, 0.0, 1.0, 0.0, 0.0])
    assert in_bins(hits, 4) == [(2.0, 1.0), (6.0, 0.25)]
    trained = Trained(Repeater(Rope(8), width=8), (), hits)
    assert trained.accuracy(0, 6) == torch.tensor(2 / 3).item() and trained.accuracy(6, 8) == 0
