"""Autocast's CUDA policy, as found on fake tensors, next to what ops do for real;
and `trace` with its backward pass.
"""

import subprocess
import sys

import pytest
import torch
from torch import nn

from amp_course.autocast import probe_policy, trace
from amp_course.autocast.policy import REFERENCE
from amp_course.kit import models

LOWER = [torch.float16, torch.bfloat16]


@pytest.fixture(scope="module", params=LOWER, ids=str)
def policy(request):
    return probe_policy("cuda", request.param)


# Each op is called for real, and its name is printed first: some calls end the process.
ONE_BY_ONE = """
import sys, warnings, torch
from torch.utils._pytree import tree_leaves
from amp_course.autocast.ops import GROUPS
warnings.simplefilter("ignore")
lower, skip = getattr(torch, sys.argv[1]), int(sys.argv[2])
every = [(name, op) for ops in GROUPS.values() for name, op in ops.items()]
calls = [(name, op, how) for name, op in every for how in ("fp32", "lower", "mixed")]
for name, op, how in calls[skip:]:
    print(name, how, sep="/", end=" = ", flush=True)
    dtypes = {"fp32": [], "lower": [lower] * 20, "mixed": [lower]}[how]
    make = lambda values: values.to(dtypes.pop() if dtypes else torch.float32)
    try:
        arguments, options = op.build(make, "cuda")
        with torch.no_grad(), torch.autocast("cuda", dtype=lower):
            made = op.function(*arguments, **options)
        torch.cuda.synchronize()
    except Exception as error:
        print("raised", flush=True)
    else:
        floats = [one for one in tree_leaves(made) if isinstance(one, torch.Tensor)]
        real = floats and floats[0].dtype.is_floating_point
        print(floats[0].dtype if real else "no float", flush=True)
"""


def run_for_real(dtype):
    """Return op and inputs → the dtype that came out, "raised", "no float" or,
    if it ended the process, "".
    """
    found = {}
    while True:
        command = [
            sys.executable,
            "-c",
            ONE_BY_ONE,
            str(dtype).removeprefix("torch."),
            str(len(found)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        found |= dict(line.rstrip().split(" =") for line in done.stdout.splitlines())
        if done.returncode == 0:
            return {call: dtype.strip() for call, dtype in found.items()}
        assert len(found) > int(command[-1]), done.stderr


def test_ops_make_on_the_gpu_what_they_make_of_fake_tensors(policy):
    made = run_for_real(policy.dtype)
    print("these end the process:", [call for call, dtype in made.items() if not dtype])
    told = {
        f"{row.op}/{how}": str(dtype)
        for row in policy
        for how, dtype in row.outputs.items()
        if dtype
    }
    both = {
        call: (dtype, told[call])
        for call, dtype in made.items()
        if dtype.startswith("torch.") and call in told
    }
    assert len(both) > 400
    assert {call: pair for call, pair in both.items() if pair[0] != pair[1]} == {}


def test_it_is_the_policy_in_pytorchs_documentation(policy):
    wrong = {
        (op, policy[op].verdict, verdict)
        for verdict, ops in REFERENCE["cuda"].items()
        for op in ops
        if policy[op].verdict not in (verdict, "cannot run")
    }
    assert wrong == set()


MODELS = {
    "SimpleNet": lambda device: (models.SimpleNet(64), torch.randn(8, 64)),
    "DigitsResNet": lambda device: (
        models.DigitsResNet.for_device(device),
        torch.randn(8, 1, 8, 8),
    ),
    "CharGPT": lambda device: (
        models.CharGPT.for_device(device, vocab_size=96),
        torch.randint(0, 96, (2, 32)),
    ),
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
        def hook(module, args, output):
            seen.setdefault(path, output.dtype)

        return hook

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
        torch.equal(after[key], value)
        for key, value in before.items()
        if "running" not in key and "batches" not in key
    )
