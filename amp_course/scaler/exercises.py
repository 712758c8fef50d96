"""The six exercises of chapter 05; `ALL` lists them in order. `judges/` has the judging."""

from __future__ import annotations

from amp_course.checking import Exercise
from amp_course.scaler.judges import clipping, rule, static, unscaling, waiting, whole

static_scaling = Exercise(
    chapter="scaler",
    name="static_scaling",
    number=1,
    title="A fixed loss scale",
    task="Write `static_step`: one optimizer step on the mean loss of a few micro-batches, with a fixed loss scale. The model "
    "opens its own fp16 region, and its gradients are too small for fp16; the optimizer must get the true ones.",
    difficulty=2,
    importance=5,
    minutes=10,
    lines=8,
    hints=(
        "The scale goes into one number and has to come out of many. Which number is it, and when is the last moment to divide?",
        "`(loss * scale).backward()` for each micro-batch; gradients add up. You want their mean: divide each loss "
        "by the number of micro-batches.",
        "After the loop, once: `parameter.grad.div_(scale)` for every parameter that has a gradient, then `optimizer.step()` "
        "and `optimizer.zero_grad()`.",
    ),
    judge=static.judge,
    why="That is all there is to loss scaling; a GradScaler adds two things: it finds the scale on its own, and it survives a "
    "bad step.",
    alternative="divide by `scale * len(batches)` after the loop and leave the losses as they are.",
)

unscale_and_check = Exercise(
    chapter="scaler",
    name="unscale_and_check",
    number=2,
    title="Unscale, and find inf",
    task="Write `unscale_and_check(optimizer, scale)`: divide every gradient of the optimizer by the scale, in place, and return "
    "whether any of them contains inf or NaN. The result has to match torch's `unscale_` to the last bit.",
    difficulty=2,
    importance=5,
    minutes=8,
    lines=7,
    hints=(
        "Where does an optimizer keep its parameters? There may be several groups. And which parameters have no gradient?",
        "`for group in optimizer.param_groups: for parameter in group['params']: …`. Do not leave the loop at the first inf: "
        "the other gradients have to be unscaled too.",
        "`parameter.grad.div_(scale)`, then `found = found or not torch.isfinite(parameter.grad).all()`; return `found`.",
    ),
    judge=unscaling.judge,
    why="One inf among a million gradients ruins every weight it touches, and NaN slips through every comparison.",
    alternative="`torch._foreach_div_(gradients, scale)` divides all of them in a few calls; torch's scaler divides and checks "
    "in one kernel and leaves the answer on the device, so that the CPU need not wait.",
)

update_rule = Exercise(
    chapter="scaler",
    name="update_rule",
    number=3,
    title="The rule that finds the scale",
    task="Write `update_rule(scale, streak, found_inf, growth, backoff, interval)`: given the state and whether this step found "
    "inf or NaN, return the next scale and the next streak of clean steps, as torch's scaler computes them.",
    difficulty=2,
    importance=4,
    minutes=8,
    lines=8,
    hints=(
        "There are two branches: found, or clean. Which of them sets the streak to 0, and when?",
        "Found: the scale times backoff, and 0. Clean: count this step first, then ask whether the streak has reached "
        "the interval.",
        "A scale never grows beyond float32: ask `torch.tensor(scale * growth).isfinite()`, which is in float32. The streak "
        "restarts at 0 either way.",
    ),
    judge=rule.judge,
    why="Trying a larger scale every 2,000 steps costs at most one skipped step; a scale that is too small loses gradients at "
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
    "trains next to `torch.amp.GradScaler`, with inf and NaN, two optimizers, and a save and load, and has to equal it to "
    "the last bit. You may leave `unscale_` blank; if you write it, it has to work.",
    difficulty=4,
    importance=5,
    minutes=25,
    lines=40,
    hints=(
        "What does the scaler have to remember: for itself, and for each optimizer until `update`? What goes into a file?",
        "A dict `self._found = {}` from `id(optimizer)` to what was found. An optimizer with an entry is already "
        "unscaled; `step` looks there first, `update` asks `any(self._found.values())` and clears it.",
        "`state_dict` holds five numbers: scale, streak, both factors, the interval. Exercises 2 and 3 are the bodies of "
        "`unscale_` and `update`.",
    ),
    judge=whole.judge,
    why="You have written the core of `torch.amp.GradScaler`; its other lines deal with several devices and "
    "fused optimizers.",
    alternative="`amp_course.scaler.DynamicScaler` is the course's own, with torch's messages for misuse.",
)

clip_scaled = Exercise(
    chapter="scaler",
    name="clip_scaled",
    number=5,
    title="Clip under a scaler",
    task="Write `clipped_step(loss, parameters, optimizer, scaler, max_norm)`: backward, clip the norm of all gradients to "
    "`max_norm`, step and update. Return the norm of the true gradients before clipping, as you would log it.",
    difficulty=2,
    importance=5,
    minutes=8,
    lines=6,
    hints=(
        "After `backward()` the gradients carry the scale. Which norm would you clip then?",
        "The scaler takes the scale out when you ask it to, and remembers that it did: `scaler.unscale_(optimizer)`.",
        "`scaler.scale(loss).backward()`, `scaler.unscale_(optimizer)`, `norm = torch.nn.utils.clip_grad_norm_(parameters, "
        "max_norm)`, `scaler.step(optimizer)`, `scaler.update()`, `return norm`.",
    ),
    judge=clipping.judge,
    why="Clip scaled gradients, and every step becomes tiny: the loop runs, the loss crawls, and nothing complains.",
    alternative="clip the scaled gradients to `max_norm * scaler.get_scale()`, and return that norm divided by the scale.",
)

scheduler_waits = Exercise(
    chapter="scaler",
    name="scheduler_waits",
    number=6,
    title="The scheduler waits",
    task="Write `scheduled_step(loss, optimizer, scaler, scheduler)`, called after `backward()`: step, update, and step the "
    "learning rate scheduler if the optimizer has really stepped. The loss is only for logging.",
    difficulty=3,
    importance=4,
    minutes=8,
    lines=5,
    hints=(
        "The scaler does not say that it skipped. What does it do after a skip, and after nothing else?",
        "`scaler.get_scale()` before and after `update()`: it fell, stayed, or grew. Which two of the three mean a step?",
        "`before = scaler.get_scale()`, step, update, then `if scaler.get_scale() >= before: scheduler.step()`.",
    ),
    judge=waiting.judge,
    why="A warm-up that counts skipped steps ends early: at the start, while the scale is being found, most steps "
    "may be skipped.",
    alternative="`optimizer.register_step_post_hook`: the hook runs only if the optimizer stepped, and with several optimizers "
    "under one scaler it says which.",
)

ALL = (static_scaling, unscale_and_check, update_rule, scaler_class, clip_scaled, scheduler_waits)
