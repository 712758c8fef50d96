"""Collectives on a fake group: bytes match the parameters, and the group leaves nothing behind."""

import sys
from collections import Counter
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode

from amp_course.distributed.communication import SETUPS, count_collectives, total_bytes
from amp_course.distributed.communication.counting import CollectiveCall, _fake_group
from amp_course.distributed.communication.setups import (
    MICRO_BATCHES,
    build_ddp,
    build_fsdp2,
    train_step,
)

PARAMETERS = 3 * (64 * 64 + 64)  # of SimpleNet(64)
RANKS = 64


def of_step(name):
    setup = SETUPS[name]
    calls = count_collectives(setup.build, setup.step, RANKS)
    return [call for call in calls if call.phase != "construction"]


def summed(calls):
    """{(phase, kind, dtype): (calls, elements)}"""
    numbers, elements = Counter(), Counter()
    for call in calls:
        key = (call.phase, call.kind, call.dtype)
        numbers[key] += 1
        elements[key] += call.elements
    return {key: (number, elements[key]) for key, number in numbers.items()}


@pytest.mark.parametrize(
    ("name", "dtype", "times"),
    [
        ("DDP, fp32", "float32", 1),
        ("DDP, autocast bf16", "float32", 1),  # weights and their gradients stay fp32
        ("DDP, autocast fp16", "float32", 1),
        ("DDP, fp16 hook", "float16", 1),
        ("DDP, bf16 hook", "bfloat16", 1),
        ("DDP, 4 micro-batches", "float32", MICRO_BATCHES),
        ("DDP, 4 with no_sync", "float32", 1),
    ],
)
def test_ddp_all_reduces_each_parameter_once_a_backward_pass(name, dtype, times):
    calls = of_step(name)
    assert summed(calls) == {("backward", "all_reduce", dtype): (times, times * PARAMETERS)}
    assert total_bytes(calls) == {dtype: times * PARAMETERS * (4 if dtype == "float32" else 2)}
    assert {call.ranks for call in calls} == {RANKS}


@pytest.mark.parametrize(
    ("name", "gathered", "reduced"),
    [
        ("FSDP2, fp32", "float32", "float32"),
        ("FSDP2, bf16, reduce fp32", "bfloat16", "float32"),
        ("FSDP2, bf16, reduce bf16", "bfloat16", "bfloat16"),
    ],
)
def test_fsdp2_gathers_twice_and_reduces_once_in_the_dtypes_of_its_policy(name, gathered, reduced):
    assert summed(of_step(name)) == {
        ("forward", "all_gather", gathered): (3, PARAMETERS),
        ("backward", "all_gather", gathered): (3, PARAMETERS),
        ("backward", "reduce_scatter", reduced): (3, PARAMETERS),
    }


def test_clipping_a_sharded_norm_adds_one_all_reduce_of_a_norm_for_each_parameter():
    plain, clipped = summed(of_step("FSDP2, fp32")), summed(of_step("FSDP2, fp32, clipped"))
    number, elements = clipped.pop(("other", "all_reduce", "float32"))
    assert clipped == plain
    # three weights, three biases; newer versions of torch stack them first, and 2.7 adds them up
    assert (number, elements) in {(6, 6), (1, 6), (1, 1)}


def test_fsdp2_pads_each_parameter_to_equal_pieces():
    calls = count_collectives(build_fsdp2, train_step, 5)
    assert {call.elements for call in calls} == {65 * 64 + 65}  # of 64 rows, 64 numbers of the bias
    assert len(calls) == 9


def test_the_construction_of_ddp_broadcasts_the_weights():
    calls = count_collectives(build_ddp, train_step)
    made = [call for call in calls if call.phase == "construction"]
    assert summed(made)["construction", "broadcast", "float32"][1] == PARAMETERS
    assert calls[: len(made)] == tuple(made)


# torch warns of the hooks that CommDebugMode puts on modules
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_counts_are_those_of_torchs_own_comm_debug_mode():
    with _fake_group(RANKS):
        training = build_fsdp2()
        for _ in range(2):
            train_step(training, clip=True)
        with CommDebugMode() as theirs:
            train_step(training, clip=True)
        total = theirs.get_total_counts()
    assert len(of_step("FSDP2, fp32, clipped")) == total


def test_phases_of_a_step_written_by_hand():
    class Talking(nn.Linear):
        def forward(self, x):
            dist.all_reduce(torch.ones(1))
            return super().forward(x)

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            dist.all_reduce(torch.ones(4))
            return super().step(closure)

    def build():
        dist.broadcast(torch.ones(5), src=0)
        model = Talking(2, 1)
        model.weight.register_hook(lambda gradient: dist.all_reduce(torch.ones(2)))
        return model, Optimizer(model.parameters(), lr=0.1)

    def step(built):
        model, optimizer = built
        model(torch.ones(2)).backward()
        dist.all_reduce(torch.ones(3))
        optimizer.step()
        optimizer.zero_grad()

    calls = count_collectives(build, step, ranks=3)
    phases = ["construction", "forward", "backward", "other", "optimizer"]
    assert [(call.elements, call.phase) for call in calls] == list(
        zip((5, 1, 2, 3, 4), phases, strict=True)
    )


def test_sent_bytes_are_those_of_a_ring():
    def call(kind, ranks=4):
        return CollectiveCall(kind, "float32", 100, 400, "backward", ranks).sent_bytes

    assert call("all_gather") == call("reduce_scatter") == 300
    assert (call("all_reduce"), call("broadcast"), call("all_reduce", ranks=1)) == (600, 400, 0)


def test_nothing_is_left_behind():
    hook, threads, random_state = sys.excepthook, torch.get_num_threads(), torch.get_rng_state()
    count = partial(count_collectives, build_ddp, train_step, ranks=2)
    # No hook of ours on modules or optimizers either: those of the first would see the second.
    assert count() == count()
    assert not dist.is_initialized()
    assert (sys.excepthook, torch.get_num_threads()) == (hook, threads)
    assert torch.equal(torch.get_rng_state(), random_state)


@pytest.mark.parametrize("where", ["build", "backward"])
def test_an_error_leaves_no_group_and_comes_out_unchanged(where):
    def fail(*_):
        raise ZeroDivisionError(where)

    def build():
        training = build_ddp()
        if where == "build":
            fail()
        next(training.model.parameters()).register_hook(fail)
        return training

    with pytest.raises(ZeroDivisionError, match=where):
        count_collectives(build, train_step)
    assert not dist.is_initialized()
    assert len(of_step("DDP, fp32")) == 1


def test_a_group_of_the_callers_is_neither_used_nor_closed():
    with _fake_group(2):
        with pytest.raises(RuntimeError, match="has a default process group already"):
            count_collectives(build_ddp, train_step)
        assert dist.get_world_size() == 2
