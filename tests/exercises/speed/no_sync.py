"""Answers to `no_sync`, written without a look at its table of mistakes."""

import math

import torch

from amp_course.checking import edited


def on_the_device(step, batches, every, log):
    zero = torch.zeros(())
    state = zero, zero, zero - math.inf
    for number, batch in enumerate(batches, start=1):
        loss = step(batch).detach()
        fine = loss.isfinite()
        total, count, largest = state
        state = (
            total + loss.where(fine, 0),
            count + fine,
            torch.maximum(largest, loss.where(fine, -math.inf)),
        )
        if not number % every:
            total, count, largest = torch.stack(state).cpu()
            log(number, float(total / count), largest.item(), int(every - count))
            state = zero, zero, zero - math.inf


def by_mask(step, batches, every, log):
    for first in range(0, len(batches) - every + 1, every):
        losses = torch.stack([step(batch).detach() for batch in batches[first : first + every]])
        finite = losses[losses.isfinite()]
        log(number=first + every, mean=finite.mean(), largest=finite.max(), bad=every - len(finite))
    for batch in batches[len(batches) // every * every :]:
        step(batch)


def in_one_buffer(step, batches, every, log):
    window = torch.empty(every)
    for number, batch in enumerate(batches):
        window[number % every] = step(batch).data
        if number % every == every - 1:
            values = window.numpy()
            good = values[[math.isfinite(one) for one in values]]
            log(number + 1, good.mean(), good.max(), values.size - good.size)


def classic(step, batches, every, log):
    total, worst, bad = 0.0, -math.inf, 0
    for number, batch in enumerate(batches, 1):
        loss = step(batch)
        if torch.isfinite(loss):
            total += loss.item()
            worst = max(worst, loss.item())
        else:
            bad += 1
        if number % every == 0:
            log(number, total / (every - bad), worst, bad)
            total, worst, bad = 0.0, -math.inf, 0


BUFFER = "window[number % every] = step(batch).data"
RIGHT = {
    "sums on the device": on_the_device,
    "a mask per window": by_mask,
    "a buffer": in_one_buffer,
}
GRAPHS = {
    BUFFER: BUFFER[:-5],
    "values = window.numpy()": "values = window.detach().numpy()\nwindow = torch.empty(every)",
}


def never_resets(step, batches, every, log):
    total, largest, bad = torch.zeros(()), torch.tensor(-math.inf), torch.zeros(())
    for number, batch in enumerate(batches, 1):
        loss = step(batch).detach()
        fine = loss.isfinite()
        total = total + torch.where(fine, loss, 0.0)
        largest = torch.maximum(largest, torch.where(fine, loss, -math.inf))
        bad = bad + ~fine
        if number % every == 0:
            summed, most, count = torch.stack([total, largest, bad]).tolist()
            log(number, summed / (every - count), most, int(count))


WRONG = {
    "never resets": (
        never_resets,
        "the sum of the run, over a line without the bad ones of the run",
    ),
    "not changed at all": (classic, "the loop unchanged"),
    "writes into a buffer, with its graph": (edited(in_one_buffer, GRAPHS), "keeps the graphs"),
    "a progress bar": (
        edited(in_one_buffer, {BUFFER: f"{BUFFER}\nf'loss {{window[0]:.2f}}'"}),
        "prints each loss",
    ),
    "looks at every third": (
        edited(in_one_buffer, {BUFFER: f"{BUFFER}\nif number % 3 == 2: window.sum().tolist()"}),
        "reads each loss",
    ),
    "no steps after the last line": (
        lambda step, batches, every, log: by_mask(step, batches[:18], every, log),
        None,
    ),
}
SIBLINGS = {
    "without gradients": (torch.no_grad()(by_mask), None, "AssertionError"),
}
