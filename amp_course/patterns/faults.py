"""The faults that an audit knows by name: cause and cure of each, as sentences without their full stop."""

from __future__ import annotations

FAULTS: dict[str, tuple[str, str]] = {
    # what the audit was given
    "no-batches": ("there is no batch to run the step on", "Pass `batches=[(inputs, targets), …]`, at least one"),
    "accumulate-below-one": (
        "accumulation over fewer than one micro-batch makes no update",
        "Pass `accumulate=` the number of micro-batches of an update: 1 for a plain loop",
    ),
    "two-devices": (
        "the parameters lie on devices of more than one kind, so one op would meet tensors of both",
        "Move the whole model with `model.to(device)` before you make the optimizer",
    ),
    "fp16-parameters": (
        "the optimizer holds parameters in fp16: their gradients are fp16 too, and `scaler.unscale_` refuses them "
        "(“Attempting to unscale FP16 gradients”); without a scaler small updates round away",
        "Leave out `.half()`: under AMP parameters stay fp32, and autocast casts copies of them",
    ),
    "weights-not-finite": (
        "the weights hold inf or NaN before the step runs: no later step can mend them",
        "Load the last good checkpoint; the step that did this took gradients that nobody had checked",
    ),
    "foreign-parameters": (
        "the optimizer steps parameters that the model does not have: the model was replaced after the optimizer was made",
        "Make the optimizer from `model.parameters()` after the model is final",
    ),
    "frozen-optimizer": (
        "not one parameter of this optimizer gets a gradient: all are frozen, or the loss does not depend on them. "
        "`scaler.step` then raises “No inf checks were recorded for this optimizer”",
        "Make the optimizer from the parameters that train: `[p for p in model.parameters() if p.requires_grad]`",
    ),
    # passes
    "step-raises": ("the step raised an exception", "Mend what it names, then audit again"),
    "no-backward": (
        "`backward()` never ran, so there are no gradients to step with",
        "Call `scaler.scale(loss).backward()` (without a scaler `loss.backward()`) for every batch",
    ),
    "backward-in-autocast": (
        "`backward()` ran inside the autocast region. Most backward ops take the dtype of "
        "their forward op either way, but those of an fp32 island then run in 16 bits (pytorch#105682, pytorch#125186)",
        "End the `with torch.autocast(…)` block after the loss, before `backward()`",
    ),
    "autocast-left-open": (
        "autocast is still on after the step: everything that follows, evaluation too, would run in 16 bits, with "
        "casts of weights kept from before the update",
        "Enter the region with `with torch.autocast(…):`, which also ends after an exception",
    ),
    "not-finite": (
        "the gradients are inf or NaN at every loss scale that was tried",
        "Look at the loss: if it is NaN in fp32 too, AMP is innocent; if not, an op overflows in the forward pass "
        "(run it in fp32, or in bf16)",
    ),
    # order and number of calls
    "never-stepped": (
        "the optimizer took no step although every gradient is finite",
        "Call `scaler.step(optimizer)` (without a scaler `optimizer.step()`) once an update",
    ),
    "optimizer-not-stepped": (
        "one of the optimizers took no step, so its model never learns",
        "Call `scaler.step` for every optimizer, then `scaler.update()` once",
    ),
    "stepped-twice": ("an optimizer stepped more than once in one update", "Step each optimizer once an update"),
    "stepped-every-micro-batch": (
        "the optimizer stepped in every micro-batch, so nothing is accumulated",
        "Unscale, step, update and clear only after the last micro-batch of the group",
    ),
    "update-missing": (
        "`scaler.update()` never ran: the scale cannot move, and the scaler takes the next update for the same one",
        "Call `scaler.update()` once an update, after every `scaler.step`",
    ),
    "no-update-after-skip": (
        "`scaler.update()` did not run after a skipped step: the scale that caused the overflow stays",
        "Call `scaler.update()` after `scaler.step` unconditionally; it is what lowers the scale",
    ),
    "update-per-optimizer": (
        "`scaler.update()` ran once for each optimizer: the first call forgets what was found for the others, and the "
        "scale may change between two optimizers of one update",
        "Call it once, after `scaler.step` of the last optimizer",
    ),
    "update-every-micro-batch": (
        "`scaler.update()` ran in every micro-batch: the scale may change inside a group, and gradients of two scales "
        "are added up",
        "Call it once an update, after `scaler.step`",
    ),
    "updated-twice": (
        "`scaler.update()` ran more than once in an update",
        "Call it once, after the last `scaler.step`",
    ),
    "unscaled-every-micro-batch": (
        "`scaler.unscale_` ran before the last micro-batch: what comes after is added still scaled, and torch raises "
        "“unscale_() has already been called”",
        "Unscale once an update, after the last `backward()`",
    ),
    "unscaled-twice": (
        "`scaler.unscale_` ran twice for one optimizer in one update",
        "Unscale once, before clipping; `scaler.step` knows that it is done",
    ),
    "cleared-before-step": (
        "the gradients were cleared between `backward()` and the step, so the step has nothing to apply",
        "Call `optimizer.zero_grad()` after the step, or before the first `backward()` of an update",
    ),
    "weights-unchanged": (
        "the optimizer stepped with gradients that are not zero, and not one weight changed",
        "Is the update too small for the dtype of the weights (keep them in fp32), or does the optimizer hold others?",
    ),
    # what the optimizer sees
    "still-scaled": (
        "the optimizer steps with gradients that still carry the loss scale: its update is that many times too large",
        "Call `scaler.step(optimizer)` instead of `optimizer.step()`, or `scaler.unscale_(optimizer)` before it",
    ),
    "loss-not-scaled": (
        "the loss is not scaled, yet the gradients are divided by the scale: updates are next to nothing, and small "
        "gradients are lost in fp16",
        "Call `scaler.scale(loss).backward()`",
    ),
    "scaled-twice": (
        "the loss is multiplied by the scale twice and divided once",
        "Scale each loss once, right at its `backward()`",
    ),
    "depends-on-scale": (
        "another loss scale gives another gradient: a part of the loss was computed from scaled gradients, as a "
        "gradient penalty is when nobody divides by the scale first",
        "Divide the gradients of `torch.autograd.grad(scaler.scale(loss), …, create_graph=True)` by "
        "`scaler.get_scale()` before you compute the penalty from them",
    ),
    "clipped-while-scaled": (
        "the gradients were clipped while they still carried the loss scale: their true norm is cut to max_norm "
        "divided by the scale. With SGD training all but stops; Adam hides it, and clips every gradient alike",
        "Call `scaler.unscale_(optimizer)` before `clip_grad_norm_`",
    ),
    "not-clipped": (
        "gradients of a norm far above max_norm reach the optimizer as they are",
        "Call `clip_grad_norm_` after `scaler.unscale_(optimizer)` and before the step",
    ),
    "clipped-wrong": (
        "the norm after clipping is not max_norm",
        "Clip once an update, by the norm over all parameters of the optimizer",
    ),
    "clipped-every-micro-batch": (
        "micro-batches were clipped one by one: the sum is not the clipped gradient of the big batch, and its direction "
        "is another",
        "Clip once an update, after the last `backward()` and after unscaling",
    ),
    "sum-not-mean": (
        "the accumulated gradient is the sum over the micro-batches, not their mean: the learning rate is in effect that "
        "many times larger",
        "Divide each loss by the number of micro-batches before `backward()`",
    ),
    "mean-of-means": (
        "each micro-batch counts the same although their sizes differ: an example in a small one weighs more",
        "Weigh each micro-batch's mean by its share of the examples: `loss * len(inputs) / examples_in_group`",
    ),
    "cleared-every-micro-batch": (
        "only the last micro-batch is left in the gradient: the others were cleared before the step",
        "Call `optimizer.zero_grad()` once an update, after the step",
    ),
    "never-cleared": (
        "the gradients of the update before are still there when the next begins, and are added to",
        "Call `optimizer.zero_grad()` once an update",
    ),
    "wrong-factor": (
        "the gradient has the right direction and the wrong length",
        "Look for a missing or a second division: by the number of micro-batches, by the batch size, by the scale",
    ),
    "gradient-differs": (
        "the gradient that the optimizer sees is not that of the fp32 loss, beyond what rounding explains",
        "Compare the step's loss with the fp32 one, term by term: what is detached, computed from scaled values, or "
        "overflows in 16 bits?",
    ),
    # overflow
    "overflow-not-skipped": (
        "a step with inf in its gradients was taken: the weights are NaN from now on",
        "Step through `scaler.step(optimizer)`, every optimizer, which looks for inf and skips",
    ),
    "kept-after-skip": (
        "the gradients of a skipped step are kept, with their inf, so every later step is skipped too",
        "Call `optimizer.zero_grad()` whether the step was taken or not",
    ),
    # scheduler
    "scheduler-never-moved": (
        "the scheduler did not move in two updates",
        "Call `scheduler.step()` once an update (for one that moves once an epoch, leave it out of the audit)",
    ),
    "scheduler-before-optimizer": (
        "the scheduler moved before the optimizer stepped: the first rate of the schedule is never used",
        "Call `scheduler.step()` after the optimizer's step",
    ),
    "scheduler-every-micro-batch": (
        "the scheduler moved in every micro-batch and not once an update: the schedule ends too early",
        "Call `scheduler.step()` only where the optimizer steps",
    ),
    "scheduler-moved-twice": ("the scheduler moved more than once in an update", "Call `scheduler.step()` once"),
    "scheduler-ran-on": (
        "the scheduler moved on although the step was skipped: the schedule runs ahead of the weights",
        "Compare the scale before and after `scaler.update()`: it fell if the step was skipped; then let the scheduler wait",
    ),
    "last-group-mean": (
        "the last, shorter group is not updated with its own mean",
        "Divide by the number of micro-batches (or examples) that the group really has",
    ),
}
