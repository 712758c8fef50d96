"""Answers to `resume_mid_accumulation`, written without a look at its table of mistakes."""

import torch

from amp_course.checking import edited


def save(path, *training):
    there = [
        (place, p.grad) for place, p in enumerate(training[0].parameters()) if p.grad is not None
    ]
    torch.save(
        ([part.state_dict() for part in training[:-1]], there, torch.tensor(training[-1])), path
    )


def load(path, *training):
    states, there, micro_step = torch.load(path)
    for part, state in zip(training, states, strict=True):
        part.load_state_dict(state)
    parameters = [*training[0].parameters()]
    for place, gradient in there:
        parameters[place].grad = gradient
    return micro_step


def wrong(line, instead):
    return save, edited(load, {line: instead})


THERE = (
    "there = [(place, p.grad) for place, p in enumerate(training[0].parameters()) if p.grad is "
    "not None]"
)
DIVIDED = edited(
    save, {THERE: f"scale = training[2].get_scale()\n{THERE.replace('p.grad)', 'p.grad / scale)')}"}
)
MEMORY: dict = {}
REMEMBERS = edited(save, {THERE: f"{THERE}\nMEMORY[0] = there"})
RECALLS = edited(load, {"for place, gradient in there:": "for place, gradient in MEMORY[0]:"})
SET = "parameters[place].grad = gradient"
RIGHT = {
    "by place": (save, load),
    "divided": [DIVIDED, edited(load, {SET: f"{SET} * training[2].get_scale()"})],
    "copied": wrong(SET, "parameters[place].grad = torch.empty_like(gradient).copy_(gradient)"),
}
WRONG = {
    "one place too far": (wrong(SET, "parameters[place - 1].grad = gradient"), None),
    "gradients not in the file": ((REMEMBERS, RECALLS), None),
    "divided": ((DIVIDED, load), "gradients unscaled in the file"),
}
