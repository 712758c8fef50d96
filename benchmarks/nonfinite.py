"""Try tools that look for inf and NaN on the same planted faults and sound steps: what each names,
and what it costs.

Besides `first_nonfinite`: PyTorch's `torch.autograd.detect_anomaly`; its `DebugMode`, which logs
every op with the norm of what it gave; and a check of every module's output by a forward hook, as
Hugging Face's `DebugUnderflowOverflow` does it.

    python -m benchmarks.nonfinite
"""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from amp_course.debugging.nonfinite import first_nonfinite
from amp_course.kit.hardware import machine_report
from amp_course.kit.table import text_table
from amp_course.kit.tensors import tensors_in
from amp_course.speed.experiments.interleaved import compare
from benchmarks.interleaved import Record, arguments, spread, warn_if_busy
from benchmarks.planted_nonfinite import FAULTS, SOUND, Planted, Setup

HERE = "# here"  # at the end of the line that is to be named
WHAT = ("accuses", "op", "module", "line")


@dataclass(frozen=True)
class Named:
    """What a tool said of one step.

    accuses: whether it reported anything
    op, module, line: whether its report has the op that made the first inf or NaN, the path of its
                      module, its line of code
    """

    accuses: bool = False
    op: bool = False
    module: bool = False
    line: bool = False


def _first_nonfinite(setup: Setup, fault: Planted | None) -> Named:
    found = first_nonfinite(
        setup.step, model=setup.model, optimizer=setup.optimizer, scaler=setup.scaler or ()
    )
    first = found.first
    if first is None or fault is None:
        return Named(bool(found))
    lines = "".join(line.source for line in (first.line, first.forward) if line is not None)
    return Named(True, first.op in fault.ops, first.module == fault.module, HERE in lines)


def _detect_anomaly(setup: Setup, fault: Planted | None) -> Named:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with torch.autograd.detect_anomaly():
                setup.step()
        except RuntimeError as error:
            text = f"{error}" + "".join(str(one.message) for one in said)
            node = str(error).split("'")[1] if "'" in str(error) else ""
            ops = fault.ops if fault is not None else ()
            named = any(op.strip("_").replace("_", "") in node.lower() for op in ops)
            return Named(True, named, False, HERE in text)
    return Named()


def _hooks(setup: Setup, fault: Planted | None) -> Named:
    found: list[str] = []

    def hook(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if not found and not all(bool(tensor.isfinite().all()) for tensor in tensors_in(output)):
            found.append(name)

    handles = [
        module.register_forward_hook(
            lambda module, args, output, name=name: hook(name, module, args, output)
        )
        for name, module in setup.model.named_modules()
    ]
    setup.step()
    for handle in handles:
        handle.remove()
    return Named(bool(found), False, fault is not None and found[:1] == [fault.module])


def _debug_mode(setup: Setup, fault: Planted | None) -> Named:
    mode = _log_of_debug_mode(setup)
    for call in mode.logs:
        norms = pytree.tree_leaves((getattr(call, "log", None) or {}).get("hash"))
        if any(isinstance(one, float) and not math.isfinite(one) for one in norms):
            op = str(getattr(call, "op", "")).split(".")[1:2]
            trace = f"{getattr(call, 'stack_trace', '')}{getattr(call, 'fwd_stack_trace', '')}"
            named = fault is not None and op[:1] != [] and op[0] in fault.ops
            return Named(True, named, False, HERE in trace)
    return Named()


def _log_of_debug_mode(setup: Setup) -> Any:
    debug_mode: Any = importlib.import_module("torch.utils._debug_mode").DebugMode
    mode = debug_mode(record_stack_trace=True, record_nn_module=True)
    with mode, debug_mode.log_tensor_hashes(hash_fn="norm"):
        setup.step()
    return mode


TOOLS: Mapping[str, Callable[[Setup, Planted | None], Named]] = {
    "first_nonfinite": _first_nonfinite,
    "detect_anomaly": _detect_anomaly,
    "DebugMode": _debug_mode,
    "hooks on modules": _hooks,
}


def available_tools() -> list[str]:
    """Return the tools that this version of torch has."""
    has_debug_mode = hasattr(_imported("torch.utils._debug_mode"), "DebugMode") and hasattr(
        importlib.import_module("torch.utils._debug_mode").DebugMode, "log_tensor_hashes"
    )
    return [name for name in TOOLS if name != "DebugMode" or has_debug_mode]


def _imported(name: str) -> Any:
    with contextlib.suppress(ImportError):
        return importlib.import_module(name)
    return None


def compare_tools() -> tuple[dict[str, dict[str, Named]], dict[str, list[str]]]:
    """Try every tool that this torch has: fault → tool → what it named,
    and sound step → the tools that accused it.
    """
    tools = available_tools()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "std.*degrees of freedom")
        faults = {
            fault.name: {tool: TOOLS[tool](fault.make(), fault) for tool in tools}
            for fault in FAULTS
        }
        sound = {
            make.__name__.replace("_", " "): [
                tool for tool in tools if TOOLS[tool](make(), None).accuses
            ]
            for make in SOUND
        }
    return faults, sound


def table(
    faults: Mapping[str, Mapping[str, Named]], sound: Mapping[str, Sequence[str]]
) -> list[list[str]]:
    """Return the counts as text, the head first."""
    head = ["tool", f"notices, of {len(faults)}", "names the op", "the module", "the line"]
    rows = [[*head, f"accuses, of {len(sound)} sound steps"]]
    for tool in available_tools():
        counts = [sum(getattr(named[tool], what) for named in faults.values()) for what in WHAT]
        rows.append(
            [tool, *map(str, counts), str(sum(tool in accusers for accusers in sound.values()))]
        )
    return rows


def relative_costs(*, seconds: float = 2.0) -> dict[str, dict[str, float]]:
    """Return how many times a bare step it takes under each tool;
    setting the tool up is part of its time.
    """
    model = nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    batch = torch.randn(128, 256)

    def step() -> None:
        model(batch).square().mean().backward()

    def under(tool: str) -> Callable[[], object]:
        def run() -> None:
            with _around(tool, model):
                step()

        return run

    sides: dict[str, Callable[[], object]] = {"bare": step}
    sides |= {tool: under(tool) for tool in available_tools()}
    sides["first_nonfinite"] = lambda: first_nonfinite(step, model=model)
    timed = compare(sides, seconds=seconds)
    times = {tool: timed.seconds[tool] for tool in sides if tool != "bare"}
    return {
        tool: spread([one / bare for one, bare in zip(taken, timed.seconds["bare"], strict=True)])
        for tool, taken in times.items()
    }


@contextlib.contextmanager
def _around(tool: str, model: nn.Module) -> Iterator[None]:
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if tool == "detect_anomaly":
            stack.enter_context(torch.autograd.detect_anomaly())
        elif tool == "DebugMode":
            debug_mode: Any = importlib.import_module("torch.utils._debug_mode").DebugMode
            stack.enter_context(debug_mode(record_stack_trace=True, record_nn_module=True))
            stack.enter_context(debug_mode.log_tensor_hashes(hash_fn="norm"))
        elif tool == "hooks on modules":
            for module in model.modules():
                handle = module.register_forward_hook(
                    lambda module, args, output: (
                        [tensor.isfinite().all().item() for tensor in tensors_in(output)] and None
                    )
                )
                stack.callback(handle.remove)
        yield


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, and write results/nonfinite-….json;
    return 1 if `first_nonfinite` misses a fault or accuses a sound step.
    """
    chosen = arguments((__doc__ or "").partition("\n")[0], rounds=1, steps=1, argv=argv)
    warn_if_busy()
    record = Record("nonfinite", machine_report(chosen.device), chosen)
    faults, sound = compare_tools()
    rows = table(faults, sound)
    costs = relative_costs(seconds=0.2 if chosen.tiny else 4.0)
    named = {
        fault: {tool: [getattr(one, what) for what in WHAT] for tool, one in by.items()}
        for fault, by in faults.items()
    }
    record.data |= {"table": rows, "times_the_step": costs, "named": named, "accused": sound}
    print(text_table(rows))
    print(
        "\n".join(
            f"{tool:18} {ratio['median']:.1f} times the step" for tool, ratio in costs.items()
        )
    )
    print(f"written: {record.write().name}")
    missed = [name for name, by in faults.items() if not by["first_nonfinite"].op]
    return int(bool(missed) or any("first_nonfinite" in accusers for accusers in sound.values()))


if __name__ == "__main__":
    sys.exit(main())
