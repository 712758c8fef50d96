"""Pages of `amp-course bench` from machines that are not here, and the smallest plan."""

import torch

from amp_course.loop.workloads import simple_net
from amp_course.speed.bench.page import Page, Result
from amp_course.speed.bench.run import Plan
from amp_course.speed.machine import Machine, Rate

CPU = torch.device("cpu")
TINY = Plan(
    "tiny",
    0.1,
    0.2,
    sizes=(8, 16),
    workloads=lambda device: [simple_net(device, width=8, batch_size=2)],
)


NAMES = {
    "simple_net": "SimpleNet, width 64",
    "digits_resnet": "ResNet on digits, batch 64",
    "char_gpt": "Character GPT",
}


def result(name, recipe="amp_bf16", speedup=2.0, noise=0.02, ops=100, gap=None):
    seconds = {"fp32": 0.02, "amp": 0.02 / speedup}
    return Result(
        name,
        NAMES[name],
        recipe,
        share=0.6,
        factor=4.0,
        ceiling=1.8,
        predicted=1.7,
        seconds=seconds,
        median={side: one * (1 + noise) for side, one in seconds.items()},
        quartiles={side: [one, one * (1 + 2 * noise)] for side, one in seconds.items()},
        gap_seconds=dict.fromkeys(("casts", "other ops", "memory", "unexplained"), 0.0)
        | (gap or {}),
        ops={"fp32": ops, "amp": ops},
    )


def three(speedups, recipe="amp_bf16", **more):
    return tuple(map(lambda name, one: result(name, recipe, one, **more), NAMES, speedups))


def page(results=(), left_out=(), device="cpu", launch=1e-6, complete=True, **factors):
    """A page of a machine whose matmuls are `factors` times as fast as fp32's."""
    rates = tuple(Rate(fmt, 512, factor * 1e11) for fmt, factor in ({"fp32": 1} | factors).items())
    machine = {"device": device, "device_name": f"a {device}", "cpu_cores": 2, "threads": 2}
    return Page(
        "2026-11-23T10:20:15+00:00",
        complete,
        60.0,
        {"course": "0.1.0", "torch": "2.13.0", "python": "3.12.1"},
        {"plan": "full"},
        machine | {"torch_version": "2.13.0"},
        Machine(device, rates, 2e10, launch),
        tuple(results),
        tuple(left_out),
    )


BOTH = [*three([2.4, 1.3, 1.8]), *three([2.4, 1.3, 1.8], "amp_fp16")]
GPU = page(BOTH, device="cuda", launch=4e-6, bf16=8.0, fp16=8.0)
MIXED = page(
    [*three([1.9, 0.8, 1.4], gap={"casts": 5e-3}), *three([0.1] * 3, "amp_fp16")], bf16=6, fp16=0.01
)
