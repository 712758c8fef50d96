"""A replayed step: the same bits, or the first thing that differs; afterwards all is as before."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from amp_course.debugging.replaying import digest, replay


def training(noise: bool = False) -> tuple[nn.Module, torch.optim.Optimizer, object]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        if noise:
            loss = loss * (1 + (time.perf_counter_ns() % 1000) / 1e3)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return model, optimizer, step


def test_a_step_with_dropout_is_the_same_to_the_last_bit_and_put_back() -> None:
    model, optimizer, step = training()
    before = {name: digest(value) for name, value in model.state_dict().items()}
    found = replay(step, (torch.randn(8, 4),), model=model, optimizer=optimizer)
    assert found and found.differing == ()
    counts = "the loss, 4 gradients, 4 weights, 3 buffers"
    assert str(found) == f"2 runs of the step gave the same bits: {counts}."
    assert before == {name: digest(value) for name, value in model.state_dict().items()}
    assert not optimizer.state and all(weight.grad is None for weight in model.parameters())


def test_the_first_thing_that_differs_is_named() -> None:
    model, optimizer, step = training(noise=True)
    found = replay(step, (torch.randn(8, 4),), model=model, optimizer=optimizer)
    assert not found and found.differing[0] == "the loss"
    assert "2 runs of the step differ, first in the loss, and " in str(found)


def test_gradients_count_where_no_optimizer_steps() -> None:
    model = nn.Linear(2, 1)
    found = replay(lambda: model(torch.ones(1, 2)).sum().backward(), model=model)
    assert found and "the gradient of weight" in found.hashes


def test_digests_tell_bits_apart() -> None:
    one = torch.tensor([0.0, 1.0])
    assert digest(one) == digest(one.clone()) != digest(torch.tensor([-0.0, 1.0]))
    assert digest(one) != digest(one.reshape(2, 1)) and digest(one) != digest(one.double())
    assert digest(torch.ones(3, dtype=torch.bfloat16)) == digest(
        torch.ones(3, dtype=torch.bfloat16)
    )
    assert digest(torch.empty(0)) and digest(torch.tensor(1.0))
    nan = torch.tensor([float("nan")])
    assert digest(nan) == digest(nan.clone())


def test_two_models_whose_weights_have_one_name() -> None:
    models = [nn.Linear(1, 1), nn.Linear(1, 1)]

    def step() -> None:
        models[0].weight.data.fill_(time.perf_counter_ns() % 2**20)

    assert replay(lambda: None, model=models)
    assert replay(step, model=models).differing == ("the weight weight",)


def test_what_the_step_raises_comes_out_and_all_is_put_back() -> None:
    model = nn.Linear(2, 1)
    before = digest(model.weight)

    def step() -> None:
        with torch.no_grad():
            model.weight.add_(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        replay(step, model=model)
    assert digest(model.weight) == before


def test_an_iterator_that_moved_on_is_named() -> None:
    model = nn.Linear(1, 1)
    numbers = DataLoader(TensorDataset(torch.arange(9.0).view(9, 1)))
    loader = iter(numbers)
    found = replay(lambda: model(next(loader)[0]).sum(), model=model)
    assert not found and "Not put back: `loader` is an iterator" in str(found)


def test_sparse_gradients_have_bits_too() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    found = replay(lambda: model(torch.tensor([1, 1, 3])).sum().backward(), model=model)
    assert found and "1 gradient" in str(found)
