"""Answers to `add_scaler`, written without a look at its table of mistakes."""

import torch

from amp_course.checking import edited


def plain(model, inputs, targets, loss_fn, optimizer, scaler):
    optimizer.zero_grad(set_to_none=False)
    with torch.autocast("cpu", torch.float16):
        loss = loss_fn(model(inputs), targets)
    if not loss.isfinite():
        return scaler.update(scaler.get_scale() / 2) or loss
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


STEP, UPDATE, EARLY = "scaler.step(optimizer)", "scaler.update()", "if not loss.isfinite():"
TRAINED = "[p for p in model.parameters() if p.requires_grad]"
TEST = f"if all(p.grad.isfinite().all() for p in {TRAINED}):\n    optimizer.step()"
BACKWARD = "scaler.scale(loss).backward()"
RIGHT = {
    "leaves early, lowers the scale": plain,
    "own finite test": edited(plain, {STEP: TEST}),
    "by hand from ones": edited(plain, {EARLY: "if False:", BACKWARD: "loss.backward(scaler.scale(torch.ones(())))"}),
}
WRONG = {
    "its own scaler": (lambda *args: plain(*args[:5], torch.amp.GradScaler("cpu", init_scale=1024.0)), None),
    "update first": (edited(plain, {EARLY: "if False:", STEP: f"{UPDATE}\n{STEP}", UPDATE: "pass"}), None),
    "tests one gradient": (edited(plain, {EARLY: "if 0:", STEP: TEST.replace("]", "][-1:]")}), "overflow applied"),
}
