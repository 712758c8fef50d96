"""Answers to `scale_to_fp8`, written without a look at its table of mistakes."""

import torch

from amp_course.checking import edited

E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(E4M3).max


def in_plain_python(x):
    largest = max(abs(one) for one in x.flatten().tolist())
    scale = largest / LARGEST if largest else 1.0
    return torch.tensor([one / scale for one in x.flatten().tolist()]).view(x.shape).to(E4M3), scale


def multiplies(x):
    wide = x.to(torch.float64)
    low, high = wide.aminmax()
    largest = torch.maximum(-low, high).clamp(min=1e-300)
    q = wide * (LARGEST / largest)
    return q.float().to(E4M3), (largest / LARGEST).float() if largest > 1e-299 else torch.tensor(
        2.0
    )


def by_norm(x):
    scale = torch.linalg.vector_norm(x.float(), ord=torch.inf) / 448.0
    scale += scale == 0
    q = torch.empty(x.shape, dtype=E4M3)
    q.copy_((x.float() / scale).clamp_(-448.0, 448.0))
    return [q, scale]


WIDE, Q = "wide = x.to(torch.float64)", "q = wide * (LARGEST / largest)"
RIGHT = {"in plain Python": in_plain_python, "multiplies": multiplies, "by the norm": by_norm}
WRONG = {
    "the largest of E5M2": (
        edited(
            by_norm,
            {
                "scale = torch.linalg.vector_norm(x.float(), ord=torch.inf) / 448.0": "scale = "
                "x.float().abs().max() / torch.finfo(torch.float8_e5m2).max"
            },
        ),
        "E5M2's largest number",
    ),
    "the mean of the magnitudes": (
        edited(
            by_norm,
            {
                "scale = torch.linalg.vector_norm(x.float(), ord=torch.inf) / 448.0": "scale = "
                "x.float().abs().mean() / 448.0"
            },
        ),
        "scale from the mean",
    ),
    "the euclidean norm": (
        edited(
            by_norm,
            {
                "scale = torch.linalg.vector_norm(x.float(), ord=torch.inf) / 448.0": "scale = "
                "torch.linalg.vector_norm(x.float()) / 448.0"
            },
        ),
        None,
    ),
    "three standard deviations": (
        edited(
            by_norm,
            {
                "scale = torch.linalg.vector_norm(x.float(), ord=torch.inf) / 448.0": "scale = 3 * "
                "x.float().std(correction=0) / 448.0"
            },
        ),
        None,
    ),
    "the other factor": (
        edited(multiplies, {Q: f"{Q}\nreturn q.float().to(E4M3), LARGEST / largest"}),
        "inverts the scale",
    ),
    "the largest, and a small floor": (
        edited(
            by_norm,
            {
                "scale = torch.linalg.vector_norm(x.float(), ord=torch.inf) / 448.0": "scale = "
                "(x.float().max() / 448).clamp(min=1e-38)"
            },
        ),
        "the largest, not the largest magnitude",
    ),
    "the largest as a Python number": (
        lambda x: (
            (x.float() / (x.max().item() / 448 or 1.0)).clamp(-448, 448).to(E4M3),
            x.max().item() / 448 or 1.0,
        ),
        "the largest, not the largest magnitude",
    ),
    "fp16 on the way": (edited(multiplies, {WIDE: "wide = x.half().double()"}), None),
    "no pair": (lambda x: multiplies(x)[0], None),
    "numbers that came back": (
        lambda x: (multiplies(x)[0].float() * multiplies(x)[1], multiplies(x)[1]),
        "returns the numbers that come back",
    ),
    "in place": (
        edited(
            by_norm,
            {
                "q.copy_((x.float() / scale).clamp_(-448.0, 448.0))": "q.copy_(x.copy_((x.float() "
                "/ scale).clamp_(-448.0, 448.0)))"
            },
        ),
        "changes its input",
    ),
}
