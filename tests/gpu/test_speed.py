"""What the chapter on speed measures of a GPU: its rates, its timeline by kind,
the cost of reading a value.
"""

import pytest
import torch
from torch import nn

from amp_course.kit.measure import time_step
from amp_course.loop.recipe import AMP_BF16, AMP_FP16
from amp_course.loop.workloads import simple_net
from amp_course.speed.explain import explain
from amp_course.speed.machine import measure_machine
from amp_course.speed.prediction import predict_workload


def training(device, width=2048, after=lambda loss: None):
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x, y = torch.randn(1024, width, device=device), torch.randn(1024, width, device=device)

    def step():
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after(loss)

    return step


def test_rates_are_those_of_tensor_cores(device):
    machine = measure_machine(device, sizes=(256, 4096), seconds=3)
    assert machine.peaks["fp16"] > 2 * machine.peaks["fp32"] > 1e12
    assert machine.bandwidth > 1e11 and 1e-7 < machine.launch_seconds < 1e-4


def test_kinds_add_up_to_the_step(device):
    step = training(device)
    found = explain(step, seconds=2)
    plain = time_step(step, device=device).median
    assert (
        sum(found.kinds.values()) == pytest.approx(found.seconds) == pytest.approx(plain, rel=0.15)
    )
    assert found.kinds["low-precision matmul"] > 0 and found.kinds["fp32 matmul"] == 0
    assert found.recorded < 4 * found.seconds


def test_reading_values_is_named(device):
    def read_all(loss):
        for part in loss.expand(300):
            part.item()

    found = explain(training(device, width=256, after=read_all), seconds=2)
    assert found.advice[0].cause in ("host-waits", "small-ops") and any(
        one.cause == "host-waits" for one in found.advice
    )


def test_the_prediction_is_near_the_measurement(device):
    recipe = AMP_BF16 if torch.cuda.is_bf16_supported(including_emulation=False) else AMP_FP16
    found = predict_workload(simple_net(device), recipe, device)
    assert found.predicted == pytest.approx(found.measured, rel=0.3)
