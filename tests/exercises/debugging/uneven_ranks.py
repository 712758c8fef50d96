"""Answers to `uneven_ranks`, written without a look at its table of mistakes."""

import itertools

import torch
import torch.distributed as dist
from torch.nn import functional as F

from amp_course.checking import edited
from amp_course.debugging.clinic.causes import cause


def counts_of_all(model, epochs, optimizer, scaler):
    cause("ranks-with-different-counts")
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, [len(batches) for batches in epochs])
    for batches, counts in zip(epochs, zip(*everybody, strict=True), strict=True):
        for x, y in itertools.islice(batches, min(counts)):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                output = model(x)
            scaler.scale(F.cross_entropy(output.float(), y)).backward()
            scaler.step(optimizer)
            scaler.update()


def asks_before_each(model, epochs, optimizer, scaler):
    cause("ranks-with-different-counts")
    for batches in epochs:
        batches = iter(batches)
        while True:
            batch = next(batches, None)
            more = torch.tensor([float(batch is not None)])
            dist.all_reduce(more)
            if more < dist.get_world_size():
                break
            with torch.autocast("cpu", torch.half):
                loss = F.cross_entropy(model(batch[0]), batch[1])
            model.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()


def joins_if_even(model, epochs, optimizer, scaler):
    cause("ranks-with-different-counts")
    for batches in epochs:
        fewest = torch.tensor([-len(batches)])
        dist.all_reduce(fewest, op=dist.ReduceOp.MAX)
        with model.join():
            for x, y in batches[: -int(fewest)]:
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = F.cross_entropy(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


def mean_of_counts(model, epochs, optimizer, scaler):
    cause("ranks-with-different-counts")
    for batches in epochs:
        count = torch.tensor([len(batches)])
        dist.all_reduce(count)
        for x, y in batches[: int(count) // 2]:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


NAMED = 'cause("ranks-with-different-counts")'
UPDATE = "scaler.update()"
CUT = "for x, y in itertools.islice(batches, min(counts)):"
LOSS = "loss = F.cross_entropy(model(batch[0]), batch[1])"
NLL = "logits = model(batch[0])\nloss = F.nll_loss(logits.log_softmax(-1), batch[1])"
RIGHT = {
    "gathers the counts": counts_of_all,
    "asks before each batch": asks_before_each,
    "joins as well": joins_if_even,
    "nll_loss of log_softmax": edited(asks_before_each, {LOSS: NLL}),
}
WRONG = {
    "another cause": (edited(counts_of_all, {NAMED: 'cause("ranks-with-different-scales")'}), None),
    "no cause": (edited(asks_before_each, {NAMED: "pass"}), None),
    "an unknown cause": (edited(asks_before_each, {NAMED: 'cause("bad luck")'}), None),
    "no cause, and the count of rank 0": (
        edited(counts_of_all, {NAMED: "pass", CUT: CUT.replace("min(counts)", "counts[0]")}),
        None,
    ),
    "one batch less": (
        edited(counts_of_all, {CUT: CUT.replace("min(counts)", "min(counts) - 1")}),
        None,
    ),
    "all batches": (edited(counts_of_all, {CUT: CUT.replace("min(counts)", "None")}), None),
    "the mean": (mean_of_counts, "the largest count"),
    "the mean of all counts": (
        edited(counts_of_all, {CUT: CUT.replace("min(counts)", "sum(counts) // 2")}),
        None,
    ),
    "the smallest of all epochs": (
        edited(counts_of_all, {CUT: CUT.replace("min(counts)", "min(map(min, everybody))")}),
        "the smallest count of all epochs",
    ),
    "never clears": (edited(counts_of_all, {"optimizer.zero_grad()": "pass"}), "never clears"),
    "no update": (edited(counts_of_all, {UPDATE: "pass"}), None),
    "joins with all": (
        edited(joins_if_even, {"for x, y in batches[: -int(fewest)]:": "for x, y in batches:"}),
        "unchanged",
    ),
    "leaves where it has no more": (
        edited(
            asks_before_each,
            {"batch = next(batches, None)": "batch = next(batches, None)\nif not batch: break"},
        ),
        None,
    ),
}


def the_smallest_count(model, epochs, optimizer, scaler):
    cause("ranks-with-different-counts")
    for batches in epochs:
        count = torch.tensor(len(batches))
        dist.all_reduce(count, op=dist.ReduceOp.MIN)
        for x, y in batches[: int(count)]:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


MIN = "dist.all_reduce(count, op=dist.ReduceOp.MIN)"
SIBLINGS = {
    "the smallest count, unused": (
        edited(the_smallest_count, {"for x, y in batches[: int(count)]:": "for x, y in batches:"}),
        "the largest count",
        "not with MAX",
    ),
    "the sum of the counts": (
        edited(the_smallest_count, {MIN: "dist.all_reduce(count)"}),
        "the largest count",
        "the agreed count",
    ),
}
