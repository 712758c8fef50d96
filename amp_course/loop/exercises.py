"""The six exercises of chapter 06; `ALL` lists them in order. `judges/` judges them."""

from __future__ import annotations

from amp_course.checking import Exercise
from amp_course.loop.judges import bookkeeping, evaluation, timing, training

honest_timing = Exercise(
    chapter="loop",
    name="honest_timing",
    number=1,
    title="Time a step honestly",
    task="Write `seconds_per_step`: the median time of `repeats` steps, on a device that works through a queue. Do not let the "
    "warm-up steps, the queue or the loading of batches fool you.",
    difficulty=2,
    importance=5,
    minutes=10,
    lines=10,
    hints=(
        "One line is timed, and four others surround it. Which come before the clock starts, and which before it stops?",
        "Warm up first: `warmup` times `step(next_batch())`, with no clock. Then take one sample for each of `repeats` steps.",
        "One sample: fetch the batch, `synchronize()`, `start = clock()`, `step(batch)`, `synchronize()`, `clock() - start`. "
        "`statistics.median` does the rest.",
    ),
    judge=timing.judge,
    why="A missing synchronisation or a counted first step can turn any recipe into the faster one.",
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
        "The model's call and the loss go inside it; `backward()`, the step and `zero_grad()` come after it.",
    ),
    judge=training.judge_autocast,
    why="Autocast has to decide about the forward ops and the loss, so the region covers those; backward follows their dtypes.",
    alternative='`@torch.autocast("cuda", dtype=torch.bfloat16)` as a decorator of `forward`, the loss in another region.',
)

add_scaler = Exercise(
    chapter="loop",
    name="add_scaler",
    number=3,
    title="Add the scaler",
    task="Write the same step in fp16, with a `torch.amp.GradScaler`. One of the batches overflows: the scaler has to skip that "
    "step and lower the scale. Return the loss unscaled, as the reader of a log wants it.",
    difficulty=2,
    importance=5,
    minutes=8,
    lines=8,
    hints=(
        "The scaler takes over three calls: one before `backward()`, one in place of `optimizer.step()`, one after it.",
        "`scaler.scale(loss)` gives a scaled loss to call `backward()` on; `loss` itself stays unchanged.",
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
    task="Write `scaled_step`, called instead of the scaler's step and update. It returns the scale that this step used, and "
    "whether the step was skipped.",
    difficulty=3,
    importance=4,
    minutes=10,
    lines=5,
    hints=(
        "The scaler does not tell you that it skipped. What does `update()` do after a skip, and only then?",
        "`scaler.get_scale()` before and after the update: it grows after enough steps without a skip, and shrinks after a skip.",
        "`used = scaler.get_scale()`, then step and update, then `return used, scaler.get_scale() < used`.",
    ),
    judge=bookkeeping.judge_log,
    why="A scale that keeps falling is the first sign of a layer that overflows, long before the loss shows anything.",
    alternative="`optimizer.register_step_post_hook` and a flag: the hook runs only if the optimizer really stepped.",
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
        "Four numbers are kept for each parameter. One is the weight. What are the others?",
        "The weight, its gradient, and Adam's running averages of the gradient and of its square.",
        "A gradient has the dtype of its parameter, and Adam makes its averages in that dtype too. Which dtype do "
        "parameters have under AMP?",
    ),
    judge=bookkeeping.judge_bytes,
    why="AMP saves time and activations. If weights and optimizer state are what fills your memory, you need something else.",
    alternative="with SGD and no momentum: 8, 8 and 4 bytes. `step_memory` counts them for any optimizer.",
    takes="value",
)

evaluate_right = Exercise(
    chapter="loop",
    name="evaluate_right",
    number=6,
    title="Evaluate under autocast",
    task="Write `accuracy`: the share of right answers over all batches, in eval mode, inference mode and bf16 autocast. Leave "
    "the model in the mode you found it in.",
    difficulty=3,
    importance=4,
    minutes=10,
    lines=11,
    hints=(
        "Three switches: one is the model's, two are torch's. And watch out: the last batch is smaller than the others.",
        "`model.eval()`; `with torch.inference_mode(), torch.autocast(inputs.device.type, dtype=torch.bfloat16):`. Add up "
        "how many are right and how many there are.",
        "Remember `model.training` first and call `model.train(that)` last, best in a `finally`.",
    ),
    judge=evaluation.judge,
    why="Evaluate in another mode or dtype than you think, and you get an accuracy that nobody can reproduce.",
    alternative="one call on the whole test set, where it fits into memory, as in section 2 of the chapter.",
)

ALL = (honest_timing, add_autocast, add_scaler, log_scale, count_bytes, evaluate_right)
