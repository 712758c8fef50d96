"""Answers to `add_scaler`, written without a look at its table of mistakes."""

import torch

from amp_course.checking import edited


def plain(model, inputs, targets, loss_fn, optimizer, scaler):
    optimizer.zero_grad(set_to_none=False)
    with torch.autocast("cpu", torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


STEP, UPDATE, BACKWARD = (
    "scaler.step(optimizer)",
    "scaler.update()",
    "scaler.scale(loss).backward()",
)
TRAINED = "[p for p in model.parameters() if p.requires_grad]"
TEST = f"if all(p.grad.isfinite().all() for p in {TRAINED}):\n    optimizer.step()"
EARLY = (
    f"if not loss.isfinite():\n    return scaler.update(scaler.get_scale() / 64) or "
    f"loss\n{BACKWARD}"
)
RIGHT = {
    "unscales first": plain,
    "own finite test": edited(plain, {STEP: TEST}),
    "by hand from ones": edited(plain, {BACKWARD: "loss.backward(scaler.scale(torch.ones(())))"}),
}
OWN = "scaler = torch.amp.GradScaler('cpu', enabled=False)"
UNSCALE = "scaler.unscale_(optimizer)"
LATE = {
    "optimizer.zero_grad(set_to_none=False)": "pass",
    STEP: f"old = scaler.get_scale()\n{STEP}",
    UPDATE: f"{UPDATE}\nif scaler.get_scale() >= old:\n    optimizer.zero_grad()",
}
WRONG = {
    "no backward": (
        edited(plain, {BACKWARD: "scaler.scale(loss)", UNSCALE: "pass"}),
        "steps before backward",
    ),
    "updates after finite gradients": (
        edited(plain, {UNSCALE: "pass", UPDATE: TEST.replace("optimizer.step()", UPDATE)}),
        "no update when skipped",
    ),
    "plain step": (
        edited(plain, {UNSCALE: "pass", STEP: "optimizer.step()", UPDATE: "pass"}),
        "steps by hand, no update",
    ),
    "its own is disabled": (edited(plain, {BACKWARD: f"{OWN}\n{BACKWARD}"}), "no scaler"),
    "both steps": (edited(plain, {STEP: f"{STEP} or optimizer.step()"}), "steps twice"),
    "cleared only after a step that was taken": (edited(plain, LATE), "never clears"),
    "NaN made 0": (
        edited(
            plain,
            {
                UNSCALE: "[p.grad.nan_to_num_(0, 0, 0) for p in model.parameters() if "
                "p.requires_grad]"
            },
        ),
        None,
    ),
    "leaves early, keeps the growth count": (edited(plain, {BACKWARD: EARLY}), None),
    "update first": (
        edited(plain, {STEP: f"{UPDATE}\n{STEP}", UPDATE: "pass"}),
        "updates before the step",
    ),
    "tests one gradient": (edited(plain, {STEP: TEST.replace("]", "][-1:]")}), "overflow applied"),
}
