"""torch.compile: eager against compiled, in a process of its own,
for compiling takes long and leaves much behind in memory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_course.kit.children import ChildError, ChildTimeout, run_python
from amp_course.kit.measure import seconds_text
from amp_course.speed.experiments.finding import PUBLISHED, Finding
from amp_course.speed.experiments.interleaved import Comparison, compare, sentence
from amp_course.speed.experiments.workbench import drawn, low_dtype, pick_size

LONGEST = 25.0  # seconds, after which compiling is given up


@dataclass(frozen=True, repr=False)
class Compiled(Finding):
    """A linear layer and the ops around it, eager and compiled, with and without AMP.

    compile_seconds: of the first call, by recipe; the compiler keeps what it made, so a second run
                     is much quicker
    error:           why there is no measurement; else ""
    """

    compile_seconds: dict[str, float]
    error: str = ""

    title = "torch.compile"

    @property
    def claim(self) -> str:
        """Compare compiled with eager, and say what the compiling took."""
        if self.comparison is None:
            return sentence(f"nothing was compiled: {self.error}")
        told = []
        for recipe, words in (("fp32", "in fp32"), ("AMP", "under AMP")):
            sides = f"{recipe}, compiled", f"{recipe}, eager"
            compared = self.comparison.tell(*sides, who="compiled code", than="eager code")
            told.append(f"{words}, {compared}")
        took = " and ".join(seconds_text(one) for one in self.compile_seconds.values())
        return sentence(
            *told,
            f"compiling took {took}; what was compiled before is taken from the compiler's store",
        )


def compiled(
    device: torch.device | str = "cpu", *, seconds: float = 1.5, longest: float = LONGEST
) -> Compiled:
    """Compile a forward pass and compare it with eager; takes up to `longest` seconds, most of them
    for the compiler.

    Without a C++ compiler (on a GPU: without Triton) the finding says so.
    """
    code = (
        f"from {__name__} import compile_and_compare; compile_and_compare({str(device)!r}, "
        f"{seconds})"
    )
    try:
        found: dict[str, Any] = json.loads(run_python(code, seconds=longest))
    except ChildTimeout as error:
        more = (
            "what the compiler finished is kept, so try again, or give it longer, as in "
            "compiled(longest=60)"
        )
        return Compiled(None, (PUBLISHED["compile"],), {}, f"{error}; {more}")
    except ChildError as error:
        return Compiled(None, (PUBLISHED["compile"],), {}, str(error))
    if "error" in found:
        return Compiled(None, (PUBLISHED["compile"],), {}, found["error"])
    comparison = Comparison(
        {side: tuple(times) for side, times in found["seconds"].items()},
        found["base"],
        found["steps"],
        found["results"],
        found["waited"],
    )
    return Compiled(comparison, (PUBLISHED["compile"],), found["compile_seconds"])


def compile_and_compare(name: str, seconds: float) -> None:
    """Do the work of `compiled`, and print what came of it as one line of JSON."""
    print(json.dumps(_compile_and_compare(torch.device(name), seconds)))


def _compile_and_compare(device: torch.device, seconds: float) -> dict[str, Any]:
    torch.set_num_threads(1)
    width = pick_size(device, cpu=512, slow=64, gpu=4096)
    rows = 1024 if device.type == "cpu" else 8192
    x, weight = (
        drawn(rows, width, device=device),
        drawn(width, width, device=device, seed=2) / width**0.5,
    )
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
    return compare(sides, device, seconds=seconds, base=base).to_dict() | {
        "compile_seconds": compile_seconds
    }


def layer(x: Tensor, weight: Tensor) -> Tensor:
    """A linear layer and a chain of ops around it, each of which, run eagerly,
    reads and writes all of its tensors.
    """
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
