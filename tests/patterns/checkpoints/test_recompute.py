from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from amp_course.diagnosis.catalogue import catalogue
from amp_course.patterns import check_checkpointing


class Net(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block, self.head = block, nn.Linear(32, 1)


def net(*extra: nn.Module) -> Net:
    torch.manual_seed(2)
    return Net(nn.Sequential(nn.Linear(16, 32), *extra, nn.GELU(), nn.Linear(32, 32)))


X = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))


class ByHand(torch.autograd.Function):
    """The checkpoint that everyone writes first: it forgets the region and the random state."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: nn.Module, *parameters: Tensor) -> Tensor:
        ctx.block = block
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        parameters = list(ctx.block.parameters())
        with torch.enable_grad():
            y = ctx.block(x)
            return (None, None, *torch.autograd.grad(y, parameters, gradient.to(y.dtype)))


def audit(model: Net, way: Any, dtype: torch.dtype | None = torch.bfloat16) -> tuple[str, ...]:
    return check_checkpointing(
        model,
        (X,),
        plain=lambda x: model.head(model.block(x)).square().mean(),
        checkpointed=lambda x: model.head(way(model.block, x)).square().mean(),
        dtype=dtype,
    ).names


def right(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, None])
def test_torchs_own_is_the_same_with_and_without_dropout(dtype: torch.dtype | None) -> None:
    assert audit(net(), right, dtype) == ()
    assert audit(net(nn.Dropout(0.5)), right, dtype) == ()


FAULTS: dict[str, tuple[Any, tuple[nn.Module, ...]]] = {  # what is found → a way, extra layers
    "nothing-recomputed": (lambda block, x: block(x), ()),
    "recomputed-in-another-dtype": (
        lambda block, x: ByHand.apply(x, block, *block.parameters()),
        (),
    ),
    "recomputed-with-other-values": (
        lambda block, x: checkpoint(block, x, use_reentrant=False, preserve_rng_state=False),
        (nn.Dropout(0.5),),
    ),
    "nothing-recomputed gradients-missing": (
        lambda block, x: checkpoint(block, x, use_reentrant=True),
        (),
    ),
    "statistics-moved-twice": (right, (nn.BatchNorm1d(32),)),
    "gradients-differ": (lambda block, x: 2 * right(block, x), ()),
    "checkpointing-raises": (lambda block, x: right(block, x[:, :3]), ()),
}


@pytest.mark.parametrize("expected", FAULTS)
def test_each_has_its_own_finding(expected: str) -> None:
    way, extra = FAULTS[expected]
    assert audit(net(*extra), way) == tuple(expected.split())


def test_every_fault_of_recomputation_is_found() -> None:
    known = {name for name, one in catalogue().items() if one.of == "recomputation"}
    assert {name for names in FAULTS for name in names.split()} == known


def test_everything_is_put_back() -> None:
    model = net(nn.BatchNorm1d(32), nn.Dropout(0.5))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    audit(model, right)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters()) and not model.head._forward_hooks
