"""Record the gradients of any model, layer by layer, as `backward()` makes them."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

_ROOT = "(model)"  # the name of the model itself, among those of its layers


class GradientRecorder:
    """A `with` block in which every backward pass leaves copies of its gradients.

    with GradientRecorder(model) as recorder:
        loss_fn(model(x), y).backward()
    recorder.weights["head"]  # (n,): the gradients of the layer's own parameters, as they arrived
    recorder.outputs["head"]  # (n,): the gradients of the layer's output

    A layer is a module without submodules, or one that owns parameters; layers are in the order of
    the model. Several backward passes are joined. The copies take as many bytes as the gradients,
    on the same device: open the block around a few steps, not a whole training run. The model's
    results and gradients do not change.

    Raises ValueError for a model in which nothing needs a gradient.
    """

    def __init__(self, model: nn.Module) -> None:
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError(
                f"no parameter of this {type(model).__name__} needs a gradient: there is nothing "
                "to record. Is the model frozen?"
            )
        self._layers = {
            name or _ROOT: module
            for name, module in model.named_modules()
            if not list(module.children()) or list(module.parameters(recurse=False))
        }
        self._of_weights: dict[str, list[Tensor]] = {}
        self._of_outputs: dict[str, list[Tensor]] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        hooked: set[int] = set()
        for name, layer in self._layers.items():
            self._handles.append(layer.register_forward_hook(self._watch_output(name)))
            for parameter in layer.parameters(recurse=False):
                # a tied weight counts for the first layer that has it
                if parameter.requires_grad and id(parameter) not in hooked:
                    hooked.add(id(parameter))
                    self._copy_gradient(parameter, self._of_weights, name)
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def weights(self) -> dict[str, Tensor]:
        """Each layer's gradients of its parameters, {name: (n,)}; ValueError without backward."""
        return self._joined(self._of_weights)

    @property
    def outputs(self) -> dict[str, Tensor]:
        """Each layer's gradients of its output, {name: (n,)}; ValueError without backward."""
        return self._joined(self._of_outputs)

    def _watch_output(self, name: str) -> Any:
        def hook(layer: nn.Module, inputs: Any, output: Any) -> None:
            for leaf in tree_leaves(output):
                if isinstance(leaf, Tensor) and leaf.requires_grad:
                    # a module's backward hook would forbid changing the output in place
                    self._copy_gradient(leaf, self._of_outputs, name)

        return hook

    def _copy_gradient(self, tensor: Tensor, into: dict[str, list[Tensor]], name: str) -> None:
        copies = into.setdefault(name, [])

        def hook(gradient: Tensor) -> None:
            dense = gradient.coalesce().values() if gradient.is_sparse else gradient
            copies.append(dense.detach().flatten().clone())

        self._handles.append(tensor.register_hook(hook))

    def _joined(self, copies: dict[str, list[Tensor]]) -> dict[str, Tensor]:
        joined = {name: torch.cat(copies[name]) for name in self._layers if copies.get(name)}
        if not joined:
            raise ValueError(
                "nothing was recorded: call the model and `backward()` inside `with "
                "GradientRecorder(model):`"
            )
        return joined
