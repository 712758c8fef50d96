"""Answers to `ema_step`, written without a look at its table of mistakes."""

import torch

from amp_course.checking import edited


def in_a_hook(model, average, optimizer, scaler, taken):
    steps = []

    def move(*_):
        steps.append(1)
        decay = min((taken + 1) / (taken + 10), 0.99)
        for old, new in zip(average.parameters(), model.parameters(), strict=True):
            old.data = decay * old.data + (1 - decay) * new.data
        for old, new in zip(average.buffers(), model.buffers(), strict=True):
            old.data = new.clone()

    handle = optimizer.register_step_post_hook(move)
    scaler.step(optimizer)
    handle.remove()
    scaler.update()
    return taken + len(steps)


def by_state_dict(model, average, optimizer, scaler, taken):
    used = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    stepped = scaler.get_scale() >= used
    if stepped:
        decay = 0.99 if taken > 890 else (1 + taken) / (10 + taken)
        weights, new = dict(average.named_parameters()), model.state_dict()
        average.load_state_dict(
            {
                name: value + (1 - decay) * (new[name] - value) if name in weights else new[name]
                for name, value in average.state_dict().items()
            }
        )
    return taken + stepped


@torch.no_grad()
def own_finite_test(model, average, optimizer, scaler, taken):
    finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
    scaler.step(optimizer)
    scaler.update()
    if finite:
        decay = min(0.99, (1 + taken) / (10 + taken))
        olds, news = [*average.parameters()], [*model.parameters()]
        torch._foreach_mul_(olds, decay)
        torch._foreach_add_(olds, news, alpha=1 - decay)
        for old, new in zip(average.buffers(), model.buffers(), strict=True):
            old.copy_(new)
        taken += 1
    return torch.tensor(taken)


STEPPED, USED = "stepped = scaler.get_scale() >= used", "used = scaler.get_scale()"
RETURN, BUFFERS = "return taken + stepped", "old.data = new.clone()"
HOOK = "handle = optimizer.register_step_post_hook(move)"
FINITE = "finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())"
MUL, ADD = "torch._foreach_mul_(olds, decay)", "torch._foreach_add_(olds, news, alpha=1 - decay)"
MIN = "decay = min(0.99, (1 + taken) / (10 + taken))"
OF_FLOATS = "old.mul_(decay).add_(new, alpha=1 - decay) if old.is_floating_point() else None"
RIGHT = {
    "in a hook": in_a_hook,
    "by state_dict": by_state_dict,
    "own finite test": own_finite_test,
}
WRONG = {
    "all floats": (
        edited(own_finite_test, {"old.copy_(new)": OF_FLOATS}),
        "averages the buffers",
    ),
    "only a name": (
        edited(
            own_finite_test, {MUL: "for a, b in zip(olds, news): a = a.lerp(b, 1 - decay)", ADD: ""}
        ),
        "never moves",
    ),
    "at least 0.99": (
        edited(own_finite_test, {MIN: MIN.replace("min", "max")}),
        "the larger decay",
    ),
    "a copy": (
        edited(own_finite_test, {MUL: "average.load_state_dict(model.state_dict())", ADD: ""}),
        "copies the weights",
    ),
    "the scale after the update, twice": (
        edited(by_state_dict, {STEPPED: "used = scaler.get_scale()\nstepped = used >= used"}),
        "always moves",
    ),
    "an equal scale": (
        edited(by_state_dict, {STEPPED: STEPPED.replace(">=", "==")}),
        "takes growth for a skip",
    ),
    "the count of all calls": (
        edited(by_state_dict, {RETURN: "return taken + 1"}),
        "counts skipped steps",
    ),
    "a bool": (edited(by_state_dict, {RETURN: "return stepped"}), None),
    "a pre-hook": (edited(in_a_hook, {HOOK: HOOK.replace("post", "pre")}), "moves first"),
    "no buffers": (edited(in_a_hook, {BUFFERS: "pass"}), "leaves the buffers"),
    "the model's own buffers": (
        edited(own_finite_test, {"old.copy_(new)": "new.copy_(old)"}),
        "leaves the buffers",
    ),
    "finite weights": (
        edited(own_finite_test, {FINITE: FINITE.replace("p.grad", "p")}),
        "always moves",
    ),
    "the private scale": (edited(by_state_dict, {USED: "used = float(scaler._scale)"}), None),
}
SIBLINGS = {
    "moves, but does not count": (
        edited(by_state_dict, {STEPPED: f"{STEPPED}\nskipped = not stepped\nstepped = True"}),
        "always moves",
        "counted",
    ),
    "in fp16, after reading it": (
        edited(own_finite_test, {FINITE: f"{FINITE}\naverage.half()"}),
        "in fp16",
        "`.half()`",
    ),
}
