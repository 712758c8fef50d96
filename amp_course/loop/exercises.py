"""The six exercises of chapter 06; `ALL` lists them in order. The judging stands in `judges/`."""

from __future__ import annotations

from amp_course.checking import Exercise
from amp_course.loop.judges import bookkeeping, evaluation, timing, training

honest_timing = Exercise(
    chapter="loop",
    name="honest_timing",
    number=1,
    title="Time a step honestly",
    task="Write `seconds_per_step`: the median time of `repeats` steps, on a device that works through a queue. The warm-up "
    "steps, the queue and the loading of batches must not fool you.",
    difficulty=2,
    importance=5,
    minutes=10,
    lines=10,
    hints=(
        "Four things stand around the one line that is timed: what comes before the clock starts, and what before it stops?",
        "First the warm-up: `warmup` times `step(next_batch())`, no clock. Then one sample for each of `repeats` steps.",
        "A sample: fetch the batch, `synchronize()`, `start = clock()`, `step(batch)`, `synchronize()`, `clock() - start`. "
        "`statistics.median` takes the list.",
    ),
    judge=timing.judge,
    why="Most speed-ups claimed in forum threads are a missing synchronisation or a first step that was counted.",
    alternative="two CUDA events around each step and one `synchronize()` at the end time a GPU without making it wait, which is "
    "what `amp_course.kit.measure.StepTimer` does there.",
)

add_autocast = Exercise(
    chapter="loop",
    name="add_autocast",
    number=2,
    title="Add autocast",
    task="Turn the fp32 step into one whose forward pass and loss run under bf16 autocast. Return the loss.",
    difficulty=1,
    importance=5,
    minutes=5,
    lines=6,
    hints=(
        "One `with` block is all that autocast needs. Which two lines belong in it?",
        "`torch.autocast(device_type, dtype)`: the device type is `inputs.device.type`, so that the step runs on any device.",
        "The model's call and the loss stand inside; `backward()`, the step and `zero_grad()` after it.",
    ),
    judge=training.judge_autocast,
    why="The region covers what autocast has to decide about, the forward ops and the loss; backward follows by itself.",
    alternative='`@torch.autocast("cuda", dtype=torch.bfloat16)` as a decorator of `forward`, the loss in another region.',
)

add_scaler = Exercise(
    chapter="loop",
    name="add_scaler",
    number=3,
    title="Add the scaler",
    task="The same step in fp16, with a `torch.amp.GradScaler`. One of the batches overflows: the scaler has to skip that step "
    "and lower the scale. Return the loss as the reader of a log wants it, unscaled.",
    difficulty=2,
    importance=5,
    minutes=8,
    lines=8,
    hints=(
        "The scaler takes over three calls: one before `backward()`, one in place of `optimizer.step()`, one after it.",
        "`scaler.scale(loss)` gives a scaled loss to call `backward()` on; `loss` itself stays what it was.",
        "After the region: `scaler.scale(loss).backward()`, `scaler.step(optimizer)`, `scaler.update()`, "
        "`optimizer.zero_grad()`, `return loss.detach()`.",
    ),
    judge=training.judge_scaler,
    why="Scale, step and update are one mechanism: leave one out and the loop still runs, and trains on wrong or no gradients.",
    alternative="`zero_grad()` at the top of the step; or `scaler.unscale_(optimizer)` before `scaler.step`: clipping goes there "
    "(chapter 07).",
)

log_scale = Exercise(
    chapter="loop",
    name="log_scale",
    number=4,
    title="Log the scale and the skipped steps",
    task="Write `scaled_step`, to be called in place of the scaler's step and update. It returns the scale that this step "
    "used, and whether the step was skipped.",
    difficulty=3,
    importance=4,
    minutes=10,
    lines=5,
    hints=(
        "The scaler does not say that it skipped. What does `update()` do after a skip, and after nothing else?",
        "`scaler.get_scale()` before and after the update: it grows after a streak of clean steps and shrinks after a skip.",
        "`used = scaler.get_scale()`, then step and update, then `return used, scaler.get_scale() < used`.",
    ),
    judge=bookkeeping.judge_log,
    why="A scale that falls and falls is the first sign of a layer that overflows, many steps before the loss shows anything.",
    alternative="`optimizer.register_step_post_hook` with a flag: the hook runs only if the optimizer really stepped.",
)

count_bytes = Exercise(
    chapter="loop",
    name="count_bytes",
    number=5,
    title="Predict the bytes per parameter",
    task="How many bytes does each parameter take between two steps with Adam, gradients included and activations not? For fp32; "
    "for AMP; and for a model converted by `.half()` or `.bfloat16()`.",
    difficulty=2,
    importance=4,
    minutes=5,
    lines=1,
    hints=(
        "Four numbers are kept for each parameter. One is the weight. Which are the others?",
        "The weight, its gradient, and Adam's running averages of the gradient and of its square.",
        "A gradient has the dtype of its parameter, and Adam makes its averages in that dtype too. Which dtype do "
        "parameters have under AMP?",
    ),
    judge=bookkeeping.judge_bytes,
    why="AMP saves time and activations; whoever runs out of memory on weights and optimizer state needs something else.",
    alternative="with SGD and no momentum it is 8, 8 and 4; `step_memory` counts any optimizer for you.",
    takes="value",
)

evaluate_right = Exercise(
    chapter="loop",
    name="evaluate_right",
    number=6,
    title="Evaluate under autocast",
    task="Write `accuracy`: the share of right answers over all batches, in eval mode, inference mode and bf16 autocast. Leave "
    "the model in the mode in which you found it.",
    difficulty=3,
    importance=4,
    minutes=10,
    lines=11,
    hints=(
        "Three switches: one is the model's, two are torch's. And the last batch is smaller than the others.",
        "`model.eval()`; `with torch.inference_mode(), torch.autocast(inputs.device.type, dtype=torch.bfloat16):`. Add up "
        "how many are right and how many there are.",
        "Remember `model.training` first and call `model.train(that)` last, best in a `finally`.",
    ),
    judge=evaluation.judge,
    why="An evaluation in another mode or dtype than you think is a common reason for accuracies that cannot be reproduced.",
    alternative="one call on the whole test set where it fits into memory, as `amp_course.loop.workloads.evaluate` does.",
)

ALL = (honest_timing, add_autocast, add_scaler, log_scale, count_bytes, evaluate_right)
