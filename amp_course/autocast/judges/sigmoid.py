"""Judge a binary classifier's probabilities and loss, by exact values and gradients at its logits, small and large."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.autocast.judges.kernels import LOW
from amp_course.checking import Wrong
from amp_course.checking.values import dtype_name, fresh

_CLOSE = 1e-4  # relative: float32 keeps it, 16 bits do not


class Examples:
    """A linear head with one logit an example, from −60 to 60, its targets, and what was seen of the logits.

    The two largest logits, of either sign, have the wrong target: there a loss has to be large and to teach.
    """

    def __init__(self, region: torch.dtype | None) -> None:
        generator = fresh()
        self.region = region
        wanted = torch.cat([torch.randn(12, generator=generator) * 3, torch.tensor([57.0, -57.0])])
        wanted[-2:] += torch.rand(2, generator=generator) * 6 - 3
        self.head = nn.Linear(4, 1)
        self.head.weight.data, self.head.bias.data = torch.ones(1, 4), torch.zeros(1)
        self.features = wanted[:, None].expand(-1, 4) / 4
        self.targets = (wanted > 0).float()
        self.targets[:4] = torch.tensor([0.0, 1.0, 0.0, 1.0])
        self.targets[-2:] = torch.tensor([0.0, 1.0])
        self.logits: list[Tensor] = []
        self.head.register_forward_hook(self._saw_logits)

    def _saw_logits(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
        self.logits.append(output)

    @property
    def where(self) -> str:
        """Return the examples in words: "in a region of float16"."""
        return "outside of autocast" if self.region is None else f"in a region of {dtype_name(self.region)}"

    def play(self, answer: Callable[..., Any]) -> Any:
        """Call the answer in the examples's region."""
        with torch.autocast("cpu", dtype=self.region or torch.bfloat16, enabled=self.region is not None):
            return answer(self.head, self.features, self.targets)


def judge(answer: Callable[..., Any]) -> None:
    """`classify(head, features, targets)` → (probabilities, loss), right for large logits in any region."""
    for region in (None, torch.bfloat16, torch.float16):
        examples = Examples(region)
        got = examples.play(answer)
        if not examples.logits:
            raise Wrong("the head was never called: the logits are `head(features)`, of shape (batch, 1)")
        probabilities, loss = _pair(got, examples)
        logits = examples.logits[-1].detach().double().reshape(-1)
        _check_probabilities(probabilities, logits, examples)
        _check_loss(loss, logits, examples)


def _pair(got: Any, examples: Examples) -> tuple[Tensor, Tensor]:
    if got is None:
        raise Wrong("your function returned None: end it with `return probabilities, loss`")
    if not isinstance(got, (tuple, list)) or len(got) != 2 or not all(isinstance(value, Tensor) for value in got):
        raise Wrong(
            f"your function has to return a pair of tensors, (probabilities, loss), and it returned a {type(got).__name__}"
        )
    probabilities, loss = got
    count = len(examples.targets)
    if probabilities.numel() == 1 and loss.numel() == count:
        raise Wrong("the pair is in the wrong order: first the probabilities, one for each example, then the loss")
    if loss.numel() == count**2:
        raise Wrong(
            f"the loss has {count}² elements: logits of shape (batch, 1) and targets of shape (batch,) broadcast to a square. "
            "`squeeze(-1)` the logits, and take the mean"
        )
    if loss.numel() != 1:
        raise Wrong(f"the loss has {loss.numel()} elements: it is one number, the mean over all examples")
    if probabilities.numel() != count:
        raise Wrong(f"there are {count} examples and {probabilities.numel()} probabilities: one for each")
    return probabilities.detach().reshape(-1), loss


def _check_probabilities(probabilities: Tensor, logits: Tensor, examples: Examples) -> None:
    if torch.allclose(probabilities.double(), logits.sigmoid(), atol=0.01):
        return
    if torch.allclose(probabilities.double(), logits, rtol=0.02, atol=0.02):
        raise Wrong(
            "what you return as probabilities are the logits: only the loss takes them as they are. `torch.sigmoid(logits)` is "
            "still wanted for the probabilities"
        )
    if torch.allclose(probabilities.double(), logits.sigmoid().sigmoid(), atol=0.01):
        raise Wrong("the probabilities went through sigmoid twice: all of them are above 0.5")
    raise Wrong(f"{examples.where} the probabilities are not `torch.sigmoid(head(features))`")


def _check_loss(loss: Tensor, logits: Tensor, examples: Examples) -> None:
    targets = examples.targets.double()
    want, value = _bce(logits, targets).mean(), loss.detach().double().reshape(())
    gradient = _gradient(loss, examples)
    if gradient is None:
        raise Wrong("no gradient reaches the head: is the loss computed from detached logits?")
    told = f"{examples.where} the loss is {value:.5g}, and {want:.5g} is right"
    for words, mistaken in _mistakes(logits, targets):
        if torch.isclose(value, mistaken, rtol=2e-3) and not torch.isclose(value, want, rtol=2e-3):
            raise Wrong(f"{told}: {words}")
    right = (logits.sigmoid() - targets) / len(targets)
    if not torch.allclose(gradient[-2:], right[-2:], rtol=0.02) and gradient[:-2].isfinite().all():
        shown = "NaN" if gradient[-2:].isnan().any() else f"{gradient[-2]:.2g}"
        raise Wrong(
            f"{told}, and at the logit {logits[-2]:.0f} with target 0 the gradient is {shown} instead of {right[-2]:.2g}: "
            "sigmoid has saturated to exactly 1, where its slope is 0 and log(1 − p) is −inf, which BCELoss cuts at −100. No "
            "wider dtype and no clamp brings it back. Hand the logits themselves to `F.binary_cross_entropy_with_logits`"
        )
    if not torch.isclose(value, want, rtol=_CLOSE):
        low = "" if loss.dtype not in LOW else f". It was computed in {dtype_name(loss.dtype)}"
        raise Wrong(
            f"{told}{low}: `F.binary_cross_entropy_with_logits` is on autocast's fp32 list; a formula of your own has to start "
            "with `logits.float()`"
        )
    if loss.dtype in LOW:
        raise Wrong(f"{examples.where} the loss comes back as {dtype_name(loss.dtype)}: leave it in float32")
    if not torch.allclose(gradient, right, rtol=0.02, atol=1e-4):
        raise Wrong(
            f"{examples.where} the loss is right and its gradient at the logits is not: is part of it detached?"
        )


def _gradient(loss: Tensor, examples: Examples) -> Tensor | None:
    if not loss.requires_grad:
        return None
    loss.backward()
    gradients = [logits.grad for logits in examples.logits if logits.grad is not None]
    return sum(gradient.double().reshape(-1) for gradient in gradients) if gradients else None  # type: ignore[return-value]


def _bce(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.clamp(min=0) - logits * targets + (-logits.abs()).exp().log1p()


def _mistakes(logits: Tensor, targets: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Give each known mistake, in words, with the loss that it makes."""
    yield (
        "that is the result if the loss is given probabilities. `…_with_logits` applies sigmoid itself: keep "
        "the one for the probabilities out of the loss",
        _bce(logits.sigmoid(), targets).mean(),
    )
    yield "the arguments are swapped: the logits come first, then the targets", _bce(targets, logits).mean()
    yield "that is the sum, which grows with the batch: take the mean, as BCELoss does", _bce(logits, targets).sum()
    yield "the targets are inverted, 1 for 0", _bce(logits, 1 - targets).mean()
    every = _bce(logits[:, None], targets[None, :]).mean()
    yield (
        "logits of shape (batch, 1) met targets of shape (batch,), and every logit was compared with every target: "
        "`squeeze(-1)` the logits",
        every,
    )
    yield (
        "that is the loss with the wrong sign",
        -_bce(logits, targets).mean(),
    )
