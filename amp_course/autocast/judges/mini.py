"""Judge a small autocast beside the real one: dtypes and values op by op, its cache, its way out, whole models."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, _len_torch_function_stack, _pop_mode

from amp_course.autocast.judges.casts import FP32_OPS, LOWER_OPS, LOWERED, WIDEST_OPS, Case, cases
from amp_course.autocast.judges.kernels import KernelLog
from amp_course.checking import Wrong
from amp_course.checking.values import dtype_name, fresh
from amp_course.kit.models import CharGPT, DigitsResNet, SimpleNet


def judge(answer: Callable[..., Any]) -> None:
    """`MiniAutocast(dtype, lower, fp32, widest)`, a TorchFunctionMode that gives what `torch.autocast("cpu")` gives."""
    for dtype in (torch.bfloat16, torch.float16):
        _check_ops(answer, dtype)
    _check_gradient(answer)
    _check_copies(answer)
    _check_leaving(answer)
    _check_models(answer)


def _make(answer: Callable[..., Any], dtype: torch.dtype = torch.bfloat16) -> TorchFunctionMode:
    mode = answer(dtype, LOWER_OPS, FP32_OPS, WIDEST_OPS)
    if not isinstance(mode, TorchFunctionMode):
        raise Wrong(
            f"`MiniAutocast(dtype, lower, fp32, widest)` gave an object of type {type(mode).__name__}: derive the class from "
            "`torch.overrides.TorchFunctionMode`, whose `with` block hands every torch function to `__torch_function__`"
        )
    return mode


@contextmanager
def _entered(mode: TorchFunctionMode) -> Iterator[None]:
    """Enter the answer's mode; whatever it does on its way out, it is gone afterwards.

    Raises Wrong if it had not gone by itself.
    """
    depth, left_on = _len_torch_function_stack(), False
    try:
        with mode:
            yield
    finally:
        while _len_torch_function_stack() > depth:
            _pop_mode()
            left_on = True
    if left_on:
        raise Wrong("the mode is still on after its `with` block: `__exit__` has to call `super().__exit__(*error)`")


def _check_ops(answer: Callable[..., Any], dtype: torch.dtype) -> None:
    generator = fresh()
    a, b = torch.randn(8, 8, generator=generator), torch.randn(8, 8, generator=generator)
    kept = a.clone(), b.clone()
    for case in cases(a, b, dtype):
        with torch.autocast("cpu", dtype=dtype):
            want = case.run()
        where = f"in a region of {dtype_name(dtype)}, `{case.shown}`"
        with KernelLog() as seen:
            got = _result(_make(answer, dtype), case, where)
        if got.dtype != want.dtype:
            raise Wrong(
                f"{where} gives {dtype_name(got.dtype)}, and torch.autocast {dtype_name(want.dtype)}: {case.why}"
            )
        if case.why == LOWERED and seen.low_matmul() is None:
            raise Wrong(
                f"{where} gives the right dtype, but the kernel ran in float32: only the output was cast, which is slower "
                "and gains nothing. Cast the arguments, then call `func`"
            )
        if not torch.allclose(got.double(), want.double(), rtol=0.02, atol=0.02):
            raise Wrong(f"{where} gives other numbers than torch.autocast: call `func` once, with the arguments cast")
        if a.dtype != torch.float32 or not torch.equal(a, kept[0]) or not torch.equal(b, kept[1]):
            raise Wrong(
                "the caller's own tensor was changed: `.to(dtype)` gives a copy, `.data` and in-place ops do not"
            )


def _result(mode: TorchFunctionMode, case: Case, where: str) -> Tensor:
    try:
        with _entered(mode):
            got = case.run()
    except RuntimeError as error:
        raise Wrong(f"{where} raises “{str(error).splitlines()[0]}”: {case.why}") from error
    if not isinstance(got, Tensor):
        raise Wrong(f"{where} gives {type(got).__name__} instead of a tensor: return what `func` returns")
    return got


def _check_gradient(answer: Callable[..., Any]) -> None:
    """Look whether gradients reach a float32 weight, also after a pass under no_grad in the same region."""
    for first_without in (False, True):
        weight, x = nn.Parameter(torch.randn(8, 8)), torch.randn(4, 8)
        with _entered(_make(answer)):
            if first_without:
                with torch.no_grad():
                    F.linear(x, weight)
            out = F.linear(x, weight)
        if weight.dtype != torch.float32:
            raise Wrong("the parameter itself was cast: it stays float32, and the op gets a copy, `value.to(dtype)`")
        if out.requires_grad:
            out.float().sum().backward()
        if weight.grad is None and first_without:
            raise Wrong(
                "a weight that was first used under `torch.no_grad()` gets no gradient later in the region: the copy made "
                "there has no graph, and your cache hands it out again. Keep a copy only if `torch.is_grad_enabled()` "
                "(PyTorch had this bug too: issue 65766)"
            )
        if weight.grad is None:
            raise Wrong(
                "the weight gets no gradient: its copy has to be made by an op that autograd records, `value.to(dtype)`, not "
                "through `.data`, `.detach()` or `no_grad`"
            )


def _check_copies(answer: Callable[..., Any]) -> None:
    """Look whether a weight is cast once a region, an input each time, and nothing is kept past the end."""
    weight, x = nn.Parameter(torch.randn(8, 8)), torch.randn(4, 8)
    mode, results, wanted = _make(answer), [], []
    with KernelLog(weight) as seen, _entered(mode):
        for _ in range(4):
            results.append(F.linear(x, weight).detach())
            x += 1
    if seen.copies[0] > 1:
        raise Wrong(
            f"the weight was cast {seen.copies[0]} times in one region of 4 uses: keep the copy of a parameter, a leaf that "
            "requires grad, until the region ends, and use it again"
        )
    x -= 4
    for _ in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            wanted.append(F.linear(x, weight).detach())
        x += 1
    if not torch.allclose(torch.stack(results), torch.stack(wanted), rtol=0.02, atol=0.1):
        raise Wrong(
            "an input that was changed between two ops was used with its old values: only parameters, leaves that require grad, "
            "may be cached. Activations change, or their memory is reused"
        )
    with torch.no_grad():
        weight.add_(3.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        want = F.linear(x, weight)
    for again in (mode, _make(answer)):
        with _entered(again):
            got = F.linear(x, weight)
        if not torch.allclose(got, want, rtol=0.02, atol=0.1):
            raise Wrong(
                "after an optimizer step a new region still used the old weight: the copies outlive their region. "
                "Clear them in `__exit__`"
            )


def _check_leaving(answer: Callable[..., Any]) -> None:
    """Look whether an exception goes through the region and leaves nothing switched, outside and inside."""
    a = torch.randn(4, 4)
    depth = _len_torch_function_stack()
    caught = left_on = False
    try:
        with _make(answer):
            raise ZeroDivisionError
    except ZeroDivisionError:
        caught = True
    finally:
        while _len_torch_function_stack() > depth:
            _pop_mode()
            left_on = True
    if left_on:
        raise Wrong(
            "an exception in the region leaves the mode on, and every later cell would run under it: `__exit__` has to call "
            "`super().__exit__(*error)` whether there was an error or not"
        )
    if not caught:
        raise Wrong(
            "an exception in the region disappeared: `__exit__` returned something true, which tells Python to swallow it. "
            "Return None"
        )
    with _entered(_make(answer)):
        with suppress(RuntimeError):
            torch.mm(a, a[:3])
        after = torch.mm(a, a)
    if after.dtype != torch.bfloat16:
        raise Wrong(
            "after an op failed inside the region, nothing is cast any more: whatever you switch off to call `func`, "
            "switch it on again in a `finally`"
        )


def _models() -> Iterator[tuple[nn.Module, Tensor]]:
    yield SimpleNet(16), torch.randn(4, 16)
    yield DigitsResNet(4), torch.rand(4, 1, 8, 8)
    yield CharGPT(11, context=8, layers=2, heads=2, width=16), torch.randint(0, 11, (3, 8))


def module_dtypes(model: nn.Module, inputs: Tensor, region: AbstractContextManager[Any]) -> dict[str, torch.dtype]:
    """Run a copy of a model in a region; return each module's output dtype, by the module's name."""
    model, dtypes = copy.deepcopy(model), {}
    for name, module in model.named_modules():
        # A name for each module: the hook is called after the loop has gone on.
        def note(_: nn.Module, args: Any, output: Tensor, name: str = name or "the model itself") -> None:
            dtypes[name] = output.dtype

        module.register_forward_hook(note)
    with region:
        model(inputs)
    return dtypes


def _check_models(answer: Callable[..., Any]) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        for model, inputs in _models():
            wanted = module_dtypes(model, inputs, torch.autocast("cpu", dtype=dtype))
            got = module_dtypes(model, inputs, _entered(_make(answer, dtype)))
            for name, want in wanted.items():
                if got[name] != want:
                    raise Wrong(
                        f"in {type(model).__name__}, {name} gives {dtype_name(got[name])} in your region and "
                        f"{dtype_name(want)} under torch.autocast"
                    )
