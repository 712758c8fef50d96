"""The base of all recipes: it checks their options, and the model in `prepare`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

import torch
from torch import nn

from amp_course.loop.recipe import FP32
from amp_course.loop.stepper import LossFn, MakeOptimizer, Stepper
from amp_course.recipes.training.op_lists import checked_ops
from amp_course.recipes.training.steppers import require_fp32_model

LossScale = float | Literal["dynamic"] | None
LOW_DTYPES = (torch.float16, torch.bfloat16)
_SWITCH = (True, False)
_CHOICES = {  # option → its values
    "save_dtype": (None, torch.float32, *LOW_DTYPES),
    "dtype": LOW_DTYPES,
    "keep_batchnorm_fp32": _SWITCH,
    "master_weights": _SWITCH,
}


@dataclass(frozen=True, kw_only=True)
class BaseRecipe(ABC):
    """What all recipes have.

    save_dtype: the dtype in which `session.state_dict()` writes the model's floats (Paddle's
        `decorate(save_dtype=…)`); None leaves each as it is. Master weights and the optimizer's
        state are always saved as they are.

    Raises ValueError for an option that the recipe lacks, and for a value that it cannot have.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    _low: ClassVar[torch.dtype | None] = None  # of a recipe without a dtype option

    save_dtype: torch.dtype | None = None

    def __new__(cls, *values: Any, **options: Any) -> Self:
        known = [field.name for field in fields(cls)]
        for option in options:
            if option not in known:
                raise ValueError(
                    f"{cls.__name__} has no option {option!r}: it takes {', '.join(known)}"
                )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for option, allowed in _CHOICES.items():
            value = getattr(self, option, allowed[0])
            if not any(value is choice for choice in allowed):
                names = ", ".join(str(choice) for choice in allowed)
                raise ValueError(
                    f"{type(self).__name__}: {option} is {value!r}, and it has to be one of {names}"
                )
        scale = getattr(self, "loss_scale", None)
        is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
        if scale not in (None, "dynamic") and not (is_number and 0 < scale < math.inf):
            raise ValueError(
                f'{type(self).__name__}: loss_scale is {scale!r}, and it has to be "dynamic", a '
                f"number above 0, or None"
            )
        for option in ("fp32_ops", "lower_ops"):
            if hasattr(self, option):
                object.__setattr__(self, option, checked_ops(option, getattr(self, option)))
        both = set(getattr(self, "fp32_ops", ())) & set(getattr(self, "lower_ops", ()))
        if both:
            raise ValueError(
                f"{', '.join(sorted(both))} is in both fp32_ops and lower_ops: leave it in one of "
                f"the two"
            )

    @property
    def low_dtype(self) -> torch.dtype | None:
        """The 16-bit dtype that matmuls run in; None for fp32."""
        return getattr(self, "dtype", self._low)

    def precision(self) -> AbstractContextManager[None]:
        """Keep fp32 real on CUDA while the body runs: TF32 would look like a recipe's gain."""
        return FP32.precision()

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, loss_fn: LossFn) -> Stepper:
        """Convert an fp32 model in place to what the recipe trains; return what steps it.

        make_optimizer: parameters → their optimizer, such as partial(torch.optim.SGD, lr=0.1)
        loss_fn:        (outputs, targets) → a loss with one element

        Raises ValueError for a model without parameters, or in 16 bits already.
        Example: O2().prepare(model, make_sgd, cross_entropy).step(x, y) → tensor(2.3)
        """
        require_fp32_model(model)
        return self._prepare(model, make_optimizer, loss_fn)

    @abstractmethod
    def _prepare(self, model: nn.Module, make_optimizer: MakeOptimizer, loss_fn: LossFn) -> Stepper:
        """Do what `prepare` promises, for a model that has been checked."""
