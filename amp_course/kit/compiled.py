"""Run compiled code uncompiled, and detect it: modules, functions, methods, losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import nn

COMPILED = (
    "compiled parts ran uncompiled here. The compiled program fuses casts into its kernels, so it "
    "does not make every copy that is counted."
)


_open: list[list[bool]] = []  # for each run in progress, its calls of compiled code
_eager = ExitStack()  # entered by the first of them, closed by the last


@contextmanager
def uncompiled_run() -> Iterator[Callable[[], bool]]:
    """Run compiled code uncompiled inside; yield a function that returns True if any was called.

    Two runs may overlap, and end in any order.
    """
    calls: list[bool] = []
    if not _open:
        _eager.enter_context(_eagerly())
    _open.append(calls)
    try:
        yield lambda: bool(calls)
    finally:
        _open[:] = [run for run in _open if run is not calls]
        if not _open:
            _eager.close()


@contextmanager
def _eagerly() -> Iterator[None]:
    # Imported here, for it takes long; and before the trace, for importing it runs ops of its own.
    eval_frame: Any = import_module("torch._dynamo.eval_frame")
    # Each call of compiled code calls this private function; `callback` is None for code that is
    # excluded from compiling. If PyTorch renames it, code still runs uncompiled, and `is_compiled`
    # still recognizes modules.
    original = getattr(eval_frame, "_callback_from_stance", None)

    def recording(callback: Any) -> Any:
        if callback is not None and callback is not False:
            for calls in _open:
                calls.append(True)
        return original(callback)  # type: ignore[misc]  # only called where there is one

    with torch.compiler.set_stance("force_eager"):
        if original is not None:
            eval_frame._callback_from_stance = recording
        try:
            yield
        finally:
            if original is not None:
                eval_frame._callback_from_stance = original


def is_compiled(module: nn.Module) -> bool:
    """Return True if a module itself was compiled, in any of the three ways."""
    return (
        uncompiled(module) is not module  # torch.compile(module)
        or module._compiled_call_impl is not None  # module.compile()
        or _compiled_function(module.forward)  # @torch.compile on its forward
    )


def uncompiled(module: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` wrapped; any other module unchanged."""
    kind = type(module)
    wraps = kind.__name__ == "OptimizedModule" and kind.__module__.startswith("torch._dynamo")
    return module._orig_mod if wraps else module  # type: ignore[return-value]


def _compiled_function(function: Any) -> bool:
    disabled = getattr(function, "_torchdynamo_disable", False)
    return hasattr(function, "_torchdynamo_orig_callable") and not disabled
