"""torch.compile: eager against compiled, in a process of its own,
for compiling takes long and leaves much behind in memory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_course.kit.children import ChildError, ChildTimeout, run_python
from amp_course.kit.measure import seconds_text
from amp_course.speed.experiments.finding import Finding
from amp_course.speed.experiments.interleaved import Comparison, compare, sentence
from amp_course.speed.experiments.workbench import drawn, low_dtype, pick_size

LONGEST = 25.0  # seconds, after which compiling is given up


def compiled(
    device: torch.device | str = "cpu", *, seconds: float = 1.5, longest: float = LONGEST
) -> Finding:
    """Compile a forward pass and compare it with eager; takes up to `longest` seconds, most of them
    for the compiler.

    Without a C++ compiler (on a GPU: without Triton) the finding says so.
    """
    code = f"from {__name__} import in_child; in_child({str(device)!r}, {seconds})"
    try:
        told = json.loads(run_python(code, seconds=longest))
    except ChildTimeout as error:
        more = (
            "what the compiler finished is kept, so try again, or give it longer, as in "
            "compiled(longest=60)"
        )
        told = {"error": f"{error}; {more}"}
    except ChildError as error:
        told = {"error": str(error)}
    if "error" in told:
        comparison, claim = None, sentence(f"nothing was compiled: {told['error']}")
    else:
        comparison = Comparison(**told["comparison"])
        claim = tell_compiled(comparison, told["compile_seconds"])
    return Finding("torch.compile", comparison, claim, ("compile",))


def tell_compiled(found: Comparison, compile_seconds: Mapping[str, float]) -> str:
    """Compare compiled with eager, and say what the compiling took: the first call, by recipe."""
    told = []
    for recipe, words in (("fp32", "in fp32"), ("AMP", "under AMP")):
        sides = f"{recipe}, compiled", f"{recipe}, eager"
        told.append(f"{words}, {found.tell(*sides, who='compiled code', than='eager code')}")
    took = " and ".join(seconds_text(one) for one in compile_seconds.values())
    return sentence(
        *told,
        f"compiling took {took}; what was compiled before is taken from the compiler's store",
    )


def in_child(name: str, seconds: float) -> None:
    """Do the work of `compiled`, and print what came of it as one line of JSON."""
    print(json.dumps(_compile_and_compare(torch.device(name), seconds)))


def _compile_and_compare(device: torch.device, seconds: float) -> dict[str, Any]:
    torch.set_num_threads(1)
    width = pick_size(device, cpu=512, slow=64, gpu=4096)
    x = drawn(1024 if device.type == "cpu" else 8192, width, device=device)
    weight = drawn(width, width, device=device, seed=2) / width**0.5
    fast = torch.compile(layer, dynamic=False)
    sides: dict[str, Callable[[], object]] = {}
    compile_seconds = {}
    try:
        for recipe in ("fp32", "AMP"):
            eager, quick = (
                partial(_forward, one, x, weight, recipe == "AMP") for one in (layer, fast)
            )
            started = time.perf_counter()
            quick()
            compile_seconds[recipe] = time.perf_counter() - started
            sides |= {f"{recipe}, eager": eager, f"{recipe}, compiled": quick}
    except Exception as error:
        # inductor wraps whatever went wrong in errors of its own, one torch from the next
        return {"error": _cause(error)}
    base = {side: f"{side.partition(',')[0]}, eager" for side in sides}
    found = compare(sides, device, seconds=seconds, base=base)
    return {"comparison": asdict(found), "compile_seconds": compile_seconds}


def layer(x: Tensor, weight: Tensor) -> Tensor:
    """A linear layer and a chain of ops around it; run eagerly, each reads and writes it all."""
    y = F.layer_norm(x, x.shape[-1:]) @ weight
    return x + torch.sigmoid(y) * F.gelu(y) * 0.5


@torch.no_grad()
def _forward(run: Any, x: Tensor, weight: Tensor, low: bool) -> Tensor:
    with torch.autocast(x.device.type, low_dtype(x.device), enabled=low):
        return run(x, weight).float().mean()


def _cause(error: BaseException) -> str:
    chain: list[BaseException] = [error]
    while (deeper := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(deeper)
    text = " ".join(f"{type(one).__name__} {one}" for one in chain)
    if "InvalidCxxCompiler" in text or "No working C++ compiler" in text:
        return (
            "it needs a C++ compiler, and there is none (on Linux install g++, on macOS run "
            "`xcode-select --install`)"
        )
    if "Triton" in text:
        return "on a GPU it needs Triton, which did not load: reinstall torch with its own Triton"
    return str(error).strip().partition("\n")[0] or type(error).__name__
