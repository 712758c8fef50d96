"""Answers to `clip_both`, written without a look at its table of mistakes."""

import numpy as np
from torch.nn.utils import get_total_norm

from amp_course.checking import edited


def parameters_of(optimizers):
    return [p for o in optimizers for group in o.param_groups for p in group["params"] if p.grad is not None]


def on_scaled_gradients(optimizers, scaler, max_norm):
    gradients, scale = [p.grad for p in parameters_of(optimizers)], scaler.get_scale()
    norm = get_total_norm(gradients)
    [gradient.mul_(min(1.0, max_norm * scale / float(norm))) for gradient in gradients]
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
        if norm.isfinite():
            optimizer.step()
    scaler.update()
    return np.float32(norm / scale)


NORM = "norm = get_total_norm(gradients)"
RIGHT = {
    "clips scaled gradients, own step": on_scaled_gradients,
    "in float64": edited(on_scaled_gradients, {NORM: "norm = get_total_norm([g.double() for g in gradients])"}),
    "scaler.step": edited(on_scaled_gradients, {"optimizer.step()": "scaler.step(optimizer)"}),
}
WRONG = {
    "infinity norm": (edited(on_scaled_gradients, {NORM: "norm = get_total_norm(gradients, float('inf'))"}), None),
    "tests for inf only": (edited(on_scaled_gradients, {"if norm.isfinite():": "if not norm.isinf():"}), None),
    "clears": (lambda *a: (on_scaled_gradients(*a), [o.zero_grad() for o in a[0]])[0], "clears"),
}
