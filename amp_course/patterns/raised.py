"""Say what an exception from a training step means: torch's own messages, and what the step had done by then."""

from __future__ import annotations

from amp_course.checking.explain import explain, short
from amp_course.patterns.findings import Finding, finding
from amp_course.patterns.seen import Seen, Training


def about_error(seen: Seen, training: Training, accumulate: int, before: Seen | None = None) -> Finding:
    """Turn the exception of an update into a finding.

    before: the update that ran before this one, if there was one: a call that it left out shows itself here.
    """
    assert seen.error is not None
    message = str(seen.error)
    said = short(f"{type(seen.error).__name__}: {message.splitlines()[0] if message else ''}", 160)
    updates = seen.count("update") + (before.count("update") if before else 0)
    if "already been called" in message or "after step" in message:
        early = [call for call in seen.calls if call.name == "unscale" and call.micro < accumulate - 1]
        if accumulate > 1 and early:
            return finding("unscaled-every-micro-batch", torch_says=said)
        if before is not None and updates == 0:
            return finding("update-missing", torch_says=said)
        if "unscale_()" in message:
            return finding("unscaled-twice", torch_says=said)
        return finding("stepped-twice", torch_says=said)
    if "unscale FP16 gradients" in message:
        return finding("fp16-parameters", torch_says=said)
    if "No inf checks were recorded prior to update" in message:
        return _update_alone(seen, accumulate, said)
    if "No inf checks were recorded" in message:
        return _without_gradients(seen, training, said)
    if "_scale is None" in message:
        return finding("loss-not-scaled" if seen.backwards else "no-backward", torch_says=said)
    text = short(explain(seen.error).removeprefix("your code raised "), 400)
    return Finding("step-raises", f"the step raised {text}", "Mend that, then audit again")


def _update_alone(seen: Seen, accumulate: int, said: str) -> Finding:
    """`scaler.update()` ran, and no `scaler.step` before it."""
    update = seen.calls[-1]
    if seen.count("step"):
        return finding("still-scaled", torch_says=said)
    if update.micro < accumulate - 1:
        return finding("update-every-micro-batch", torch_says=said)
    return finding("never-stepped", torch_says=said)


def _without_gradients(seen: Seen, training: Training, said: str) -> Finding:
    stepping = next((c.number for c in reversed(seen.calls) if c.name in ("scaler.step", "unscale")), 0)
    if not seen.backwards:
        frozen = not any(p.requires_grad for p in training.parameters[stepping])
        return finding("frozen-optimizer" if frozen else "no-backward", torch_says=said)
    arrived = any(bool(flat[stepping].any()) for flat in seen.contributions)
    return finding("cleared-before-step" if arrived else "frozen-optimizer", torch_says=said)
