"""Steps written in words: a case of broken_*.toml or sound_*.toml, made into a training step.

["no update"]
faults = ["update-missing", "step-raises"]   without them the step is sound
why = "The scale never adapts."              what goes wrong, or why it only looks wrong
style = "method"                             or "callable object", "closure", "partial"
optimizer = "Adam, lr=1e-3, fused=True"      its class, and the arguments after the parameters
scaler = "init_scale=2.0**14"                passed to `audit` if this is here or the step uses it
define = "class Odd(nn.Module): ..."         lines that run before the model is made
model = "Odd()"
before = "i = 0"                             lines that run once; the step may change their names
takes = "x, y, last=False"
step = "clear; forward; backward; step"      WORDS or Python; PLAIN by default
given = "loss=mse, accumulate=4"             the other arguments of `audit`
"""

from __future__ import annotations

import functools
import linecache
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.audit import parts

Made = tuple[Callable[..., Any], dict[str, Any]]  # the step, and the other arguments of `audit`
HERE = Path(__file__).parent
WORDS = {
    "clear": "optimizer.zero_grad()",
    "forward": "with half():\n    loss = criterion(model(x), y)",
    "forward_bf16": "with bf16():\n    loss = criterion(model(x), y)",
    "backward": "scaler.scale(loss).backward()",
    "unscale": "scaler.unscale_(optimizer)",
    "clip": "clip_grad_norm_(model.parameters(), max_norm)",
    "step": "scaler.step(optimizer)",
    "update": "scaler.update()",
    "fake": "with half():\n    fake = G(torch.randn(len(real), 4))",
    "forward_D": "with half(): loss = (softplus(-D(real)) + softplus(D(fake.detach()))).mean()",
    "forward_G": "with half():\n    loss = softplus(-D(fake)).mean()",
    "clear_D": "opt_D.zero_grad()",
    "clear_G": "opt_G.zero_grad()",
    "step_D": "scaler.step(opt_D)",
    "step_G": "scaler.step(opt_G)",
}
PLAIN = "clear; forward; backward; step; update"
HEADER = re.compile(r"((?:if|elif|else|for|while|with|try|except|def)\b.*?:) (\S.*)")


@dataclass(frozen=True)
class Case:
    """One step: `step, arguments = case.make()` makes a new one, then `audit(step, **arguments)`.

    name:   a few words; unique
    faults: the names that it may get; () for a sound step
    """

    name: str
    make: Callable[[], Made]
    faults: tuple[str, ...] = ()


def lines_of(text: str, indent: str = "") -> list[str]:
    """Return the lines of Python for words such as "clear; forward / 2; backward"."""
    found = []
    for line in text.strip("\n").split("\n"):
        space, line = indent + line[: len(line) - len(line.lstrip())], line.strip()
        if header := HEADER.fullmatch(line):
            found += [space + header[1], *lines_of(header[2], space + "    ")]
            continue
        for part in line.split("; "):
            word, _, divisor = part.partition(" / ")
            code = WORDS.get(word, word) + (f" / {divisor}" if divisor else "")
            found += [space + one for one in code.split("\n")]
    return found


def step_of(
    name: str, text: str, takes: str, style: str, used: dict[str, Any], names: dict[str, Any]
) -> Any:
    """Return the step: a function whose globals are `used`, or what its style names."""
    lines = lines_of(text)
    given = re.compile(rf"(?<![\w.])({'|'.join(sorted(used))})\b(?!=[^=])")
    if style == "closure":
        lines = [line.replace("global ", "nonlocal ") for line in lines]
        head = [f"def make({', '.join(used)}):", f"    def step({takes}):"]
        tail = ["    return step"]
    elif style in ("method", "callable object"):
        method = "__call__" if style == "callable object" else "step"
        lines = [given.sub(r"self.\1", line) for line in lines if "global " not in line]
        start = ["    def __init__(self, **parts):", "        vars(self).update(parts)"]
        head, tail = ["class Trainer:", *start, f"    def {method}(self, {takes}):"], []
    else:
        more = f", *, {', '.join(used)}" if style == "partial" else ""
        head, tail = [f"def step({takes}{more}):"], []
    depth = " " * (4 + len(head[-1]) - len(head[-1].lstrip()))
    file = str(HERE / f"{name}.py")
    source = "\n".join([*head, *(depth + line for line in lines), *tail]) + "\n"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope = names | used if style == "function" else dict(names)
    exec(compile(source, file, "exec"), scope)
    if style == "closure":
        return scope["make"](**used)
    if style in ("method", "callable object"):
        trainer = scope["Trainer"](**used)
        return trainer if style == "callable object" else trainer.step
    return functools.partial(scope["step"], **used) if style == "partial" else scope["step"]


def live(step: Any) -> dict[str, Any]:
    """Return a step's variables with their current values."""
    function = getattr(step, "__func__", step)
    if function is not step:
        return vars(step.__self__)
    if not hasattr(function, "__code__"):  # a callable object
        return vars(step)
    if function.__closure__:
        cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
        return {name: cell.cell_contents for name, cell in cells}
    return function.__globals__


def make(
    name: str, case: dict[str, Any], base: dict[str, Any]
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return a case's step, the other arguments of `audit`, and all names.

    base: the defaults for what the case leaves out
    """
    case = {"step": PLAIN} | base | case
    torch.manual_seed(0)
    names: dict[str, Any] = {key: value for key, value in vars(parts).items() if key[:2] != "__"}
    names |= case.get("names", {}) | {"__name__": "a step"}
    names["criterion"] = eval(case["criterion"], names)
    exec("\n".join(lines_of(case.get("define", ""))), names)
    code = "\n".join(lines_of(case["step"]))
    setup = dict(names)
    arguments: dict[str, Any]
    if re.search(r"\b[GD]\b", code) and "model" not in case:
        exec("G, D, opt_G, opt_D = adversaries()", setup)
        arguments = {
            "model": [setup["G"], setup["D"]],
            "optimizer": [setup["opt_G"], setup["opt_D"]],
        }
        case = {"takes": "real", "batches": "reals()"} | case
    else:
        setup["model"] = eval(case.get("model", case["net"]).strip(), setup)
        kind, _, options = case["optimizer"].partition(",")
        setup["optimizer"] = eval(
            f"torch.optim.{kind}(model.parameters(), {options or 'lr=0.1'})", setup
        )
        arguments = {"model": setup["model"], "optimizer": setup["optimizer"]}
    if "scaler" in case or "scaler" in code:
        settings = f"dict({case.get('scaler', case.get('scaling', ''))})"
        setup["scaler"] = torch.amp.GradScaler(
            "cpu", **{"init_scale": 2.0**12} | eval(settings, setup)
        )
        arguments["scaler"] = setup["scaler"]
    exec("\n".join(lines_of(case.get("before", ""))), setup)
    arguments["batches"] = eval(case.get("batches", case["data"]), setup)
    arguments |= eval(f"dict({case.get('given', '')})", setup)
    if "scheduler" in setup:
        arguments.setdefault("scheduler", setup["scheduler"])
    setup["max_norm"] = arguments.get("max_norm", 1.0)
    own = {key: value for key, value in setup.items() if value is not names.get(key, ...)}
    used = {key: value for key, value in own.items() if re.search(rf"\b{key}\b", code)}
    step = step_of(
        name, case["step"], case.get("takes", "x, y"), case.get("style", "function"), used, names
    )
    return step, arguments, setup


BROKEN: dict[str, Any] = dict(net="net()", data="rows()", criterion="F.mse_loss", optimizer="SGD")
SOUND: dict[str, Any] = dict(
    net="mlp()", data="classes()", criterion="F.cross_entropy", optimizer="SGD"
)


def read(pattern: str) -> dict[str, dict[str, Any]]:
    """Read the files whose names match: name → case."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(HERE.glob(pattern)):
        more = tomllib.loads(path.read_text("utf-8"))
        assert not found.keys() & more.keys(), path
        found |= more
    return found


def first_of_each(cases: Sequence[Any], keys: Sequence[Any]) -> list[Any]:
    """Mark cases as slow that have the key of an earlier case."""
    later = (key in keys[:place] for place, key in enumerate(keys))
    each = zip(cases, later, strict=True)
    return [pytest.param(case, marks=[pytest.mark.slow] * slow) for case, slow in each]


def every_second(cases: Sequence[Any]) -> list[Any]:
    """Mark every second case as slow."""
    return first_of_each(cases, [place // 2 for place, _ in enumerate(cases)])


def cases_of(pattern: str, base: dict[str, Any]) -> list[Case]:
    """Return the cases of the files whose names match."""

    def made(name: str, case: dict[str, Any]) -> Made:
        return make(name, case, base)[:2]

    return [
        Case(name, functools.partial(made, name, case), tuple(case.get("faults", ())))
        for name, case in read(pattern).items()
    ]
