"""Answers to `accumulate`, written without a look at its table of mistakes."""

import torch
from torch.nn.utils import clip_grad_norm_

from amp_course.checking import edited


def stream(model, batches, loss_fn, optimizer, scaler, every, max_norm):
    rows = 0
    for number, (inputs, targets) in enumerate(batches, 1):
        rows += len(targets)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(model(inputs), targets) * len(targets)
        scaler.scale(loss).backward()
        if number % every == 0 or number == len(batches):
            scaler.unscale_(optimizer)
            torch._foreach_div_([p.grad for p in model.parameters()], rows)
            norm = clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step() if norm.isfinite() else None
            scaler.update()
            optimizer.zero_grad(set_to_none=False)
            rows = 0


SCALE, STEP = "scaler.scale(loss).backward()", "optimizer.step() if norm.isfinite() else None"
UNSCALE, CLIP = "scaler.unscale_(optimizer)", "norm = clip_grad_norm_(model.parameters(), max_norm)"
CLIPS_SCALED = {UNSCALE: "pass", CLIP: f"{CLIP[:-1]} * scaler.get_scale())\n{UNSCALE}"}
SUM, BACKWARD = (
    "total = loss if number % every == 1 else total + loss",
    f"scaler.scale(total).backward()\n{UNSCALE}",
)
TAIL = {
    STEP: "scaler.step(optimizer)",
    "if number % every == 0 or number == len(batches):": "if number % every == 0:",
}
HOOK = (
    f"hook = optimizer.register_step_pre_hook(lambda *_: {CLIP.removeprefix('norm = ')} and None)"
)
CLEAR = "optimizer.zero_grad(set_to_none=False)"
RIGHT = {
    "own finite test": stream,
    "clips, then unscales": edited(stream, CLIPS_SCALED),
    "clips in a hook": edited(stream, {CLIP: HOOK, STEP: "scaler.step(optimizer)\nhook.remove()"}),
    "one graph for a group": edited(stream, {SCALE: SUM, UNSCALE: BACKWARD}),
}
FIRST: list = []


def first_training(*given):
    FIRST.append((given[0], *given[3:5]))
    model, optimizer, scaler = FIRST[0]
    stream(model, given[1], given[2], optimizer, scaler, *given[5:])


ALL_ROWS = {"rows += len(targets)": "rows = sum(len(targets) for _, targets in batches)"}
PLAIN = {
    "loss = loss_fn(model(inputs), targets) * len(targets)": "loss = loss_fn(model(inputs), "
    "targets)"
}
USUAL = (
    PLAIN
    | TAIL
    | {"rows += len(targets)": "rows = 1", SCALE: "scaler.scale(loss / every).backward()"}
)
LAYERS = """for layer in model:
    norm = clip_grad_norm_([*layer.parameters(recurse=False)], max_norm)"""
WRONG = {
    "clips each layer": (
        edited(stream, {CLIP: LAYERS, STEP: "scaler.step(optimizer)"}),
        "clips in parts",
    ),
    "as for equal sizes": (edited(stream, USUAL), "the usual loop"),
    "the first training again": (first_training, "remembers an earlier call"),
    "rows of all": (edited(stream, ALL_ROWS), "rows of the whole pass"),
    "bad losses left out": (
        edited(stream, {SCALE: f"if not loss.isnan():\n    {SCALE}"}),
        "leaves out what overflows",
    ),
    "a stream without a tail": (edited(stream, TAIL), "drops the tail"),
    "keeps the tail": (edited(stream, {CLEAR: f"if number % every == 0:\n    {CLEAR}"}), None),
    "one update at the end": (
        lambda m, b, f, o, s, every, n: stream(m, b, f, o, s, len(b), n),
        None,
    ),
}
