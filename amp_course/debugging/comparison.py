"""Try tools that look for inf and NaN on the same planted faults and sound steps: what each names, and what it costs.

Besides `first_nonfinite`: PyTorch's `torch.autograd.detect_anomaly`; its `DebugMode`, which logs every op with the norm of what
it gave; and a check of every module's output by a forward hook, as Hugging Face's `DebugUnderflowOverflow` does it.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from amp_course.debugging.nonfinite import first_nonfinite
from amp_course.debugging.planted import FAULTS, SOUND, Planted, Setup
from amp_course.kit.table import html_table, text_table
from amp_course.kit.tensors import tensors_in
from amp_course.speed.experiments.in_turn import Comparison as Timed
from amp_course.speed.experiments.in_turn import compare

HERE = "# here"  # at the end of the line that is to be named


@dataclass(frozen=True)
class Named:
    """What a tool said of one step.

    accuses: whether it reported anything
    op, module, line: whether its report has the op that made the first inf or NaN, the path of its module, its line of code
    """

    accuses: bool = False
    op: bool = False
    module: bool = False
    line: bool = False


def _first_nonfinite(setup: Setup, fault: Planted | None) -> Named:
    found = first_nonfinite(setup.step, model=setup.model, optimizer=setup.optimizer, scaler=setup.scaler or ())
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
        module.register_forward_hook(lambda module, args, output, name=name: hook(name, module, args, output))
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


@dataclass(frozen=True)
class Comparison:
    """Fault → tool → what it named; sound step → tools that accused it."""

    faults: Mapping[str, Mapping[str, Named]]
    sound: Mapping[str, tuple[str, ...]]

    def count(self, tool: str, what: str) -> int:
        """Return in how many faults a tool named "op", "module" or "line", or "accuses" at all."""
        return sum(getattr(found[tool], what) for found in self.faults.values())

    def rows(self) -> list[list[str]]:
        """Return a table as text, its head first."""
        tools = list(next(iter(self.faults.values())))
        rows = [["tool", f"notices, of {len(self.faults)}", "names the op", "the module", "the line",
                 f"accuses, of {len(self.sound)} sound steps"]]  # fmt: skip
        for tool in tools:
            counts = [str(self.count(tool, what)) for what in ("accuses", "op", "module", "line")]
            rows.append([tool, *counts, str(sum(tool in accusers for accusers in self.sound.values()))])
        return rows

    def missed(self, tool: str) -> list[str]:
        """Return the faults that a tool does not notice."""
        return [name for name, found in self.faults.items() if not found[tool].accuses]

    def __str__(self) -> str:
        return text_table(self.rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.rows())


def compare_tools() -> Comparison:
    """Try every tool that this torch has on every planted fault and every sound step."""
    tools = available_tools()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "std.*degrees of freedom")
        faults = {fault.name: {tool: TOOLS[tool](fault.make(), fault) for tool in tools} for fault in FAULTS}
        sound = {
            make.__name__.replace("_", " "): tuple(tool for tool in tools if TOOLS[tool](make(), None).accuses)
            for make in SOUND
        }
    return Comparison(faults, sound)


@dataclass(frozen=True, repr=False)
class Costs:
    """What a step takes under each tool, timed in turn with a bare one."""

    comparison: Timed

    def times(self, tool: str) -> float:
        """Return how many times the bare step it takes, in the middle of the rounds."""
        return 1 / self.comparison.ratio(tool, "bare").median

    def __str__(self) -> str:
        """Write a line for each tool; on a busy machine, that it cannot be told."""
        if self.comparison.busy:
            return self.comparison.busy
        lines = []
        for tool in self.comparison.seconds:
            same = self.comparison.ratio(tool, "bare").verdict == "same"
            said = (
                "as long as the step, as far as this run can tell" if same else f"{self.times(tool):.1f} times the step"
            )
            lines += [f"{tool:22} {said}"] if tool != "bare" else []
        return "\n".join(lines)

    __repr__ = __str__


def relative_costs(step: Callable[[], Any], model: nn.Module, *, seconds: float = 2.0) -> Costs:
    """Time a step bare and under each tool, in turn; setting the tool up is part of its time."""

    def under(tool: str) -> Callable[[], object]:
        def run() -> None:
            with _around(tool, model):
                step()

        return run

    sides: dict[str, Callable[[], object]] = {"bare": step}
    sides |= {tool: under(tool) for tool in available_tools()}
    sides["first_nonfinite"] = lambda: first_nonfinite(step, model=model)
    return Costs(compare(sides, seconds=seconds))


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
