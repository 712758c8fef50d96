"""Judge an evaluation: the model's mode, inference mode, autocast, and how batches are added up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Wrong
from amp_course.checking.witness import drawn_seed


class _DropoutNet(nn.Module):
    """Dropout and batch norm: a model that answers differently, and remembers, in training mode."""

    def __init__(self, notes: dict[str, list[Any]]) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(24)
        self.body = nn.Sequential(nn.Linear(12, 24), self.norm, nn.ReLU(), nn.Dropout(0.5), nn.Linear(24, 6))
        self.notes = notes

    def passes_in_train_mode(self) -> int:
        """Return how often batch norm has taken a batch into its statistics."""
        assert self.norm.num_batches_tracked is not None
        return int(self.norm.num_batches_tracked.item())

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.body(inputs)
        self.notes["training"].append(self.training)
        self.notes["inference"].append(torch.is_inference_mode_enabled())
        self.notes["grad"].append(torch.is_grad_enabled())
        self.notes["dtype"].append(logits.dtype)
        return logits


def judge(answer: Callable[..., Any]) -> None:
    """`accuracy(model, batches)` → share of right answers, in eval mode, inference mode and bf16 autocast."""
    generator = torch.Generator().manual_seed(drawn_seed())
    for was_training in (True, False):
        notes: dict[str, list[Any]] = {"training": [], "inference": [], "grad": [], "dtype": []}
        model = _DropoutNet(notes).train()
        with torch.no_grad():
            for _ in range(3):
                model(torch.randn(64, 12, generator=generator))  # gives batch norm statistics
        model.train(was_training)
        sizes = (32, 32, 7)  # the last batch is smaller, as it is in real data
        inputs = [torch.randn(size, 12, generator=generator) for size in sizes]
        targets = _targets(model, inputs, generator)
        for seen in notes.values():
            seen.clear()
        kept = model.passes_in_train_mode()
        model.train(was_training)
        batches = list(zip(inputs, targets, strict=True))
        got = answer(model, batches)
        rates = _rates(model, batches)
        _about_mode(notes, model.passes_in_train_mode() != kept)
        _about_rate(got, rates)
        if model.training != was_training:
            raise Wrong(
                f"the model was in {'train' if was_training else 'eval'} mode before and is not after: remember "
                "`model.training` and put it back, or the next epoch trains without dropout and batch statistics"
            )


def _targets(model: nn.Module, inputs: list[Tensor], generator: torch.Generator) -> list[Tensor]:
    """Targets that are right for most of the large batches and for two of the small last one."""
    model.eval()
    result = []
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        for number, batch in enumerate(inputs):
            right = model(batch).argmax(dim=-1)
            wrong = torch.rand(len(batch), generator=generator) < 0.2
            if number == len(inputs) - 1:
                wrong = torch.arange(len(batch)) >= 2
            result.append(torch.where(wrong, (right + 1) % 6, right).clone())
    return result


def _rates(model: _DropoutNet, batches: list[tuple[Tensor, Tensor]]) -> list[tuple[int, int]]:
    """(right, all) for each batch, in eval mode; the model's mode is put back."""
    was_training = model.training
    model.eval()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        counts = [(int((model(x).argmax(dim=-1) == y).sum()), len(y)) for x, y in batches]
    model.train(was_training)
    for seen in model.notes.values():
        del seen[-len(batches) :]
    return counts


def _about_mode(notes: dict[str, list[Any]], statistics_moved: bool) -> None:
    if not notes["training"]:
        raise Wrong("the model was never called")
    if any(notes["training"]):
        also = " and moved batch norm's statistics towards the test data" if statistics_moved else ""
        raise Wrong(
            f"the model ran in train mode: dropout threw half of the activations away{also}. Call `model.eval()` before"
        )
    if any(notes["grad"]):
        raise Wrong(
            "autograd recorded the whole evaluation and kept its activations: put it under `torch.inference_mode()`"
        )
    if not all(notes["inference"]):
        raise Wrong(
            "the model ran under `no_grad`, and the task asks for `torch.inference_mode()`, which also drops autograd's "
            "version counters and view tracking"
        )
    if notes["dtype"][0] != torch.bfloat16:
        raise Wrong(
            f"the logits are {str(notes['dtype'][0]).removeprefix('torch.')}: the evaluation ran outside of bf16 autocast, "
            "slower than the training it judges. Put `model(inputs)` inside the region"
        )


def _about_rate(got: Any, rates: list[tuple[int, int]]) -> None:
    if got is None:
        raise Wrong("your function returned None: give the accuracy back with `return`")
    if (isinstance(got, Tensor) and got.numel() != 1) or not isinstance(got, (Tensor, float, int)):
        raise Wrong(f"your function returned a {type(got).__name__}, not one number")
    value, truth = float(got), sum(r for r, _ in rates) / sum(n for _, n in rates)
    if abs(value - truth) < 1e-6:
        return
    if abs(value - 100 * truth) < 1e-4:
        raise Wrong(f"your accuracy is in percent ({value:.4g}): the task asks for a share from 0 to 1")
    if abs(value - sum(r / n for r, n in rates) / len(rates)) < 1e-4:
        raise Wrong(
            f"batches of unequal size were averaged as if they were equal: {value:.4f} instead of {truth:.4f}. The last one "
            "is smaller; add up right answers and divide once"
        )
    if abs(value - sum(r for r, _ in rates)) < 1e-6:
        raise Wrong(f"{value:.0f} is the number of right answers: divide it by the number of all")
    if abs(value - rates[-1][0] / rates[-1][1]) < 1e-6:
        raise Wrong("only the last batch was counted: add up over all batches")
    raise Wrong(
        f"the accuracy is {truth:.4f} and you got {value:.4f}: count where the argmax over the last dimension of the "
        "logits equals the target"
    )
