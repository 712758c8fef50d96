"""`region` against `torch.autocast`, and on fake CUDA tensors; what it finds, it leaves."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amp_course.autocast import probe_policy, trace
from amp_course.autocast.ops import OPS
from amp_course.autocast.region import check_region, is_fake, region, stage
from amp_course.kit.models import DigitsResNet


def state(device_type):
    return (
        torch.is_autocast_enabled(device_type),
        torch.get_autocast_dtype(device_type),
        torch.is_autocast_cache_enabled(),
    )


needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA tensors are real here")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_is_torch_autocast_where_the_device_is_at_hand(dtype):
    a = torch.ones(2, 2)
    with region("cpu", dtype):
        inside, ours = state("cpu"), (a @ a).dtype
    with torch.autocast("cpu", dtype=dtype):
        assert inside == state("cpu")
        assert ours == (a @ a).dtype == dtype


@needs_no_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fake_cuda_tensors_go_through_cudas_policy(dtype):
    assert is_fake("cuda")
    with stage("cuda"), region("cuda", dtype):
        a = torch.ones(2, 2, device="cuda")
        assert a.device.type == "cuda"
        assert (a @ a).dtype == dtype
        assert torch.softmax(a @ a, 0).dtype == torch.float32
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            torch.nn.functional.binary_cross_entropy(a, a)
        with region("cuda", dtype, enabled=False):
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == dtype


class Casts(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


@needs_no_gpu
def test_a_fake_region_casts_at_each_use_for_caching_would_end_the_process():
    with stage("cuda"), Casts() as casts, region("cuda", torch.float16):
        w = torch.nn.Parameter(torch.ones(2, 2, device="cuda"))
        x = torch.ones(2, 2, device="cuda", dtype=torch.float16)
        for _ in range(3):
            assert x.mm(w).dtype == torch.float16
    assert casts.count == 3


@needs_no_gpu
def test_a_fake_stage_records_no_gradients_for_that_would_end_the_process():
    with stage("cuda"):
        w = torch.ones(2, 2, device="cuda", requires_grad=True)
        assert not (w @ w).requires_grad
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_gives_back_autocasts_state_after_an_exception(device_type):
    before = state(device_type)
    with pytest.raises(ZeroDivisionError), region(device_type, torch.float16, cache_enabled=False):
        raise ZeroDivisionError
    assert state(device_type) == before


@pytest.mark.parametrize("device_type", ["cuda:0", "meta", "gpu", 3])
def test_a_device_without_autocast_is_named(device_type):
    with pytest.raises(
        ValueError, match=f"{device_type!r} has no autocast here: name a kind of device, without"
    ):
        check_region(device_type, torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, "bfloat16", None])
def test_a_dtype_that_autocast_does_not_lower_to_is_refused(dtype):
    with pytest.raises(
        ValueError, match=r"lowers to torch\.bfloat16 or torch\.float16, and you asked for"
    ):
        check_region("cpu", dtype)


@needs_no_gpu
def test_probing_and_tracing_for_a_missing_gpu_leave_torch_as_it_was(monkeypatch):
    """In a CUDA build without a driver, some ops ask for the driver and fail;
    nothing of that may stay behind.
    """

    def switches():
        cuda = torch.backends.cuda
        return (
            torch.backends.cudnn.enabled,
            (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()),
            torch.cuda.is_initialized(),
            torch.is_grad_enabled(),
            state("cuda"),
        )

    some = {name: OPS[name] for name in ("matmul", "conv2d", "linalg_lstsq", "stft")}
    monkeypatch.setattr("amp_course.autocast.probe.GROUPS", {"some": some})
    before = switches()
    assert probe_policy("cuda", torch.float16).having("cannot run")  # so there were failures
    trace(DigitsResNet(4), torch.rand(2, 1, 8, 8), device_type="cuda", dtype=torch.bfloat16)
    assert switches() == before
    assert torch.ones(1).device.type == "cpu"
