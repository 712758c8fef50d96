"""What a GPU's matrix units do to numbers: TF32 on and off, fp16 and bf16,
and what the machine report says of them.
"""

import pytest
import torch
from torch.nn.functional import conv2d

from amp_course.kit.hardware import machine_report, pick_device
from amp_course.loop.recipe import FP32, TF32, recipes_for


def relative_error(found, exact):
    return ((found.double().cpu() - exact).norm() / exact.norm()).item()


def operands(op):
    generator = torch.Generator().manual_seed(0)
    if op == "matmul":
        a, b = (torch.randn(2048, 2048, generator=generator) for _ in range(2))
        return torch.matmul, a, b
    return (
        conv2d,
        torch.randn(16, 64, 32, 32, generator=generator),
        torch.randn(64, 64, 3, 3, generator=generator),
    )


@pytest.mark.parametrize("op", ["matmul", "conv2d"])
def test_fp32_is_fp32_and_tf32_is_tf32(device, tensor_cores, op):
    function, a, b = operands(op)
    exact = function(a.double(), b.double())
    errors = {}
    for recipe in (FP32, TF32):
        with recipe.precision():
            errors[recipe.name] = relative_error(function(a.to(device), b.to(device)), exact)
    assert errors["fp32"] < 2**-18  # 24 bits, less what a sum of many terms loses
    assert 2**-13 < errors["tf32"] < 2**-9  # 11 bits


def test_a_recipe_puts_back_what_fp32_meant(device):
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    for recipe in (FP32, TF32):
        with recipe.precision():
            pass
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_by_default_convolutions_use_tf32_and_matmuls_do_not(device, tensor_cores):
    if (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) != ("highest", True):
        pytest.skip("somebody changed the defaults of this process")
    errors = {}
    for op in ("matmul", "conv2d"):
        function, a, b = operands(op)
        errors[op] = relative_error(
            function(a.to(device), b.to(device)), function(a.double(), b.double())
        )
    assert errors["matmul"] < 2**-18 and errors["conv2d"] > 2**-13


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float16, 11), (torch.bfloat16, 8)], ids=str)
def test_16_bit_matmuls_round_their_result_once(device, tensor_cores, dtype, bits):
    """Products are exact and sums are kept in fp32, so what is lost is the rounding of the
    inputs and of the result.
    """
    _, a, b = operands("matmul")
    a, b = a.to(dtype), b.to(dtype)
    exact = a.double() @ b.double()
    found = a.to(device) @ b.to(device)
    assert found.dtype is dtype
    assert 2.0 ** -(bits + 3) < relative_error(found, exact) < 2.0 ** (1 - bits)


def test_the_report_knows_this_gpu(device, tensor_cores):
    report = machine_report()
    assert pick_device().type == "cuda" and report.device.startswith("cuda")
    assert report.device_name == torch.cuda.get_device_name()
    assert report.compute_capability == "{}.{}".format(*torch.cuda.get_device_capability())
    assert report.memory_bytes == torch.cuda.get_device_properties(0).total_memory
    state = {support.name: support for support in report.dtypes}
    for name in ("fp16", "bf16", "tf32"):
        assert state[name].state == "native", state[name]
        assert state[name].times_fp32 < 0.9, state[name]  # its matrix units are for these
    assert [recipe.name for recipe in recipes_for(device)] == [
        "fp32",
        "tf32",
        "amp_fp16",
        "amp_bf16",
    ]


def test_the_report_leaves_the_precision_as_it_was(device):
    with TF32.precision():
        machine_report(device)
        assert torch.get_float32_matmul_precision() == "high"
    machine_report(device)
    assert torch.get_float32_matmul_precision() == "highest"
