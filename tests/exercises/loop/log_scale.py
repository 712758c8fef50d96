"""Answers to `log_scale`, written without a look at its table of mistakes."""

from amp_course.checking import edited


def plain(scaler, optimizer):
    stepped, used = [], scaler._scale.clone()
    hook = optimizer.register_step_post_hook(lambda *_: stepped.append(True))
    scaler.step(optimizer)
    hook.remove()
    scaler.update()
    return used, not stepped


STEP, RETURN = "scaler.step(optimizer)", "return used, not stepped"
GRADIENTS = "gradients = [p.grad for group in optimizer.param_groups for p in group['params']]"
OWN_TEST = (
    f"{GRADIENTS}\nif all(g.isfinite().all() for g in gradients if g is not None):\n    "
    f"optimizer.step()"
)
KEPT = (
    "used, scaler.kept = getattr(scaler, 'kept', used), scaler.get_scale()\nreturn used, not "
    "stepped"
)
OWN = {STEP: f"scaler.unscale_(optimizer)\n{OWN_TEST}"}
RIGHT = {
    "step hook": plain,
    "compares tensors": edited(plain, {RETURN: "return [used.numpy(), int(scaler._scale < used)]"}),
    "own finite test": edited(plain, OWN),
}
SUM = GRADIENTS + "\nbad = not all(g.sum().isfinite() for g in gradients if g is not None)"
WRONG = {
    "not larger": (
        edited(plain, {RETURN: "return used, bool(scaler._scale <= used)"}),
        "an unchanged scale is a skip",
    ),
    "the sum of each": (
        edited(plain, {STEP: f"{SUM}\n{STEP}", RETURN: "return used, bad"}),
        "judges by the norm",
    ),
    "by the streak": (
        edited(plain, {RETURN: "return used, not scaler._get_growth_tracker()"}),
        "takes growth for a skip",
    ),
    "a hook left": (edited(plain, {"hook.remove()": "pass"}), None),
    "the scale of the last call": (edited(plain, {RETURN: KEPT}), None),
}
