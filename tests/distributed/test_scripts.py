"""The scripts under torchrun: equal weights on the ranks, and a resumed training that equals an
uninterrupted one.
"""

import re

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from amp_course.distributed.launching import run_script

pytestmark = pytest.mark.slow  # `make test` would take too long with it


def run(script, *arguments, ranks=2):
    """Run a script; return what each rank printed."""
    found = run_script(script, *arguments, ranks=ranks, seconds=120)
    assert found.ok, found.problem
    return [*found.output]


def weights(printed):
    return {re.findall(r"weights (-?[\d.]+)", one)[-1] for one in printed}


def test_ddp_resumes_to_the_last_bit(tmp_path):
    straight, broken = tmp_path / "straight.pt", tmp_path / "broken.pt"
    whole = run("ddp_amp", "--epochs", "2", "--checkpoint", str(straight))
    run("ddp_amp", "--epochs", "1", "--checkpoint", str(broken))
    resumed = run("ddp_amp", "--epochs", "2", "--checkpoint", str(broken))
    assert len(weights(whole)) == 1 and weights(whole) == weights(resumed)
    assert "mean loss" in whole[0] and "mean loss" not in whole[1]
    one, other = (torch.load(path) for path in (straight, broken))
    assert one["scaler"] == other["scaler"]
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])


def test_a_sharded_checkpoint_is_loaded_by_two_ranks_and_by_one(tmp_path):
    straight, broken = str(tmp_path / "straight"), str(tmp_path / "broken")
    whole = run("fsdp2_amp", "--dtype", "fp16", "--epochs", "2", "--checkpoint", straight)
    first = run("fsdp2_amp", "--dtype", "fp16", "--epochs", "1", "--checkpoint", broken)
    # nothing left to train
    alone = run("fsdp2_amp", "--dtype", "fp16", "--epochs", "1", "--checkpoint", broken, ranks=1)
    resumed = run("fsdp2_amp", "--dtype", "fp16", "--epochs", "2", "--checkpoint", broken)
    assert len(weights(first)) == 1 and weights(first) == weights(alone)
    assert weights(resumed) == weights(whole) != weights(first)
    assert "epoch" not in alone[0] and "epoch 1" not in resumed[0] and "epoch 2" in resumed[0]
    assert list((tmp_path / "broken" / "epoch-0001").glob("__1_*")), (
        "rank 1 writes a part of its own"
    )


def test_tensor_parallel_ranks_keep_one_scale_and_one_norm():
    printed = run("tensor_parallel_amp")
    found = [
        re.search(r"loss ([\d.]+), loss scale (\d+), weights ([\d.]+)", one) for one in printed
    ]
    first, second = (one.groups() for one in found if one)
    assert first == second and float(first[0]) < 0.5


def test_a_skip_decided_alone_ends_by_its_timeout():
    found = run_script("skip_alone", seconds=120)
    assert not found.ok and found.problem is not None
    assert "rank 0 skips step 2" in found.output[0]
    assert "rank 1 runs the backward pass of step 3" in found.output[1]
    assert "Timed out waiting 5000" in found.problem
    assert "for another rank, which never came" in found.problem


@pytest.mark.parametrize("accumulate", [3, 5])
def test_ddp_trains_as_one_process_would_with_every_sample_counting_the_same(accumulate, tmp_path):
    options = f"--dtype fp32 --epochs 1 --accumulate {accumulate} --checkpoint".split()
    run("ddp_amp", *options, tmp_path / "ranks.pt")
    inputs, targets = map(torch.tensor, load_digits(return_X_y=True))
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0)).tolist()
    order += order[: len(order) % 2]  # the sampler's: as many for both ranks, who take turns
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    step = 2 * 32 * accumulate
    for begin in range(0, len(order), step):  # all samples of a step at once
        rows = order[begin : begin + step]
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs[rows].float() / 16), targets[rows]).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    saved = torch.load(tmp_path / "ranks.pt")["model"]
    torch.testing.assert_close(saved, dict(net.state_dict()), rtol=1e-3, atol=1e-5)
