"""Run compiled code as it was written, and notice that there was some:
modules, functions, methods, losses.
"""

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


_open: list[list[bool]] = []  # of each run that is going on: the calls of compiled code
_eager = ExitStack()  # what the first of them began, and the last one ends


@contextmanager
def uncompiled_run() -> Iterator[Callable[[], bool]]:
    """Run compiled code uncompiled inside, and give a function that tells whether any was called.

    Two runs may overlap, and end in any order.
    """
    calls: list[bool] = []
    if not _open:
        _eager.enter_context(_eagerly())
    _open.append(calls)
    try:
        yield lambda: bool(calls)
    finally:
        _open[:] = [one for one in _open if one is not calls]
        if not _open:
            _eager.close()


@contextmanager
def _eagerly() -> Iterator[None]:
    # Imported here, for it takes long; and before the trace, for PyTorch loads it when needed, and
    # then runs ops of its own.
    eval_frame: Any = import_module("torch._dynamo.eval_frame")
    # Each call of compiled code asks this private function what to do; for what is merely kept from
    # the compiler, `callback` is None. If PyTorch renames it, code still runs uncompiled, and
    # modules are still recognized by `is_compiled`.
    original = getattr(eval_frame, "_callback_from_stance", None)

    def asked(callback: Any) -> Any:
        if callback is not None and callback is not False:
            for calls in _open:
                calls.append(True)
        return original(callback)  # type: ignore[misc]  # only called where there is one

    with torch.compiler.set_stance("force_eager"):
        if original is not None:
            eval_frame._callback_from_stance = asked
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
    """Return the module that `torch.compile` wrapped; any other as it is."""
    wrapped = type(module).__name__ == "OptimizedModule" and type(module).__module__.startswith(
        "torch._dynamo"
    )
    return module._orig_mod if wrapped else module  # type: ignore[return-value]


def _compiled_function(function: Any) -> bool:
    kept = getattr(function, "_torchdynamo_disable", False)
    return hasattr(function, "_torchdynamo_orig_callable") and not kept
