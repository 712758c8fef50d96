"""Answers to `mini_autocast`, written without a look at its table of mistakes."""

import torch
from torch.overrides import TorchFunctionMode

from amp_course.checking import edited

FLOATS = (torch.float32, torch.half, torch.bfloat16)


class Plain(TorchFunctionMode):
    def __init__(self, dtype, lower, fp32, widest):
        self.low, self.lists, self.kept = dtype, (lower, fp32, widest), {}

    def __exit__(self, *error):
        return self.kept.clear() or super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        (lower, fp32, widest), found, kwargs = self.lists, [], kwargs or {}
        values = self.each(
            [*args, *kwargs.values()], lambda value: found.append(value.dtype) or value
        )
        wide = max(found, key=lambda one: one.itemsize, default=None) if func in widest else None
        dtype = self.low if func in lower else torch.float32 if func in fp32 else wide
        values = values if dtype is None else self.each(values, self.to, dtype)
        return func(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))

    def each(self, value, change, *dtype):
        if isinstance(value, (list, tuple)):
            return type(value)(self.each(part, change, *dtype) for part in value)
        return change(value, *dtype) if getattr(value, "dtype", None) in FLOATS else value

    def to(self, value, dtype):
        if not (value.requires_grad and value.grad_fn is None and torch.is_grad_enabled()):
            return value.type(dtype)
        if (id(value), dtype) not in self.kept:
            self.kept[id(value), dtype] = torch.empty_like(
                value, dtype=dtype, requires_grad=False
            ).copy_(value)
        return self.kept[id(value), dtype]


RIGHT = {
    "recursion, ids, copies made by copy_": Plain,
    "lists for sets": lambda dtype, *ops: Plain(dtype, *map(list, ops)),
    "a switch inside": type(
        "Off", (Plain,), {"to": torch.autocast("cpu", enabled=False)(Plain.to)}
    ),
}
CAST = "values = values if dtype is None else self.each(values, self.to, dtype)"
EACH = "value if isinstance(value, list) or dtype is None else self.each(value, self.to, dtype)"
WRONG = {
    "args only": (
        edited(
            Plain,
            {
                CAST: f"values = [{EACH} for value in args] + values[len(args) :]".replace(
                    "list", "(list, tuple)"
                )
            },
        ),
        "casts the elements of args only",
    ),
    "no cache": (
        edited(Plain, {"return self.kept[id(value), dtype]": "return value.to(dtype)"}),
        "casts at each use",
    ),
    "always bf16": (lambda dtype, *ops: Plain(FLOATS[2], *ops), None),
    "torch's own": (lambda dtype, *ops: torch.autocast("cpu", dtype=dtype), None),
}
