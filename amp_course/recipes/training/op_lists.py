"""Lists of ops that run in another precision than the recipe's: Paddle's white and black lists.

An op is named as it is called: "softmax" is `torch.softmax`, `F.softmax` and `x.softmax(…)`,
"matmul" also `@`. The ops inside an op do not count: "log_softmax" does not change
`F.cross_entropy`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, get_overridable_functions
from torch.utils._pytree import tree_map


class OpLists(TorchFunctionMode):
    """Run the named ops in float32, or in a low dtype, in spite of the region around them.

    fp32_ops:    names of ops whose floating inputs are cast to float32
    lower_ops:   names of ops whose floating inputs are cast to `dtype`
    device_type: whose autocast is off while a listed op runs
    back:        cast results back to `dtype`: a half model has no autocast that casts them for the
                 next op

    Example: with OpLists(["linear"], [], "cpu", torch.bfloat16): F.linear(x16, w16).dtype →
             torch.float32
    Source: custom_white_list and custom_black_list of paddle.amp.auto_cast;
            amp.register_float_function of Apex.
    """

    def __init__(
        self,
        fp32_ops: Iterable[str],
        lower_ops: Iterable[str],
        device_type: str,
        dtype: torch.dtype,
        back: bool = False,
    ) -> None:
        super().__init__()
        self.targets = dict.fromkeys(fp32_ops, torch.float32) | dict.fromkeys(lower_ops, dtype)
        self.device_type, self.dtype, self.back = device_type, dtype, back

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        target = self.targets.get(op_name(func))
        if target is None:
            return func(*args, **(kwargs or {}))
        args, kwargs = tree_map(lambda leaf: _cast(leaf, target), (args, kwargs or {}))
        with torch.autocast(self.device_type, enabled=False):
            result = func(*args, **kwargs)
        return tree_map(lambda leaf: _cast(leaf, self.dtype), result) if self.back else result


def op_name(func: Callable[..., Any]) -> str:
    """Return a function's name in the lists: Tensor.__matmul__ → "matmul"."""
    name: str = getattr(func, "__name__", "")
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name


def checked_ops(option: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names as a tuple; ValueError for a single string or an unknown torch function."""
    if isinstance(names, str):
        raise ValueError(
            f"{option} is a list of names, and this is one string: write {option}=[{names!r}]"
        )
    names = tuple(names)
    for name in names:
        if name not in _known_ops():
            hint = "write it as you call it, “softmax” or “linear”"
            if close := difflib.get_close_matches(str(name), _known_ops(), n=3):
                hint = f"did you mean {' or '.join(close)}?"
            raise ValueError(f"{option}: torch has no op {name!r}: {hint}")
    return names


@lru_cache(maxsize=1)
def _known_ops() -> frozenset[str]:
    functions = (func for group in get_overridable_functions().values() for func in group)
    # without ops that work in place, which end in an underscore: they would change only a copy
    return frozenset(
        name for name in map(op_name, functions) if name.isidentifier() and not name.endswith("_")
    )


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
