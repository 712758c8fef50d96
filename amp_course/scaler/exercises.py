"""The six exercises of chapter 05; `ALL` lists them in order. The judging stands in `judges/`."""

from __future__ import annotations

from amp_course.checking import Exercise
from amp_course.scaler.judges import clipping, rule, static, unscaling, waiting, whole

static_scaling = Exercise(
    chapter="scaler",
    name="static_scaling",
    number=1,
    title="A fixed loss scale",
    task="Write `static_step`: one optimizer step on the mean loss of a few micro-batches, with a fixed loss scale. The model "
    "computes in fp16 by itself, and its gradients are too small for it; the optimizer must see the true ones.",
    difficulty=2,
    importance=5,
    minutes=10,
    lines=8,
    hints=(
        "The scale goes into one number and comes out of many. Which number, and when is the last moment to take it out?",
        "`(loss * scale).backward()` for each micro-batch; gradients add up. Take the mean as well: divide each loss by their "
        "number.",
        "After the loop, once: `parameter.grad.div_(scale)` for every parameter that has a gradient, then `optimizer.step()` "
        "and `optimizer.zero_grad()`.",
    ),
    judge=static.judge,
    why="This is loss scaling, all of it; what a GradScaler adds is to find the scale by itself and to survive a bad step.",
    alternative="divide by `scale * len(batches)` after the loop and leave the losses as they are.",
)

unscale_and_check = Exercise(
    chapter="scaler",
    name="unscale_and_check",
    number=2,
    title="Unscale, and find inf",
    task="Write `unscale_and_check(optimizer, scale)`: divide every gradient of the optimizer by the scale, in place, and return "
    "whether there is an inf or a NaN among them. It has to be what torch's `unscale_` does, to the last bit.",
    difficulty=2,
    importance=5,
    minutes=8,
    lines=7,
    hints=(
        "Where does an optimizer keep its parameters? There may be several groups. And which parameters have no gradient?",
        "`for group in optimizer.param_groups: for parameter in group['params']: …`. Do not leave the loop at the first find: "
        "the others want to be unscaled, too.",
        "`parameter.grad.div_(scale)`, then `found = found or not torch.isfinite(parameter.grad).all()`; return `found`.",
    ),
    judge=unscaling.judge,
    why="One inf in one of a million gradients ruins all weights that it touches, and NaN slips through every comparison.",
    alternative="`torch._foreach_div_(gradients, scale)` divides all of them in a few calls; torch's scaler divides and checks "
    "in one kernel and leaves the answer on the device, so that nobody waits.",
)

update_rule = Exercise(
    chapter="scaler",
    name="update_rule",
    number=3,
    title="The rule that finds the scale",
    task="Write `update_rule(scale, streak, found_inf, growth, backoff, interval)`: given the state and whether this step found "
    "an inf or NaN, return the next scale and the next streak of clean steps, as torch's scaler has them.",
    difficulty=2,
    importance=4,
    minutes=8,
    lines=8,
    hints=(
        "Two branches: found, or clean. Which of them sets the streak to 0, and when?",
        "Found: the scale times backoff, and 0. Clean: count this step first, then ask whether the streak has reached "
        "the interval.",
        "A growth beyond float32 is not made: `torch.tensor(scale * growth).isfinite()` tells, in float32. The streak starts "
        "anew either way.",
    ),
    judge=rule.judge,
    why="A growth that is probed every 2,000 steps costs one skipped step; a scale that is too small costs gradients in "
    "every step.",
    alternative="`torch._amp_update_scale_(scale, streak, found, growth, backoff, interval)` on tensors is what torch "
    "itself calls.",
)

scaler_class = Exercise(
    chapter="scaler",
    name="scaler_class",
    number=4,
    title="The whole scaler",
    task="Write the class `MyScaler`: `scale`, `unscale_`, `step`, `update`, `get_scale`, `state_dict` and `load_state_dict`. It "
    "trains beside `torch.amp.GradScaler`, with inf and NaN, two optimizers, and a save and load: equal to the last bit. "
    "`unscale_` may be left open; if it is there, it has to work.",
    difficulty=4,
    importance=5,
    minutes=25,
    lines=40,
    hints=(
        "What has to be remembered: for the whole scaler? for each optimizer, until `update`? What of it goes into a file?",
        "A dict `self._found = {}` from `id(optimizer)` to what was found. That an optimizer stands in it means that it is "
        "unscaled; `step` looks there first, `update` asks `any(self._found.values())` and clears it.",
        "`state_dict` holds five numbers: scale, streak, both factors, the interval. Exercises 2 and 3 are the bodies of "
        "`unscale_` and `update`.",
    ),
    judge=whole.judge,
    why="You have written what stands behind `torch.amp.GradScaler`; its other lines are about many devices and "
    "fused optimizers.",
    alternative="`amp_course.scaler.DynamicScaler` is the course's own, with torch's messages for misuse.",
)

clip_scaled = Exercise(
    chapter="scaler",
    name="clip_scaled",
    number=5,
    title="Clip under a scaler",
    task="Write `clipped_step(loss, parameters, optimizer, scaler, max_norm)`: backward, clip the norm of all gradients to "
    "`max_norm`, step and update. Return the norm before clipping, that of the true gradients, as a log wants it.",
    difficulty=2,
    importance=5,
    minutes=8,
    lines=6,
    hints=(
        "After `backward()` the gradients carry the scale. Which norm would you cut then?",
        "The scaler takes the scale out when you ask it to, and remembers that it did: `scaler.unscale_(optimizer)`.",
        "`scaler.scale(loss).backward()`, `scaler.unscale_(optimizer)`, `norm = torch.nn.utils.clip_grad_norm_(parameters, "
        "max_norm)`, `scaler.step(optimizer)`, `scaler.update()`, `return norm`.",
    ),
    judge=clipping.judge,
    why="Clipped while scaled, every gradient is cut to a tiny one: the loop runs, the loss crawls, and nothing complains.",
    alternative="clip the scaled gradients to `max_norm * scaler.get_scale()`, and return that norm divided by the scale.",
)

scheduler_waits = Exercise(
    chapter="scaler",
    name="scheduler_waits",
    number=6,
    title="The scheduler waits",
    task="Write `scheduled_step(loss, optimizer, scaler, scheduler)`, called after `backward()`: step, update, and move the "
    "learning rate's scheduler on if the optimizer has really stepped. The loss is there to be logged.",
    difficulty=3,
    importance=4,
    minutes=8,
    lines=5,
    hints=(
        "The scaler does not say that it skipped. What does it do after a skip, and after nothing else?",
        "`scaler.get_scale()` before and after `update()`: fell, stayed, or grew. Which two of the three tell of a step?",
        "`before = scaler.get_scale()`, step, update, then `if scaler.get_scale() >= before: scheduler.step()`.",
    ),
    judge=waiting.judge,
    why="A warm-up that counts skipped steps ends early: at the start, while the scale is being found, most steps "
    "may be skipped.",
    alternative="`optimizer.register_step_post_hook`: the hook runs only if the optimizer stepped, and with several optimizers "
    "under one scaler it says which.",
)

ALL = (static_scaling, unscale_and_check, update_rule, scaler_class, clip_scaled, scheduler_waits)
