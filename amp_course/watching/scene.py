"""A small training on which an exercise runs the learner's step, under the auditor's observer.

The results are named outputs, in the order in which a mistake is explained: dtypes, passes,
gradients, weights, scale.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amp_course.checking.judging import Failed
from amp_course.kit.dtypes import dtype_name
from amp_course.watching.observer import Observer
from amp_course.watching.records import Backward, Call, Step, Training, Update

Batch = tuple[Tensor, Tensor]


class Scene:
    """A random model of 16 features and 5 classes, with all that trains it.

    draw:        the source of its random numbers
    batches:     how many, of `rows` rows each
    overflow_at: numbers of batches with inputs too large for fp16: their gradients become NaN
    scaler:      options for a `GradScaler`; None for no scaler
    layer_dtypes, loss_dtypes: of what the first layer and the loss returned, call by call
    """

    def __init__(
        self,
        draw: random.Random,
        batches: int,
        *,
        rows: int = 8,
        overflow_at: Sequence[int] = (),
        scaler: dict[str, Any] | None = None,
        lr: float = 0.1,
    ) -> None:
        generator = torch.Generator().manual_seed(draw.getrandbits(31))
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))
        for parameter in self.model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
        self.model[0].register_forward_hook(
            lambda module, args, output: self.layer_dtypes.append(output.dtype)
        )
        self.batches: list[Batch] = []
        for number in range(batches):
            size = 1e6 if number in overflow_at else 1.0
            inputs = torch.randn(rows, 16, generator=generator) * size
            self.batches.append((inputs, torch.randint(0, 5, (rows,), generator=generator)))
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.scaler = None if scaler is None else torch.amp.GradScaler("cpu", **scaler)
        self.layer_dtypes: list[torch.dtype] = []
        self.loss_dtypes: list[torch.dtype] = []

    def loss_fn(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = cross_entropy(outputs, targets)
        self.loss_dtypes.append(loss.dtype)
        return loss

    def weights(self) -> Tensor:
        return flat(self.model.parameters())

    @contextmanager
    def watch(self) -> Iterator[Update]:
        """Record what a call of the step does, with the scene's model and optimizer."""
        self.layer_dtypes, self.loss_dtypes = [], []
        scalers = [] if self.scaler is None else [self.scaler]
        training = Training(lambda: None, [self.model], [self.optimizer], scalers, [])
        with Observer(training, graphs=True) as observer:
            try:
                yield observer.update
            except Failed as failed:
                failed.evidence = self.evidence(observer.update)
                raise

    def evidence(self, update: Update) -> dict[str, Any]:
        """Return what distinguishes mistakes with the same effect: norms, the order of events."""
        order = []
        for event in update.events:
            if isinstance(event, (Backward, Step)):
                order.append(type(event).__name__)
            elif isinstance(event, Call) and event.name == "update":
                order.append("update")
        arrived = [one.norm for event in update.backwards for one in event.arrived.values()]
        return {"arrived": arrived, "order": order}

    def outputs(self, update: Update) -> dict[str, Any]:
        """Return what a step did, as named outputs."""
        steps = update.steps(0)
        layer, loss = dtype_names(self.layer_dtypes), dtype_names(self.loss_dtypes)
        inside = sum(one.in_autocast for one in update.backwards)
        outputs = {
            "the dtype of the weights": dtype_names(p.dtype for p in self.model.parameters()),
            "the dtype that the first layer computes in": layer
            or "unknown, as the model never ran",
            "the dtype that the loss is computed in": loss or "unknown, as `loss_fn` never ran",
            "the number of backward passes inside the autocast region": inside,
            "the number of optimizer steps": len(steps),
            "the gradient at the step": [one.gradient.values.clone() for one in steps],
            "the weights after the step": self.weights(),
        }
        if self.scaler is not None:
            outputs["the loss scale after the step"] = self.scaler.get_scale()
        return outputs


def flat(tensors: Any) -> Tensor:
    """Return tensors as one flat float32 copy."""
    return torch.cat([one.detach().float().flatten() for one in tensors])


def dtype_names(dtypes: Iterable[torch.dtype]) -> str:
    """Name dtypes, each once: "float32", "float16 and float32"."""
    return " and ".join(sorted(map(dtype_name, set(dtypes))))
