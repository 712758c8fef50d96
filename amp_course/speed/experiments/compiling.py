"""torch.compile: eager and compiled code compared, in a process of its own, because compiling takes
long and leaves much in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_course.kit.children import ChildError, ChildTimeout, run_python
from amp_course.kit.measure import clock, seconds_text
from amp_course.loop.recipe import Recipe
from amp_course.speed.experiments.finding import Finding
from amp_course.speed.experiments.interleaved import Comparison, sentences
from amp_course.speed.experiments.levers import describe_settings, time_settings
from amp_course.speed.experiments.workbench import drawn, pick_size

LONGEST = 25.0  # seconds after which compiling is given up


def compiled(
    device: torch.device | str = "cpu", *, seconds: float = 1.5, longest: float = LONGEST
) -> Finding:
    """Compile a forward pass and compare it with eager code, in up to `longest` seconds, most of
    them for the compiler.

    Without a C++ compiler (on a GPU: without Triton) the finding says so.
    """
    code = f"from {__name__} import in_child; in_child({str(device)!r}, {seconds})"
    try:
        result = json.loads(run_python(code, seconds=longest))
    except ChildTimeout as error:
        more = (
            "what the compiler finished is kept, so try again, or give it longer, as in "
            "compiled(longest=60)"
        )
        result = {"error": f"{error}; {more}"}
    except ChildError as error:
        result = {"error": str(error)}
    if "error" in result:
        comparison, claim = None, sentences(f"nothing was compiled: {result['error']}")
    else:
        comparison = Comparison(**result["comparison"])
        claim = describe_compiled(comparison, result["compile_seconds"])
    return Finding("torch.compile", comparison, claim, ("compile",))


def describe_compiled(found: Comparison, compile_seconds: Sequence[float]) -> str:
    """Compare compiled with eager code; compile_seconds: of the first call in each recipe."""
    took = " and ".join(map(seconds_text, compile_seconds))
    return describe_settings(
        found, f"compiling took {took}; what was compiled before is taken from the compiler's store"
    )


def in_child(name: str, seconds: float) -> None:
    """Do the work of `compiled`, and print its result as one line of JSON."""
    print(json.dumps(_compile_and_compare(torch.device(name), seconds)))


def _compile_and_compare(device: torch.device, seconds: float) -> dict[str, Any]:
    torch.set_num_threads(1)
    width = pick_size(device, cpu=512, slow=64, gpu=4096)
    x = drawn(1024 if device.type == "cpu" else 8192, width, device=device)
    weight = drawn(width, width, device=device, seed=2) / width**0.5
    fast = torch.compile(layer, dynamic=False)
    compile_seconds = []

    def make(run: Callable[..., Tensor], recipe: Recipe) -> Callable[[], Tensor]:
        side = partial(_forward, run, x, weight, recipe.dtype)
        if run is fast:
            compile_seconds.append(clock(side, device))
        return side

    settings = {"eager code": partial(make, layer), "compiled code": partial(make, fast)}
    try:
        found = time_settings(settings, device, seconds)
    except Exception as error:
        # inductor wraps what went wrong in errors of its own, which differ between torch versions
        return {"error": _cause(error)}
    return {"comparison": asdict(found), "compile_seconds": compile_seconds}


def layer(x: Tensor, weight: Tensor) -> Tensor:
    """A linear layer and a chain of ops, each of which reads and writes the whole in eager code."""
    y = F.layer_norm(x, x.shape[-1:]) @ weight
    return x + torch.sigmoid(y) * F.gelu(y) * 0.5


@torch.no_grad()
def _forward(
    run: Callable[..., Tensor], x: Tensor, weight: Tensor, dtype: torch.dtype | None
) -> Tensor:
    with torch.autocast(x.device.type, dtype, enabled=dtype is not None):
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
