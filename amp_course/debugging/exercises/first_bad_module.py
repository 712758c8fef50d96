"""Exercise 9 of chapter 11: forward hooks that find the module that made the first inf or NaN."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Card, Case, Exercise, Mistake, Wrong, call_answer, families

card = Card(
    chapter="debugging",
    name="first_bad_module",
    number=9,
    title="A hook that finds the first inf",
    difficulty=3,
    importance=4,
    minutes=10,
    lines=16,
    task="Write `first_bad_module(model, *inputs)`. It runs the model once, on all inputs, and "
    "returns the name, as in `named_modules()`, of the first module without children that returns "
    "inf or NaN although all tensors that it was given are finite; None if there is none. A "
    "module returns a tensor or a tuple of tensors, and may be given numbers, too. No hook of "
    "yours is left behind, even if the model raises; its exception goes on to the caller.",
    hints=(
        "`module.register_forward_hook(hook)` calls `hook(module, args, output)` after each "
        "`forward` of that module. Hooks run in the order in which modules run.",
        "Register one hook on each module without children, and let it append the module's name "
        "to a list if the output is not finite but the inputs are. The first entry is the answer.",
        "Keep the handles, and call `handle.remove()` for each in a `finally`. Make a tuple of an "
        "output that is a tensor, and look at all of its tensors with "
        "`tensor.isfinite().all()`.",
    ),
    why="It costs a few lines in any project, and finds most overflows of a forward pass. What "
    "happens between modules, or in a backward pass, needs `first_nonfinite`.",
    alternative="`torch.nn.modules.module.register_module_forward_hook` takes one hook for all "
    "modules, and leaves the model alone.",
)


def right(model: nn.Module, *inputs: Any) -> str | None:
    found: list[str] = []

    def finite(values: Any) -> bool:
        values = values if isinstance(values, tuple) else (values,)
        return all(bool(one.isfinite().all()) for one in values if isinstance(one, torch.Tensor))

    def hook_for(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if finite(args) and not finite(output):
                found.append(name)

        return hook

    leaves = [one for one in model.named_modules() if not any(one[1].children())]
    handles = [module.register_forward_hook(hook_for(name)) for name, module in leaves]
    try:
        model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


class Times(nn.Module):
    """Multiplies by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of x's shape and dtype."""
        return x * self.factor


class Halves(Times):
    """Returns a tuple of two tensors."""

    def forward(self, x: Tensor) -> Any:
        """Return the left half, and the right half times the factor."""
        left, right_half = x.chunk(2, dim=-1)
        return left, super().forward(right_half)


class Plus(nn.Module):
    """Adds two tensors."""

    def forward(self, x: Tensor, y: Tensor, times: float = 1.0) -> Tensor:
        """Return a tensor of x's shape and dtype."""
        return (x + y) * times


class Far(Plus):
    """A model without modules inside, whose result overflows."""

    def forward(self, x: Tensor, y: Tensor, times: float = 1e6) -> Tensor:
        """Return a tensor of y's shape and dtype."""
        return super().forward(x[:, :3], y, times)


class Net(nn.Module):
    """Runs b, a and c on its input, then halves their sum. Each can multiply by a large number."""

    def __init__(self, **factors: float) -> None:
        super().__init__()
        self.a, self.b, self.c = (
            nn.Sequential(Times(factors.get(name, 1.0)), nn.ReLU()) for name in "abc"
        )
        self.halves, self.plus = Halves(factors.get("halves", 1.0)), Plus()
        self.between = factors.get("between", 1.0)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return a tensor of half of x's width."""
        total = self.b(x) + self.a(x) + self.c(x)
        left, right_half = self.halves(total)
        return self.plus(left + right_half, y, 1.0) * self.between


class Raises(nn.Module):
    """Has a module that raises."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.ReLU(), nn.Linear(3, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Raise a RuntimeError: the shapes do not fit."""
        return self.second(self.first(x))


LEFT = "the number of hooks that are left behind"
OWN = "the caller's own hook"
REACHED = "whether the model's exception reaches the caller"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Find the module in nets where some, one or none makes inf or NaN, and in one that raises."""
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    x, y = ((torch.rand(4, n, generator=generator) + 0.5).half() for n in (6, 3))
    bad_x, bad_y = x.clone(), y.clone()
    bad_x[1, 0] = bad_y[0, 0] = torch.inf
    large = 1e6
    for case, model, inputs in (
        ("where `b.0` overflows", Net(b=large), (x, y)),
        ("where every number is finite", Net(), (x, y)),
        ("where `b.0`, `a.0` and `c.0` overflow", Net(a=large, b=large, c=large), (x, y)),
        ("where `b.0` returns NaN", Net(b=torch.nan), (x, y)),
        ("where the second tensor of a tuple overflows", Net(halves=large), (x, y)),
        ("where an inf is passed in, and only passed on", Net(), (bad_x, y)),
        ("where the second input has an inf", Net(), (x, bad_y)),
        ("where the model overflows between its modules", Net(between=large), (x, y)),
        ("where the model has no modules inside, and overflows", Far(), (x, y)),
    ):
        runs = list[None]()
        leaf = next(one for one in model.modules() if not any(one.children()))
        hook = leaf.register_forward_hook(lambda *_, runs=runs: runs.append(None))  # the caller's
        got = call_answer(answer, case, model, *inputs)
        if not isinstance(got, str | None):
            raise Wrong(f"{case}, your function returned {_a(got)}, not a name or None")
        hooks = [one for module in model.modules() for one in module._forward_hooks]
        yield Case(
            case,
            {
                "the name": repr(got),
                "the number of times that the model ran": len(runs),
                LEFT: len(set(hooks) - {hook.id}),
                OWN: "kept" if hook.id in hooks else "removed",
            },
        )
    broken, reached = Raises(), False
    try:
        answer(broken, x, y)
    except RuntimeError:
        reached = True
    left = sum(len(module._forward_hooks) for module in broken.modules())
    yield Case("where the model raises", {REACHED: reached, LEFT: left})


def _a(value: Any) -> str:
    return f"an object of type {type(value).__name__}"


FINITE = "return all(bool(one.isfinite().all()) for one in values if isinstance(one, torch.Tensor))"
TUPLE = "values = values if isinstance(values, tuple) else (values,)"
CHECK = "if finite(args) and not finite(output):"
NOTE = "found.append(name)"
LEAVES = "leaves = [one for one in model.named_modules() if not any(one[1].children())]"
RUN, REMOVE = "model(*inputs)", "handle.remove()"
FIRST = "return found[0] if found else None"
LAST = {FIRST: "return found[-1] if found else None"}
UNCHECKED = {CHECK: "if not finite(output):"}

mistakes = [
    *(
        Mistake(
            f"the last that {does}",
            "where several modules return inf or NaN, the last is named. Take the first that was "
            "given none",
            edits=edits,
            violates="the first module",
        )
        for does, edits in (("passes it on", {**LAST, **UNCHECKED}), ("made one", LAST))
    ),
    Mistake(
        "the first registered",
        "the first in the order of `named_modules()` is named. Modules, and their hooks, run in "
        "the order in which `forward` calls them",
        edits={FIRST: "return next((name for name, _ in leaves if name in found), None)"},
    ),
    Mistake(
        "inputs not looked at",
        "a module is named that was already given an inf. Look at the inputs, too",
        edits=UNCHECKED,
        violates="although all tensors that it was given are finite",
    ),
    Mistake(
        "only the first input",
        "a module is named whose second input already had an inf. Look at all tensors in `args`",
        edits={CHECK: "if finite(args[0]) and not finite(output):"},
        violates="all tensors that it was given",
    ),
    Mistake(
        *families.MISSES_NAN,
        edits={FINITE: FINITE.replace("one.isfinite().all()", "not one.isinf().any()")},
        violates="inf or NaN",
    ),
    Mistake(
        *families.MISSES_INF,
        edits={FINITE: FINITE.replace("one.isfinite().all()", "not one.isnan().any()")},
    ),
    Mistake(
        "only the first of a tuple",
        "an inf in the second tensor of a tuple is not found. Look at all of them",
        edits={
            CHECK: "if finite(args) and not finite(output[:1] if isinstance(output, tuple) "
            "else output):"
        },
        violates="a tensor or a tuple of tensors",
    ),
    Mistake(
        "modules with children",
        "a module with children is named. Put hooks only on modules without children",
        edits={LEAVES: "leaves = list(model.named_modules())"},
        violates="without children",
    ),
    Mistake(
        "the model itself left out",
        "a model without modules inside is not looked at. In `named_modules()` its name is ''",
        edits={LEAVES: LEAVES.replace("if not any", "if one[0] and not any")},
    ),
    Mistake(
        "the last name in each hook",
        "the name of the last module is returned. A hook that is made in a loop looks up `name` "
        "when it runs, after the loop. Bind it, as in `def hook(…, name=name)`",
        edits={NOTE: "found.append(leaves[-1][0])"},
    ),
    Mistake(
        "children only",
        "modules inside modules are not looked at. `named_modules()` gives all",
        edits={LEAVES: LEAVES.replace("modules", "children")},
    ),
    Mistake(
        "the class",
        "the class of a module is returned. Return its name, as `named_modules()` gives it",
        edits={NOTE: "found.append(type(module).__name__)"},
        violates="the name, as in `named_modules()`",
    ),
    Mistake(
        "two runs",
        "the model runs twice, which moves the statistics of batch norm twice",
        edits={RUN: f"{RUN}\n{RUN}"},
        violates="runs the model once",
    ),
    Mistake(
        "hooks left",
        "your hooks are still on the model after the call. Keep what `register_forward_hook` "
        "returns, and call its `remove()`",
        edits={REMOVE: "pass"},
        violates="No hook of yours is left behind",
    ),
    Mistake(
        "hooks left after an exception",
        "your hooks are still on the model if it raises. Remove them in a `finally`",
        edits={"try:": "if True:", "finally:": "if True:"},
        violates="even if the model raises",
    ),
    Mistake(
        "exception lost",
        "the model's exception does not reach the caller. Use `try: … finally: …`, without "
        "`except`",
        edits={"finally:": "except Exception:\n    pass\nfinally:"},
        violates="its exception goes on to the caller",
    ),
    Mistake(
        "all hooks removed",
        "hooks that were on the model before the call are gone. Remove only your own",
        edits={
            "for handle in handles:": "for module in model.modules():",
            REMOVE: "module._forward_hooks.clear()",
        },
    ),
]

first_bad_module = Exercise(
    card,
    right,
    cases,
    mistakes,
    messages={
        OWN: "{case}, your function removes a hook that the caller had registered. Remove only "
        "your own",
        REACHED: "{case}, its exception does not reach the caller. Let it pass",
    },
)
