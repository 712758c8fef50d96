"""Open an autocast region on any device, even on one that this machine lacks.

On a machine without a GPU `torch.autocast("cuda")` warns and switches itself off. But its policy is
compiled into every build of PyTorch: with autocast's state set directly and fake CUDA tensors (a
device, a shape and a dtype, but no memory), each op gets the casts that it would get on a GPU.
Nothing is computed: this shows dtypes, not values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

LOWER_DTYPES = (torch.bfloat16, torch.float16)


def is_fake(device_type: str) -> bool:
    """Return True if this kind of device can only be faked here: "cuda" without a GPU."""
    return device_type == "cuda" and not torch.cuda.is_available()


@contextmanager
def stage(device_type: str, *, fake: bool | None = None) -> Iterator[FakeTensorMode | None]:
    """Allow tensors on a kind of device: real ones if the machine has it, else fake ones.

    fake: True or False to choose

    Fake tensors have no gradients: autograd needs the device's runtime, and without one PyTorch
    does not raise but ends the process. Attention and convolutions use kernels that do not query a
    GPU's properties, for which a CUDA build of PyTorch would look for a driver.
    """
    if not (is_fake(device_type) if fake is None else fake):
        yield None
        return
    cudnn = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(False)  # `cudnn.flags` would set four other switches as well
    try:
        with FakeTensorMode() as mode, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            yield mode
    finally:
        torch._C._set_cudnn_enabled(cudnn)


@contextmanager
def region(
    device_type: str, dtype: torch.dtype, *, enabled: bool = True, cache_enabled: bool = True
) -> Iterator[None]:
    """Autocast what runs inside, as `torch.autocast(device_type, dtype)` does, even fake tensors.

    Fake weights are cast at each use: for them the cache is off, whatever `cache_enabled` says.

    Raises ValueError for a kind of device without autocast, and for a dtype other than bfloat16 and
    float16, for which `torch.autocast` only warns and switches itself off.
    Example: with region("cuda", torch.float16): (a @ b).dtype → torch.float16, if a and b are made
             on a `stage("cuda")`
    """
    check_region(device_type, dtype)
    if not is_fake(device_type):
        with torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled):
            yield
        return
    before = (
        torch.is_autocast_enabled(device_type),
        torch.get_autocast_dtype(device_type),
        torch.is_autocast_cache_enabled(),
    )
    torch.set_autocast_enabled(device_type, enabled)
    torch.set_autocast_dtype(device_type, dtype)
    # subtle: the cache casts weights with gradients on, even under no_grad, which fake tensors do
    # not survive; see `stage`
    torch.set_autocast_cache_enabled(False)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        # nested regions share the cast weights, so only the outermost drops them
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device_type, before[0])
        torch.set_autocast_dtype(device_type, before[1])
        torch.set_autocast_cache_enabled(before[2])


def check_region(device_type: str, dtype: torch.dtype) -> None:
    """Raise ValueError, naming cause and fix, for a device or dtype that `region` cannot serve."""
    try:
        # "cuda:0" is for tensors: all devices of a kind share one autocast state
        available = device_type == "cuda" or (
            ":" not in device_type and torch.amp.is_autocast_available(device_type)
        )
    except (RuntimeError, TypeError):
        available = False
    if not available:
        raise ValueError(
            f"{device_type!r} has no autocast here: name a kind of device, without a number, such "
            f"as 'cpu' or 'cuda'."
        )
    if dtype not in LOWER_DTYPES:
        raise ValueError(
            f"autocast lowers to torch.bfloat16 or torch.float16, and you asked for {dtype}: pass "
            "one of the two. For full precision leave autocast off."
        )
