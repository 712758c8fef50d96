"""Autocast's CUDA policy, run for real, next to what the course finds out without a GPU; and `trace` with its backward pass."""

import pytest
import torch
from torch import nn

from amp_course.autocast import is_fake, probe_policy, trace
from amp_course.autocast.published import REFERENCE
from amp_course.kit import models

LOWER = [torch.float16, torch.bfloat16]


@pytest.fixture(scope="module", params=LOWER, ids=str)
def real(request):
    return probe_policy("cuda", request.param)


@pytest.fixture(scope="module")
def without_a_gpu(real):
    """What a reader without a GPU is told: the same probe in a process that is shown none."""
    import json
    import os
    import subprocess
    import sys

    ask = (
        "import json, sys, torch; from amp_course.autocast import probe_policy; "
        "policy = probe_policy('cuda', getattr(torch, sys.argv[1])); "
        "print(json.dumps([policy.fake, {row.op: row.verdict for row in policy}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask, str(real.dtype).removeprefix("torch.")],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    fake, verdicts = json.loads(done.stdout.splitlines()[-1])
    assert fake
    return verdicts


def test_the_policy_was_run_for_real(real):
    assert not real.fake and not is_fake("cuda")
    assert len(real) > 200
    verdicts = [row.verdict for row in real]
    assert verdicts.count("cannot run") < 10, [row.op for row in real if row.verdict == "cannot run"]


def test_fake_tensors_told_the_same(real, without_a_gpu):
    both = {row.op: (row.verdict, without_a_gpu[row.op]) for row in real}
    told = {op: pair for op, pair in both.items() if "cannot run" not in pair}
    assert len(told) > 180
    assert {op: pair for op, pair in told.items() if pair[0] != pair[1]} == {}


def test_it_is_the_policy_in_pytorchs_documentation(real):
    wrong = {
        (op, real[op].verdict, verdict)
        for verdict, ops in REFERENCE["cuda"].items()
        for op in ops
        if real[op].verdict not in (verdict, "cannot run")
    }
    assert wrong == set()


MODELS = {
    "SimpleNet": lambda device: (models.SimpleNet(64), torch.randn(8, 64)),
    "DigitsResNet": lambda device: (models.DigitsResNet.for_device(device), torch.randn(8, 1, 8, 8)),
    "CharGPT": lambda device: (models.CharGPT.for_device(device, vocab_size=96), torch.randint(0, 96, (2, 32))),
}


@pytest.mark.parametrize("dtype", LOWER, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_trace_has_real_tensors_and_a_backward_pass(device, name, dtype):
    model, inputs = MODELS[name](device)
    model, inputs = model.to(device), inputs.to(device)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    traced = trace(model, inputs, dtype=dtype)
    assert not traced.fake and traced.has_backward and traced.casts()
    seen = {}

    def note(path):
        return lambda module, args, output: seen.setdefault(path, output.dtype)

    handles = [
        module.register_forward_hook(note(path))
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    with torch.autocast("cuda", dtype=dtype):
        model(inputs)
    for handle in handles:
        handle.remove()
    assert seen and all(traced[path].outputs == (out,) for path, out in seen.items())
    after = model.state_dict()
    assert all(
        torch.equal(after[key], value) for key, value in before.items() if "running" not in key and "batches" not in key
    )
