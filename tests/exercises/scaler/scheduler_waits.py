"""Answers to `scheduler_waits`, written without a look at its table of mistakes."""

import math  # noqa: F401 (for the edits)

from amp_course.checking import edited


def gradients(optimizer):
    return [p.grad for group in optimizer.param_groups for p in group["params"]]


def hook(loss, optimizer, scaler, scheduler):
    stepped = []
    handle = optimizer.register_step_post_hook(lambda *_: stepped.append(True))
    scaler.step(optimizer)
    handle.remove()
    scaler.update()
    if stepped:
        scheduler.step()


def own_finite_test(loss, optimizer, scaler, scheduler):
    scaler.unscale_(optimizer)
    if all(g.isfinite().all() for g in gradients(optimizer)):
        optimizer.step()
        scheduler.step()
    scaler.update()


def reads_the_tensor(loss, optimizer, scaler, scheduler):
    scale = float(scaler._scale)
    scaler.step(optimizer)
    scaler.update()
    if scaler._scale >= scale:
        scheduler.step()


def moves_if(test, before="scale = 0"):
    edits = {"scale = float(scaler._scale)": before, "if scaler._scale >= scale:": f"if {test}:"}
    return edited(reads_the_tensor, edits)


RIGHT = {"hook": hook, "own finite test": own_finite_test, "reads the tensor": reads_the_tensor}
WRONG = {
    "first and last": (
        lambda *given: (given[-1].step(), reads_the_tensor(*given)),
        "moves first, and again at the end",
    ),
    "the norm of the scaled gradients": (
        moves_if(
            "math.isfinite(scale)", "scale = sum(float(g.norm()) for g in gradients(optimizer))"
        ),
        "judges by the norm",
    ),
    "the scale and itself": (
        moves_if("scaler._scale >= scale", "scale = scaler._scale"),
        "always moves",
    ),
    "a hook, and not": (
        edited(hook, {"if stepped:": "if not stepped:"}),
        "the wrong way round",
    ),
    "finite loss": (moves_if("not loss.isnan()"), "looks at the loss"),
    "first gradient": (
        moves_if("gradients(optimizer)[0].abs().max() < 1e38"),
        "looks at the first gradient only",
    ),
}
