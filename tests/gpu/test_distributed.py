"""The scripts of chapter 10 on a GPU: one rank over NCCL.
Agreeing needs two GPUs, and is tested over gloo.
"""

import pytest
import torch
from torch.amp import GradScaler

from amp_course.distributed.agreement import AgreedGradScaler
from amp_course.distributed.launching import run_script


def test_the_scripts_train_over_nccl(device, tmp_path):
    pytest.importorskip("psutil")
    for name in ("ddp_amp", "fsdp2_amp"):
        found = run_script(
            name,
            "--dtype",
            "fp16",
            "--epochs",
            "1",
            "--checkpoint",
            tmp_path / name,
            ranks=1,
            seconds=120,
        )
        assert found.ok and "epoch 1" in found.output[0], found.problem


def test_alone_the_agreed_scaler_is_a_gradscaler(device):
    states = []
    for make in (GradScaler, AgreedGradScaler):
        weight = torch.nn.Parameter(torch.ones(4, device=device))
        scaler, optimizer = make("cuda", init_scale=8.0), torch.optim.SGD([weight], lr=0.1)
        for factor in (1.0, float("inf"), 1.0):
            scaler.scale((weight * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        states.append((scaler.state_dict(), weight.tolist()))
    assert states[0] == states[1] and states[0][0]["scale"] == 4.0
