"""Open an autocast region on any device, even on one that is not there.

`torch.autocast("cuda")` on a machine with no GPU warns and switches itself off. Its policy is
compiled into every build of PyTorch anyway: with autocast's state set directly and fake CUDA
tensors (a device, a shape and a dtype, no memory), each op goes through the casts that it would get
on a GPU. Nothing is computed, so dtypes can be seen so and values cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

LOWER_DTYPES = (torch.bfloat16, torch.float16)


def is_fake(device_type: str) -> bool:
    """Return True if tensors of this kind of device can only be faked here:
    "cuda" without a GPU → True.
    """
    return device_type == "cuda" and not torch.cuda.is_available()


@contextmanager
def stage(device_type: str, *, fake: bool | None = None) -> Iterator[FakeTensorMode | None]:
    """Let tensors of a kind of device be made inside: real ones where it is at hand, else fake
    ones, or as `fake` says.

    Gradients are off among fake ones. Autograd asks for the device's own runtime, and where there
    is none PyTorch does not raise: it ends the process. Attention and convolutions take the kernels
    that do not ask for a GPU's properties: a CUDA build of PyTorch would look for a driver
    otherwise.
    """
    if not (is_fake(device_type) if fake is None else fake):
        yield None
        return
    cudnn = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(False)  # not `cudnn.flags`, which sets four other switches as well
    try:
        with FakeTensorMode() as mode, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            yield mode
    finally:
        torch._C._set_cudnn_enabled(cudnn)


@contextmanager
def region(
    device_type: str, dtype: torch.dtype, *, enabled: bool = True, cache_enabled: bool = True
) -> Iterator[None]:
    """Autocast what runs inside, as `torch.autocast(device_type, dtype)` does, for fake CUDA
    tensors too.

    Among fake tensors weights are cast again at each use: there the cache is off, whatever
    `cache_enabled` says.

    Raises ValueError for a kind of device that has no autocast here and for a dtype that is not
    bfloat16 or float16: `torch.autocast` itself only warns for such a dtype and switches itself
    off.
    Example: with region("cuda", torch.float16): (a @ b).dtype → torch.float16, with a and b made on
             a `stage("cuda")`
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
    # Subtle: a weight is cast for the cache with gradients on, even under no_grad; see `stage` for
    #         what that does.
    torch.set_autocast_cache_enabled(False)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        # Only the outermost region drops the cast weights: that is what lets nested regions share
        # them.
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device_type, before[0])
        torch.set_autocast_dtype(device_type, before[1])
        torch.set_autocast_cache_enabled(before[2])


def check_region(device_type: str, dtype: torch.dtype) -> None:
    """Raise ValueError, naming cause and fix, for a device or dtype that `region` cannot serve."""
    try:
        # A number, as in "cuda:0", is for tensors: autocast's state is one for all devices of a
        # kind.
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
            f"one of the two. "
            "For full precision leave autocast off."
        )
