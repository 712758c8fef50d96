"""The causes to choose from in the clinic, and `cause`, by which an answer names one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# More than there are patients, so that the last one is not found by elimination.
CAUSES = {
    "anomaly-mode-meets-scaler": "anomaly mode raises at an overflow that the scaler would have skipped",
    "beyond-fp16": "a value in the forward pass is larger than fp16 can hold",
    "clipped-while-scaled": "gradients are clipped while they still carry the loss scale",
    "clones-disagree": "the ranks start from different weights",
    "division-by-zero": "something is divided by a scale, a norm or a count that is 0",
    "host-waits": "the program waits for a value from the device in each step",
    "labels-out-of-range": "a label is outside of the classes that the model knows",
    "log-of-zero": "a log of 0, of a probability that has been rounded to 0",
    "masked-row": "a row of attention scores is masked from end to end",
    "nan-in-data": "the data holds a NaN",
    "never-cleared": "gradients are never cleared",
    "rate-too-high": "the learning rate is too high",
    "ranks-with-different-counts": "one rank counts more steps than another",
    "ranks-with-different-scales": "the ranks have different loss scales",
    "spoilt-buffer": "an overflow in the forward pass gets into a buffer, such as a running mean, and stays there",
    "tf32-settings-mixed": "the old and the new settings for TF32 are used together",
    "unused-branch": "a branch that `torch.where` does not take has an infinite derivative",
    "updates-vanish": "updates are smaller than half the distance between neighbouring weights in 16 bits",
}

# Answers from before a renaming still pass, and the doctor's name for a fault does, too.
_RENAMED = {"batch-norm-in-eval": "spoilt-buffer", "infinite-derivative": "unused-branch"}

_named: list[str] = []


def cause(name: str) -> None:
    """Say, as the first line of an answer, what the patient suffers from. Raises ValueError for what is not one of `CAUSES`."""
    name = _RENAMED.get(name, name)
    if name not in CAUSES:
        raise ValueError(f"{name!r} is not one of the causes to choose from: {', '.join(CAUSES)}.")
    _named.append(name)


@contextmanager
def named_causes() -> Iterator[list[str]]:
    """Collect what is named inside, each cause once: `with named_causes() as named: answer(…)`."""
    named: list[str] = []
    _named.clear()
    try:
        yield named
    finally:
        named += dict.fromkeys(_named)
        _named.clear()
