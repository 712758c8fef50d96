"""The faults of training steps that are known by name, in order of harm: cause, cure, the line that cures it, where it is taught.

Causes and cures are sentences without their full stop. The auditor names these, and so may an exercise that watches a step.
"""

from __future__ import annotations

from dataclasses import dataclass

# What is judged, in the order in which it happens → what holds if nothing is found.
BEHAVIOURS: dict[str, str] = {
    "objects": "the model, optimizer and scaler are those of the step",
    "backward": "runs, outside autocast",
    "autocast": "covers the forward pass and the loss, and ends with the step",
    "steps": "one for each set of gradients",
    "updates": "`scaler.update()` once per update, after the steps",
    "scheduler": "moves with the optimizer",
    "clearing": "each update begins with empty gradients",
    "clipping": "of the true gradients, once per update",
    "loss scale": "another scale, the same gradient",
    "accumulation": "every micro-batch counts",
    "gradient": "that of the fp32 loss, but for rounding",
    "shorter last group": "has its own mean",
    "unequal micro-batches": "count by their examples",
    "overflow": "the step is skipped, the scale falls",
}


@dataclass(frozen=True)
class Fault:
    """A fault: the behaviour it belongs to, cause and cure as sentences, where it is taught ("07.3": chapter 07, section 3).

    code:   the cure as a line of code, if one does it
    spoils: other behaviours that cannot be called right when this fault is there
    """

    behaviour: str
    cause: str
    cure: str
    section: str
    code: str = ""
    spoils: tuple[str, ...] = ()


FAULTS: dict[str, Fault] = {
    # nothing can be judged, or nothing runs
    "no-batches": Fault(
        "objects",
        "there is no batch to run the step on",
        "Pass `batches=[(inputs, targets), …]`, at least one",
        "07.11",
    ),
    "batch-does-not-fit": Fault(
        "objects",
        "the step cannot be called with a batch",
        "Pass batches that hold what the step takes, in its order",
        "07.11",
        "batches=[(inputs, targets), …]",
    ),
    "accumulate-below-one": Fault(
        "objects",
        "accumulation over fewer than one micro-batch makes no update",
        "Pass `accumulate=` the number of micro-batches of an update: 1 for a plain loop",
        "07.4",
    ),
    "two-devices": Fault(
        "objects",
        "the parameters are on devices of more than one kind, so an operation may mix devices",
        "Move the whole model before you make the optimizer",
        "06.9",
        "model.to(device)",
    ),
    "weights-not-finite": Fault(
        "objects",
        "the weights hold inf or NaN before the step runs: training cannot recover from this",
        "Load the last good checkpoint; an earlier step applied gradients that were not finite",
        "05.8",
    ),
    "step-raises": Fault("backward", "the step raised an exception", "Fix the error, then audit again", "07.10"),
    "foreign-model": Fault(
        "objects",
        "the step does not train the model that was passed: its parameters get no gradient, and others do",
        "Pass the model that the step trains",
        "07.11",
        spoils=("steps", "updates", "clearing", "overflow"),
    ),
    "foreign-optimizer": Fault(
        "objects",
        "the step does not use the optimizer that was passed: another one steps",
        "Pass the optimizer that the step steps",
        "07.11",
    ),
    "foreign-scaler": Fault(
        "objects",
        "the step does not use the scaler that was passed: it scales with another one",
        "Pass the scaler that the step uses",
        "07.11",
    ),
    # the weights are lost, or never learn
    "overflow-not-skipped": Fault(
        "overflow",
        "a step with inf in its gradients was taken: the weights are NaN from then on",
        "Step every optimizer through the scaler, which looks for inf and skips",
        "05.5",
        "scaler.step(optimizer)",
    ),
    "not-finite": Fault(
        "backward",
        "the gradients are inf or NaN at every loss scale that was tried",
        "Look at the loss: if it is NaN in fp32 too, the cause is not AMP; if not, an op overflows in the forward pass: run it "
        "in fp32, or use bf16",
        "02.6",
    ),
    "fp16-parameters": Fault(
        "objects",
        "the optimizer holds parameters in fp16: their gradients are fp16 too, and `scaler.unscale_` refuses them "
        "(“Attempting to unscale FP16 gradients”)",
        "Leave out `.half()`: under AMP parameters stay fp32, and autocast casts copies of them",
        "07.10",
        "model.float()",
    ),
    "no-backward": Fault(
        "backward",
        "`backward()` never ran, so there are no gradients to step with",
        "Call `backward()` on the scaled loss for every batch (without a scaler: on the loss itself)",
        "06.1",
        "scaler.scale(loss).backward()",
    ),
    "unscaled-before-backward": Fault(
        "updates",
        "`scaler.unscale_` ran before the gradients were complete: what `backward()` adds after it is still scaled",
        "Unscale after the last `backward()` of the update",
        "07.3",
        "scaler.unscale_(optimizer)  # after backward()",
        spoils=("loss scale", "clipping", "gradient"),
    ),
    "frozen-optimizer": Fault(
        "objects",
        "not one parameter of this optimizer gets a gradient: all are frozen, or the loss does not depend on them. "
        "`scaler.step` then raises “No inf checks were recorded for this optimizer”",
        "Make the optimizer from the parameters that train",
        "07.10",
        "[p for p in model.parameters() if p.requires_grad]",
    ),
    "foreign-parameters": Fault(
        "objects",
        "the optimizer steps parameters that the model does not have: the model was replaced after the optimizer was made",
        "Make the optimizer after the model is final",
        "07.11",
        "optimizer = torch.optim.SGD(model.parameters(), lr=…)",
    ),
    "never-stepped": Fault(
        "steps",
        "the optimizer took no step although every gradient is finite",
        "Step once per update (without a scaler: `optimizer.step()`)",
        "06.1",
        "scaler.step(optimizer)",
    ),
    "optimizer-not-stepped": Fault(
        "steps",
        "one of the optimizers took no step, so its model never learns",
        "Step every optimizer through the scaler, then update once",
        "07.6",
        "scaler.step(other_optimizer)",
    ),
    "cleared-before-step": Fault(
        "clearing",
        "the gradients were cleared between `backward()` and the step, so the step has nothing to apply",
        "Clear them after the step, or before the first `backward()` of an update",
        "06.1",
        "optimizer.zero_grad()  # after scaler.step(optimizer)",
    ),
    "weights-unchanged": Fault(
        "steps",
        "the optimizer stepped with gradients that are not zero, and not one weight changed",
        "Keep the weights in fp32, and check that the optimizer holds the weights that the model runs with",
        "02.5",
    ),
    "kept-after-skip": Fault(
        "overflow",
        "the gradients of a skipped step are kept, with their inf, so every later step is skipped too",
        "Clear the gradients whether the step was taken or not",
        "05.5",
        "optimizer.zero_grad()",
    ),
    # the wrong gradient
    "still-scaled": Fault(
        "loss scale",
        "the optimizer steps with gradients that still carry the loss scale: they are that many times too large",
        "Step through the scaler, or unscale first",
        "07.1",
        "scaler.step(optimizer)",
        spoils=("clipping",),
    ),
    "clipped-while-scaled": Fault(
        "clipping",
        "the gradients were clipped while they still carried the loss scale: their true norm is cut to the limit divided by "
        "the scale. With SGD training all but stops; with Adam it is harder to notice",
        "Unscale before you clip",
        "07.3",
        "scaler.unscale_(optimizer)",
        spoils=("loss scale",),
    ),
    "loss-not-scaled": Fault(
        "loss scale",
        "a loss is not scaled, yet the gradients are divided by the scale: its updates are next to nothing, and small "
        "gradients are lost in fp16",
        "Scale each loss, right at its `backward()`",
        "06.3",
        "scaler.scale(loss).backward()",
        spoils=("clipping",),
    ),
    "unscaled-twice": Fault(
        "updates",
        "the gradients of one optimizer were unscaled twice in one update",
        "Unscale once, before clipping; `scaler.step` will not unscale again",
        "07.4",
        spoils=("loss scale", "clipping", "gradient"),
    ),
    "scaled-twice": Fault(
        "loss scale",
        "the loss is multiplied by the scale twice and divided once",
        "Scale each loss once, right at its `backward()`",
        "06.3",
        "scaler.scale(loss).backward()",
        spoils=("clipping",),
    ),
    "depends-on-scale": Fault(
        "loss scale",
        "another loss scale gives another gradient: a part of the loss was computed from scaled gradients, as a gradient "
        "penalty is when nobody divides by the scale first, or the gradients are divided by something other than the scale",
        "Divide by `scaler.get_scale()` what `torch.autograd.grad` returns for a scaled loss, and leave the rest to the scaler",
        "07.5",
        "gradients = [g / scaler.get_scale() for g in scaled_gradients]",
        spoils=("clipping",),
    ),
    "unscaled-every-micro-batch": Fault(
        "updates",
        "`scaler.unscale_` ran before the last micro-batch: what comes after is added still scaled, and torch raises "
        "“unscale_() has already been called”",
        "Unscale once per update, after the last `backward()`",
        "07.4",
        "scaler.unscale_(optimizer)  # after the last backward()",
        spoils=("loss scale", "clipping", "gradient"),
    ),
    "never-cleared": Fault(
        "clearing",
        "the gradients of the previous update were not cleared, so the new ones are added to them",
        "Clear them once per update",
        "06.1",
        "optimizer.zero_grad()",
    ),
    "cleared-every-micro-batch": Fault(
        "clearing",
        "only the last micro-batch is left in the gradient: the others were cleared before the step",
        "Clear the gradients once per update, after the step",
        "07.4",
        "optimizer.zero_grad()  # after scaler.step(optimizer)",
    ),
    "stepped-every-micro-batch": Fault(
        "steps",
        "the optimizer stepped in every micro-batch, so nothing is accumulated",
        "Unscale, step, update and clear only after the last micro-batch of the group",
        "07.4",
        spoils=("accumulation", "gradient"),
    ),
    "stepped-twice": Fault(
        "steps",
        "an optimizer stepped twice with the same gradients",
        "Step each optimizer once for each set of gradients",
        "07.6",
        spoils=("gradient",),
    ),
    "sum-not-mean": Fault(
        "accumulation",
        "the accumulated gradient is the sum over the micro-batches, not their mean: the learning rate is in effect that "
        "many times larger",
        "Divide each loss by the number of micro-batches before `backward()`",
        "07.4",
        "scaler.scale(loss / accumulate).backward()",
    ),
    "clipped-every-micro-batch": Fault(
        "clipping",
        "micro-batches were clipped one by one: their sum is not the clipped gradient of the big batch, and points in "
        "a different direction",
        "Clip once per update, after the last `backward()` and after unscaling",
        "07.4",
    ),
    "gradient-differs": Fault(
        "gradient",
        "the gradient is not that of the fp32 loss that you passed, beyond what rounding explains",
        "Compare the step's loss with the fp32 one, term by term: what is detached, computed from scaled values, or overflows "
        "in 16 bits?",
        "07.11",
    ),
    "wrong-factor": Fault(
        "accumulation",
        "the gradient has the right direction but the wrong size",
        "Look for a missing or a second division: by the number of micro-batches, by the batch size, by the scale",
        "07.4",
    ),
    "not-clipped": Fault(
        "clipping",
        "gradients with a norm far above max_norm reach the optimizer unclipped",
        "Clip after unscaling and before the step",
        "07.3",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
    ),
    "clipped-wrong": Fault(
        "clipping",
        "the norm after clipping is not max_norm",
        "Clip once per update, by the norm over all parameters of the optimizer",
        "07.3",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
    ),
    # the scaler does not work as it should
    "fp16-without-scaler": Fault(
        "loss scale",
        "the forward pass runs in fp16 and the loss is not scaled: gradients below 3e-8 become 0",
        "Scale the loss, or let autocast cast to bf16, which needs no scaler",
        "05.7",
        "scaler.scale(loss).backward()",
    ),
    "scaler-inside-step": Fault(
        "updates",
        "the step makes a new scaler each time: what it learns about the scale is thrown away with it",
        "Make one scaler before the loop",
        "06.3",
        "scaler = torch.amp.GradScaler(device)  # once, before the loop",
    ),
    "update-missing": Fault(
        "updates",
        "`scaler.update()` never ran: the scale cannot move, and the scaler takes the next update for the same one",
        "Update the scaler once per update, after every `scaler.step`",
        "06.3",
        "scaler.update()",
        spoils=("overflow",),
    ),
    "no-update-after-skip": Fault(
        "updates",
        "`scaler.update()` did not run after a skipped step: the scale that caused the overflow stays",
        "Update the scaler after `scaler.step` unconditionally; that is what lowers the scale",
        "05.5",
        "scaler.update()",
        spoils=("overflow",),
    ),
    "update-per-optimizer": Fault(
        "updates",
        "`scaler.update()` ran between the steps of two optimizers whose gradients were already there: after an overflow the "
        "second one's carry the old scale and are divided by the new one",
        "Update the scaler once, after `scaler.step` of the last optimizer",
        "07.6",
        "scaler.update()  # once, after the last scaler.step",
        spoils=("loss scale",),
    ),
    "update-every-micro-batch": Fault(
        "updates",
        "`scaler.update()` ran in every micro-batch: the scale may change inside a group, and gradients of two scales "
        "are added up",
        "Update the scaler once per update, after `scaler.step`",
        "07.4",
        "scaler.update()  # after scaler.step",
        spoils=("loss scale", "gradient"),
    ),
    "update-before-step": Fault(
        "updates",
        "`scaler.update()` ran between `backward()` and the step: the gradients carry the old scale, but are divided by the "
        "new one",
        "Update the scaler after `scaler.step`",
        "06.3",
        "scaler.update()  # after scaler.step",
        spoils=("loss scale", "gradient"),
    ),
    "updated-twice": Fault(
        "updates",
        "`scaler.update()` ran twice for one step",
        "Update the scaler once, after the last `scaler.step`",
        "06.3",
    ),
    # what autocast covers
    "autocast-left-open": Fault(
        "autocast",
        "autocast is still on after the step: everything that follows, evaluation too, would run in 16 bits, with "
        "casts of weights kept from before the update",
        "Use `with torch.autocast(…)`, which ends the region after an exception too",
        "06.2",
        "with torch.autocast(device, dtype=torch.float16):",
    ),
    "loss-outside-autocast": Fault(
        "autocast",
        "the loss function ran in 16 bits: inside the region autocast runs it in fp32, outside it takes its inputs' dtype",
        "Move the loss into the `with torch.autocast(…)` block, or cast its inputs",
        "06.2",
        "loss = loss_fn(outputs.float(), targets)",
    ),
    "backward-in-autocast": Fault(
        "backward",
        "`backward()` ran inside the autocast region. Most backward ops take the dtype of "
        "their forward op either way, but those of an fp32 island then run in 16 bits (pytorch#105682, pytorch#125186)",
        "End the `with torch.autocast(…)` block after the loss, before `backward()`",
        "06.2",
    ),
    "no-autocast": Fault(
        "autocast",
        "the loss is scaled, and nothing runs in 16 bits: no autocast region was entered, so there is nothing to gain",
        "Run the forward pass and the loss under autocast",
        "06.2",
        "with torch.autocast(device, dtype=torch.float16):",
    ),
    # the ends of groups, and the schedule
    "last-group-mean": Fault(
        "shorter last group",
        "the last, shorter group does not use its own mean",
        "Divide by the number of micro-batches (or examples) that the group really has",
        "07.4",
    ),
    "mean-of-means": Fault(
        "unequal micro-batches",
        "each micro-batch counts the same although their sizes differ: an example in a small one weighs more",
        "Weigh each micro-batch's mean by its share of the examples",
        "07.4",
        "loss = loss * len(inputs) / examples_in_group",
        spoils=("gradient",),
    ),
    "scheduler-never-moved": Fault(
        "scheduler",
        "the scheduler did not move",
        "Move it once per update (do not pass one that moves once per epoch)",
        "07.7",
        "scheduler.step()",
    ),
    "scheduler-stalls": Fault(
        "scheduler",
        "the scheduler does not move when the scale grows, although the step was taken",
        "Treat a step as skipped only if the scale fell",
        "07.7",
        "if scaler.get_scale() >= before: scheduler.step()",
    ),
    "scheduler-every-micro-batch": Fault(
        "scheduler",
        "the scheduler moved in every micro-batch and not once per update: the schedule ends too early",
        "Move it only where the optimizer steps",
        "07.7",
    ),
    "scheduler-moved-twice": Fault(
        "scheduler",
        "the scheduler moved more than once for a step of its optimizer",
        "Move it once per update",
        "07.7",
        "scheduler.step()",
    ),
    "scheduler-before-optimizer": Fault(
        "scheduler",
        "the scheduler moved before the optimizer stepped: the first rate of the schedule is never used",
        "Move it after the optimizer's step",
        "07.7",
        "scheduler.step()  # after scaler.step(optimizer)",
    ),
    "scheduler-ran-on": Fault(
        "scheduler",
        "the scheduler moved on although the step was skipped: the schedule runs ahead of the weights",
        "Compare the scale before and after `scaler.update()`: it fell if the step was skipped; then let the scheduler wait",
        "07.7",
        "if scaler.get_scale() >= before: scheduler.step()",
    ),
}
