# EXPECTED: the reason that section 6 of chapter 12 gives for MXFP4. The gradient at the head is
# softmax - one-hot: label entries just below a power of two, balanced by many small ones. With the
# scale down and nearest, both shrink alike, so two biases cancel; draws mend the small ones alone
# (down), or both (up).
import torch
from torch.nn.functional import cross_entropy

from amp_course.frontiers import MXFP4, quantize
from amp_course.frontiers.experiments.gradient_errors import partly_trained_gpt

model, (x, y) = partly_trained_gpt(60)
kept = []
model.head.register_forward_hook(
    lambda module, args, output: output.register_hook(kept.append) and None
)
cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
gradient = kept[0].flatten(0, -2)
label = gradient.abs() == gradient.abs().amax(1, keepdim=True)


def drawn(form, seed):
    generator = torch.Generator().manual_seed(seed)
    return quantize(gradient, form, dim=1, rounding="stochastic", generator=generator)


for direction in ("down", "up"):
    form = MXFP4.rounding_scale(direction)
    rounded = quantize(gradient, form, dim=1)
    for name, q in (
        ("nearest", rounded),
        ("drawn", torch.stack([drawn(form, seed) for seed in range(16)]).mean(0)),
    ):
        print(f"{direction} {name}: label {(q[label] / gradient[label]).mean():.2f}", end=" ")
        print(f"others {q[~label].sum() / gradient[~label].sum():.2f}")
