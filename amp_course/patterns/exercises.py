"""The nine exercises of chapter 07; `ALL` lists them in order. The judging stands in `judges/`."""

from __future__ import annotations

from amp_course.checking import Exercise
from amp_course.patterns.judges import accumulation, checkpoint_files, frozen, second_passes, several_optimizers

accumulate = Exercise(
    chapter="patterns",
    name="accumulate",
    number=1,
    title="Accumulate unequal micro-batches",
    task="Write `accumulate`: one pass over micro-batches of unequal size in fp16, where `every` of them make one "
    "update with the gradient of all their rows, clipped once. The last group may be short, and one micro-batch "
    "overflows.",
    difficulty=3,
    importance=5,
    minutes=15,
    lines=14,
    hints=(
        "What belongs to a micro-batch, and what to a group? And of what is the gradient of a group the mean?",
        "For each group: count its rows first. Each micro-batch's loss counts with `len(targets) / rows`, goes "
        "through `scaler.scale` and backward; the scaled gradients add up.",
        "After the group's last `backward()`, once: `scaler.unscale_(optimizer)`, "
        "`clip_grad_norm_(model.parameters(), max_norm)`, `scaler.step(optimizer)`, `scaler.update()`, "
        "`optimizer.zero_grad()`. Groups are `batches[start : start + every]`.",
    ),
    judge=accumulation.judge_accumulate,
    why="Accumulated right, four small batches are one large one to the last digits that fp16 has; with `/ every` "
    "they are only if all have the same size.",
    alternative="scale `loss * len(targets)`, and divide `parameter.grad` by the rows after `unscale_`: no need to "
    "look ahead.",
)

two_optimizers = Exercise(
    chapter="patterns",
    name="two_optimizers",
    number=2,
    title="Two losses, two optimizers, one scaler",
    task="Write `train_step` for a body with two heads, each with its loss. The body's gradient is that of both. "
    "There are two optimizers and one scaler; one optimizer's overflow must not stop the other.",
    difficulty=3,
    importance=4,
    minutes=12,
    lines=11,
    hints=(
        "Which of scale, backward, step, update and zero_grad happen once for each loss, once for each optimizer, "
        "once an iteration?",
        "Both losses share the body's graph: the first `backward()` must not free it. Scale is common to all, so "
        "`update` is, too.",
        "In the region: features once, both losses. `scaler.scale(a).backward(retain_graph=True)`, "
        "`scaler.scale(b).backward()`, `scaler.step` for both, `scaler.update()` once, `zero_grad` for both.",
    ),
    judge=several_optimizers.judge_two_optimizers,
    why="The scaler remembers for each optimizer what it found, until `update`: so each is skipped by its own "
    "gradients, and all share one scale.",
    alternative="`scaler.scale(loss_a + loss_b).backward()`: one pass over the body in place of two, and nothing to "
    "retain.",
)

gradient_penalty = Exercise(
    chapter="patterns",
    name="gradient_penalty",
    number=3,
    title="A gradient penalty",
    task="Write `penalty_step`: a step on loss + weight · ‖gradient of the loss‖, in fp16 with a scaler. The "
    "gradient at the step has to be that of fp32 within 2 %, whatever the scale.",
    difficulty=4,
    importance=3,
    minutes=15,
    lines=10,
    hints=(
        "There are two backward passes through fp16. Which number enters each, and what has to come out before the "
        "norm is taken?",
        "`torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)` returns scaled gradients, "
        "with a graph.",
        "Divide them by `scaler.get_scale()`, take the norm of all, add `weight` times that to the loss; then the "
        "usual `scaler.scale(total).backward()`, step, update, clear.",
    ),
    judge=second_passes.judge_gradient_penalty,
    why="A penalty on scaled gradients is thousands of times too large and changes with every update of the scale; "
    "without a scale, fp16 loses what it should measure.",
    alternative="the norm of the scaled gradients, divided by the scale: a norm is linear. Its square would take the "
    "scale's square.",
)

save_training = Exercise(
    chapter="patterns",
    name="save_training",
    number=4,
    title="A checkpoint that survives",
    task="Write `save_training`: one file with all that a run needs in order to go on as if it had never stopped, a "
    "dict with the keys model, optimizer, scaler, scheduler, rng, step. A save that is killed must leave the old "
    "file whole.",
    difficulty=3,
    importance=5,
    minutes=10,
    lines=10,
    hints=(
        "What does each part remember between two steps? And what stands at the path while the new file is being "
        "written?",
        "`state_dict()` of all four, `torch.get_rng_state()` and the step. Write them under another name in the same "
        "folder.",
        "`temporary = path.with_suffix('.tmp')`, `torch.save({…}, temporary)`, `os.replace(temporary, path)`.",
    ),
    judge=checkpoint_files.judge_save_training,
    why="Runs are killed by schedulers that do not wait; the save in progress at that moment is often the only "
    "checkpoint.",
    alternative="write to an open file, `file.flush()` and `os.fsync(file.fileno())` before the rename: that "
    "survives a power cut, too. `amp_course.patterns.save_checkpoint` does.",
)

resume_training = Exercise(
    chapter="patterns",
    name="resume_training",
    number=5,
    title="Resume, with and without AMP",
    task="Write `resume_training`: load such a file into a new training, and return the step. A run with AMP may go "
    "on in fp32 (`scaler` is None), or one in fp32 with AMP (the file's scaler is None). What is no such file raises "
    "an error.",
    difficulty=2,
    importance=5,
    minutes=10,
    lines=9,
    hints=(
        "Four parts have a `load_state_dict`. For one of them there are two reasons not to call it.",
        "`torch.load(path, weights_only=True)` refuses files with code in them. Errors are for the caller: catch none.",
        "`if scaler is not None and checkpoint['scaler'] is not None: scaler.load_state_dict(…)`; last, "
        "`torch.set_rng_state(checkpoint['rng'])`.",
    ),
    judge=checkpoint_files.judge_resume_training,
    why="A resume that passes over what it cannot read trains on, from somewhere else, and nothing says so.",
    alternative="catch what `torch.load` raises and raise an error of your own, `from` it, with the file's name and "
    "the cure.",
)

resume_mid_accumulation = Exercise(
    chapter="patterns",
    name="resume_mid_accumulation",
    number=6,
    title="Stop between two micro-batches",
    task="Write a pair, `save_midway` and `load_midway`, for a run that may stop in the middle of an accumulation. "
    "The run that goes on has to be the unbroken one, to the last bit.",
    difficulty=4,
    importance=3,
    minutes=15,
    lines=18,
    hints=(
        "What is there in the middle of a group that is not there between two updates? No `state_dict()` holds it.",
        "Save `{name: parameter.grad for name, parameter in model.named_parameters()}` as they are, with their "
        "scale; None stays None.",
        "Load model, optimizer and scaler, set each `parameter.grad`, return the micro-step. The scale of the file's "
        "gradients is that of the file's scaler.",
    ),
    judge=accumulation.judge_resume_mid_accumulation,
    why="The gradients of a half-done group carry the scale of their scaler; one without the other is worth nothing.",
    alternative="save only between updates, and nothing of this is needed: that is what most trainers do.",
    takes="value",
)

recompute = Exercise(
    chapter="patterns",
    name="recompute",
    number=7,
    title="Recompute under autocast",
    task="Write `run_blocks`: run blocks one after the other under autocast, keep only each block's input, and run "
    "each block again in the backward pass: with the same dtypes, the same dropout and the same gradients as without.",
    difficulty=3,
    importance=4,
    minutes=10,
    lines=3,
    hints=(
        "Backward runs outside of the region, and the random generator has moved on. Who notes both, and puts them "
        "back?",
        "`torch.utils.checkpoint.checkpoint` does. It has two implementations, and one of them looks only at whether "
        "the *inputs* need a gradient.",
        "`for block in blocks: inputs = checkpoint(block, inputs, use_reentrant=False)`.",
    ),
    judge=second_passes.judge_recompute,
    why="A block that runs again in another dtype or with another mask gives the gradient of a model that was never "
    "run.",
    alternative="an autograd Function by hand that notes autocast's state and the random state in forward: chapter "
    "07 shows what it has to keep.",
)

frozen_layers = Exercise(
    chapter="patterns",
    name="frozen_layers",
    number=8,
    title="Half frozen",
    task="Write the module `FineTuned`: a frozen backbone in fp16 and a head that is trained. It has to run with and "
    "without a region around it, its backbone stays in eval mode, and `trainable()` gives the optimizer its "
    "parameters.",
    difficulty=3,
    importance=4,
    minutes=15,
    lines=14,
    hints=(
        "Of which parameters does the scaler unscale gradients, and in which dtype must those be? What moves in a "
        "batch norm without any gradient?",
        "`backbone.half()` and `requires_grad_(False)`; the head as it is. Override `train`: `super().train(mode)`, "
        "then `self.backbone.eval()`, and return self.",
        "Open a region around the backbone's pass, under `no_grad`; give the head `features.float()`. `trainable` "
        "returns `self.head.parameters()`.",
    ),
    judge=frozen.judge_frozen_layers,
    why="Frozen weights cost no optimizer state and no gradients, and half the bytes; what is trained has to stay "
    "float32.",
    alternative="leave the backbone's batch norm in float32 and hand each Linear `x.half()`.",
)

clip_both = Exercise(
    chapter="patterns",
    name="clip_both",
    number=9,
    title="One norm over two optimizers",
    task="Write `clip_both`, called after `backward()`: clip all gradients of both optimizers by their common norm, "
    "step, update, and return the norm. If it is not finite, neither optimizer may step.",
    difficulty=4,
    importance=3,
    minutes=10,
    lines=10,
    hints=(
        "The scaler looks at each optimizer's gradients in `unscale_`. What does clipping do to the clean ones if "
        "the common norm is NaN, and who looks at them then?",
        "Unscale both; one `clip_grad_norm_` over the parameters of both. It returns the norm before clipping: ask "
        "that.",
        "`if norm.isfinite():` both steps; `scaler.update()` in any case, since it is what lowers the scale; `return "
        "norm`.",
    ),
    judge=several_optimizers.judge_clip_both,
    why="Whatever changes gradients after `unscale_` goes past the scaler's guard: a NaN made there reaches the "
    "weights.",
    alternative="`clip_grad_norm_(…, error_if_nonfinite=True)` in a `try`, with both steps behind it and `update()` "
    "after all.",
)

ALL = (
    accumulate,
    two_optimizers,
    gradient_penalty,
    save_training,
    resume_training,
    resume_mid_accumulation,
    recompute,
    frozen_layers,
    clip_both,
)
