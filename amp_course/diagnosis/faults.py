"""What the doctor can find, gravest first. What a training step itself does wrong is named by the auditor's faults."""

from __future__ import annotations

from amp_course.diagnosis.findings import Evidence, Finding
from amp_course.diagnosis.step_faults import FAULTS as AUDITED
from amp_course.diagnosis.step_faults import Fault

# name → what it is a fault of, cause, cure, where the course teaches it, the cure as code. In order of harm.
_NONFINITE = {
    "nan-in-data": Fault(
        "values", "the data holds inf or NaN before the model sees it",
        "Look at that batch, and repair or drop what is broken before training", "11.8",
        "assert inputs.isfinite().all()",
    ),
    "weights-not-finite": Fault(
        "values", "weights hold inf or NaN before the first step", "Start again from a checkpoint that is finite", "11.3"
    ),
    "masked-row": Fault(
        "values", "a row of attention scores is masked from end to end: its softmax is 0 / 0",
        "Let every row keep one score, or set such rows to 0 before the softmax, not after it", "11.8",
    ),
    "division-by-zero": Fault(
        "values", "something is divided by 0, or by a number so small that the result is beyond the format",
        "Put a floor under the divisor", "11.8", "x / norm.clamp_min(torch.finfo(norm.dtype).tiny)",
    ),
    "log-of-zero": Fault(
        "values", "the log of 0 is taken", "Use a function that takes the log itself, such as `log_softmax` or a loss on logits",
        "11.8", "nn.functional.binary_cross_entropy_with_logits(logits, targets)",
    ),
    "infinite-derivative": Fault(
        "values", "a derivative is infinite there, and `torch.where` or a product with 0 makes NaN of it, although the values "
        "going forward are finite", "Make the input safe before the op, not its result after it", "11.8",
        "torch.where(x > 0, torch.where(x > 0, x, 1.0).sqrt(), 0.0)",
    ),
    "beyond-fp16": Fault(
        "values", "a value is beyond 65,504, where fp16 ends",
        "Keep this part in fp32, scale it down, or train in bf16", "11.8", 'with torch.autocast("cuda", enabled=False): …',
    ),
    "diverges": Fault(
        "values", "the training diverges: its values grow from step to step until they leave the range of the format",
        "Lower the learning rate, warm it up, or clip the gradients", "11.8",
    ),
    "spoilt-buffer": Fault(
        "values", "an overflow reached a buffer such as batch norm's running mean: the scaler skips the step, but not that",
        "Fix the overflow, or save the buffers before the forward pass and restore them when a step is skipped", "11.8",
    ),
    "not-finite": Fault(
        "values", "an op made inf or NaN of finite numbers", "Look at that op and at the range of what goes into it", "11.3"
    ),
}  # fmt: skip
_TRAINING = {
    "script-raises": Fault("run", "the script raised an exception while it trained", "Fix what the exception names", "11.9"),
    "swallowed-exception": Fault(
        "run", "an exception is raised in each step and caught, and no step is taken", "Let it end the program, and mend it",
        "11.9",
    ),
    "anomaly-mode-meets-scaler": Fault(
        "run", "anomaly mode raises at an overflow that the scaler would have skipped: normal while it looks for its scale",
        "Leave anomaly mode off; to find an inf or NaN, use `first_nonfinite`", "11.4",
        "torch.autograd.set_detect_anomaly(False)",
    ),
    "tf32-settings-mixed": Fault(
        "run", "the old and the new settings for TF32 are used together, and torch refuses to read them",
        "Use one of them throughout, the new one with torch 2.9 or later", "11.8",
        'torch.backends.cuda.matmul.fp32_precision = "tf32"',
    ),
    "ranks-with-different-scales": Fault(
        "ranks", "the ranks have different loss scales: gradients of different units are averaged",
        "Start all scalers equal, load their state on every rank, and let them agree", "10.3",
    ),
    "ranks-with-different-counts": Fault(
        "ranks", "the ranks count different numbers of steps, so their scalers do not grow at the same step",
        "Give all ranks as many batches as the shortest has", "10.8",
    ),
    "ranks-drift": Fault(
        "ranks", "the ranks hold different weights of one model",
        "Start all ranks from rank 0's weights, and reduce gradients", "10.3",
    ),
    "updates-vanish": Fault(
        "weights", "weights are stored in 16 bits, and most updates are smaller than half the distance to the next number: they "
        "are lost", "Keep the weights in fp32 and let autocast cast them, or keep an fp32 master copy", "02.5",
        "model.float()  # and torch.autocast around the forward pass",
    ),
    "optimizer-of-old-weights": Fault(
        "weights", "a part of the model was replaced after the optimizer was made: it still holds the old weights, and "
        "the new ones are never trained", "Make the optimizer after the model is complete, or give it the new weights", "11.7",
        "optimizer.add_param_group({'params': model.head.parameters()})",
    ),
    "left-in-evaluation-mode": Fault(
        "weights", "after some updates the model trains on in evaluation mode: dropout is off, and batch norm uses its running "
        "statistics instead of the batch's", "Put it back into training mode after each evaluation", "11.7", "model.train()",
    ),
    "scale-keeps-falling": Fault(
        "loss scale", "the loss scale falls at nearly every step and finds no value at which the gradients are finite",
        "Find the op that makes inf or NaN at any scale", "11.3",
    ),
}  # fmt: skip
# Advice: what costs time, or may do harm later. It is told, and does not count as a fault.
ADVICE = {
    "host-waits": Fault(
        "speed", "the program asks for the value of a tensor in each step: on a GPU, it waits there until all work is done",
        "Keep losses as tensors and read them now and then; a fused optimizer spares the scaler's own read", "09.6",
        "torch.optim.AdamW(model.parameters(), fused=True)",
    ),
    "waits-for-data": Fault(
        "speed", "a good part of the time goes into waiting for the next batch", "Let the DataLoader use workers", "09.7",
        "DataLoader(…, num_workers=2)",
    ),
    "trains-in-evaluation-mode": Fault(
        "weights", "weights are trained in evaluation mode: dropout is off, and batch norm uses its running statistics; "
        "some fine-tuning wants that, other training does not", "If it is not meant, put it into training mode", "11.7",
        "model.train()",
    ),
    "weights-in-no-optimizer": Fault(
        "weights", "gradients are computed for weights that no optimizer holds: they are never trained",
        "Give them to the optimizer, or switch their gradients off, which saves time and memory", "11.7",
        "model.backbone.requires_grad_(False)",
    ),
    "little-headroom": Fault(
        "values", "values come close to the end of fp16", "Watch them with `watch_ranges`, or compute this part in fp32", "11.5"
    ),
}  # fmt: skip
_SYMPTOM = "scale-keeps-falling"  # comes last: any of the others may be its cause
FAULTS: dict[str, Fault] = {
    **_NONFINITE,
    **_TRAINING,
    **{name: one for name, one in AUDITED.items() if name not in _NONFINITE},
}
FAULTS[_SYMPTOM] = FAULTS.pop(_SYMPTOM)


def finding(name: str, cause: str = "", /, **evidence: float | int | str) -> Finding:
    """Make the finding of a known fault or of advice; `cause` says it more exactly. Raises KeyError for an unknown name."""
    fault = FAULTS.get(name) or ADVICE[name]
    shown: Evidence = {key.replace("_", " "): value for key, value in evidence.items()}
    return Finding(
        name, cause or fault.cause, fault.cure, shown, fault.code, fault.section, fault.behaviour, fault.spoils
    )


def in_order(found: list[Finding]) -> tuple[Finding, ...]:
    """Keep the first finding of each name, in order of harm."""
    rank = {name: place for place, name in enumerate([*FAULTS, *ADVICE])}
    first: dict[str, Finding] = {}
    for one in found:
        first.setdefault(one.name, one)
    return tuple(sorted(first.values(), key=lambda one: rank.get(one.name, len(rank))))


# What an update with an inf in its gradients can show.
UNDER_STRESS = ("overflow-not-skipped", "no-update-after-skip", "kept-after-skip", "scheduler-ran-on")
# name → what follows from it, and is not told on its own
_CONSEQUENCES = {
    "nan-in-data": {"weights-not-finite", "scale-keeps-falling"},
    "updates-vanish": {"weights-unchanged"},
    "optimizer-of-old-weights": {"frozen-optimizer"},
    "ranks-with-different-scales": {"ranks-drift", "scale-keeps-falling"},
    "ranks-with-different-counts": {"ranks-drift", "ranks-with-different-scales"},
    "never-cleared": {"kept-after-skip", "scale-keeps-falling", "diverges"},
}  # fmt: skip
# Each of these lets the scale fall.
_OVERFLOWING = {
    "never-cleared", "kept-after-skip", "overflow-not-skipped", "no-update-after-skip", "scaler-inside-step", *_NONFINITE,
}  # fmt: skip


def without_consequences(found: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Leave out what follows from another finding: a scale that falls because gradients are never cleared, say."""
    gone = set().union(*(_CONSEQUENCES.get(one.name, set()) for one in found))
    if any(one.name in _OVERFLOWING for one in found):
        gone.add("scale-keeps-falling")
    return tuple(one for one in found if one.name not in gone)
