"""Answers to `first_bad_module`, written without a look at its table of mistakes."""

from contextlib import ExitStack

import torch

from amp_course.checking import edited


def by_name(model, *inputs):
    names = {module: name for name, module in model.named_modules()}
    bad = []

    def look(module, args, output):
        tensors = output if isinstance(output, (tuple, list)) else [output]
        came = [one for one in args if torch.is_tensor(one)]
        if any(not torch.isfinite(one).all() for one in came):
            return
        if any(not torch.isfinite(one).all() for one in tensors):
            bad.append(names[module])

    handles = []
    for module in model.modules():
        if len(list(module.children())) == 0:
            handles.append(module.register_forward_hook(look))
    try:
        model(*inputs)
    finally:
        [handle.remove() for handle in handles]
    return next(iter(bad), None)


def with_a_stack(model, *inputs):
    first = None

    def make(name):
        def look(module, args, output):
            nonlocal first
            outputs = output if type(output) is tuple else (output,)
            given = [one for one in args if isinstance(one, torch.Tensor)]
            sums = [float(one.double().abs().sum()) for one in (*given, *outputs)]
            made = all(one < float("inf") for one in sums[: len(given)])
            if first is None and made and not all(one < float("inf") for one in sums):
                first = name

        return look

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if not list(module.children()):
                stack.enter_context(module.register_forward_hook(make(name)))
        model(*inputs)
    return first


def global_hook(model, *inputs):
    leaves = {module: name for name, module in model.named_modules() if not [*module.children()]}
    found = {}

    def hook(module, args, output):
        flat = torch.utils._pytree.tree_leaves
        sound = all(torch.as_tensor(one).isfinite().all() for one in flat(args))
        if module in leaves and sound and not all(one.isfinite().all() for one in flat(output)):
            found.setdefault("name", leaves[module])

    with torch.nn.modules.module.register_module_forward_hook(hook):
        model(*inputs)
    return found.get("name")


def swallows(model, *inputs):
    try:
        return by_name(model, *inputs)
    except RuntimeError:
        return None


RIGHT = {"by name": by_name, "a stack": with_a_stack, "a global hook": global_hook}
RETURN = "return next(iter(bad), None)"
WRONG = {
    "the last": (
        edited(by_name, {RETURN: "return bad[-1] if bad else None"}),
        "the last that made one",
    ),
    "inputs ignored": (
        edited(by_name, {"came = [one for one in args if torch.is_tensor(one)]": "came = []"}),
        "inputs not looked at",
    ),
    "the first argument only": (
        edited(
            by_name,
            {"came = [one for one in args if torch.is_tensor(one)]": "came = [args[0]]"},
        ),
        "only the first input",
    ),
    "all modules": (
        edited(by_name, {"if len(list(module.children())) == 0:": "if True:"}),
        "modules with children",
    ),
    "an empty string for nothing": (edited(by_name, {RETURN: "return (bad or [''])[0]"}), None),
    "all of them": (edited(by_name, {RETURN: "return bad"}), None),
    "one name for all": (
        edited(by_name, {"bad.append(names[module])": "bad.append([*names.values()][-1])"}),
        "the last name in each hook",
    ),
    "swallows": (swallows, "exception lost"),
}
SIBLINGS = {
    "the last of a list": (
        edited(by_name, {RETURN: "return bad.pop() if bad else None"}),
        "the last that made one",
        "registration",
    ),
}
