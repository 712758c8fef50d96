"""Answers to `shared_accuracy`, spelt in other ways than the course's own."""

import torch
import torch.distributed as dist

from amp_course.checking import edited


def by_objects(model, batches):
    was, net = model.training, model.module
    model.eval()
    with torch.inference_mode():
        right = [net(x).argmax(-1).eq(y) for x, y in batches]
    model.train(was)
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, (sum(int(r.sum()) for r in right), sum(map(len, right))))
    return sum(hits for hits, _ in parts) / sum(count for _, count in parts)


def all_at_once(model, batches):
    found = torch.zeros(2)
    mode = model.training
    if batches:
        model.eval()
        x, y = (torch.cat(one) for one in zip(*batches, strict=True))
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            found[0] = (model.module(x).max(dim=1).indices == y).sum()
        found[1] = len(y)
        model.train(mode)
    handle = dist.all_reduce(found, async_op=True)
    handle.wait()
    return found[0] / found[1]


def by_batch_sums(model, batches):
    modes = [(layer, layer.training) for layer in model.modules()]
    model.train(False)
    hits, count = torch.tensor(0), torch.tensor(0)
    for x, y in batches:
        with torch.no_grad():
            hits += (model.module(x).softmax(1).argmax(1) == y).sum()
        count += y.numel()
    for layer, mode in modes:
        layer.training = mode
    for number in (hits, count):
        dist.all_reduce(number)
    return hits.item() / count.item()


def joined(model, batches):
    longest = torch.tensor(len(batches))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    more = [(torch.zeros(0, 6), torch.zeros(0).long())] * (int(longest) - len(batches))
    was = model.training
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64)
    for x, y in [*batches, *more]:
        with torch.no_grad():
            sums += torch.tensor([(model(x).argmax(1) == y).sum(), len(y)])
    model.train(was)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def average(model, batches):
    was = model.training
    model.eval()
    with torch.no_grad():
        right = [(model.module(x).argmax(1) == y).float() for x, y in batches]
    model.train(was)
    mean = torch.cat(right).mean() if right else torch.tensor(0.0)
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def on_rank_0(model, batches):
    accuracy = torch.tensor(all_of(model, batches) if dist.get_rank() == 0 else 0.0)
    dist.broadcast(accuracy, src=0)
    return accuracy.item()


@torch.no_grad()
def all_of(model, batches):
    was = model.training
    model.eval()
    right = [(model(x).argmax(1) == y).float() for x, y in batches]
    model.train(was)
    return torch.cat(right).mean().item() if right else 0.0


FOUND, NO_GRAD = "found = torch.zeros(2)", "with torch.no_grad():"
CALL = "hits += (model.module(x).softmax(1).argmax(1) == y).sum()"
WRAPPED = CALL.replace(".module", "")
RETURN = "return hits.item() / count.item()"
IN_ONE = {
    "for number in (hits, count):": "both = torch.stack([hits, count])\nif True:",
    "dist.all_reduce(number)": "dist.all_reduce(both)",
    RETURN: "return (both[0] / both[1]).item()",
}
MODE, REDUCE = "layer.training = mode", "dist.all_reduce(number)"
RIGHT = {
    "all_gather_object": by_objects,
    "all at once, in bf16": all_at_once,
    "two sums": by_batch_sums,
    "the wrapper, equally often": joined,
}
COUNTED = "count += y.numel()"
LOOP = {
    "hits, count = torch.tensor(0), torch.tensor(0)": "both = torch.zeros(2)",
    CALL: "hits = (model.module(x).argmax(1) == y).sum()",
    COUNTED: f"both += torch.stack([hits, torch.tensor(len(y))])\n{IN_ONE[REDUCE]}",
    "for number in (hits, count):": "if True:",
    REDUCE: "pass",
    RETURN: "return (both[0] / both[1]).item()",
}
WRONG = {
    "reduces in the loop": (edited(by_batch_sums, LOOP), "reduces in the loop"),
    "the mean of the batches": (
        edited(
            by_batch_sums,
            {
                "hits, count = torch.tensor(0), torch.tensor(0)": "hits = count = torch.zeros(())",
                CALL: "hits = hits + (model.module(x).argmax(1) == y).float().mean()",
                COUNTED: "count = count + 1",
                **IN_ONE,
            },
        ),
        "mean of accuracies",
    ),
    "a mean of means": (average, None),
    "rank 0 evaluates alone, by the wrapper": (on_rank_0, None),
    "sums in fp16": (
        edited(all_at_once, {FOUND: "found = torch.zeros(2, dtype=torch.float16)"}),
        "counts in fp16",
    ),
    "the wrapper": (edited(by_batch_sums, {CALL: WRAPPED, **IN_ONE}), "calls the wrapper"),
    "the wrapper, then two sums": (edited(by_batch_sums, {CALL: WRAPPED}), "calls the wrapper"),
    "stays in eval mode": (edited(by_batch_sums, {MODE: "pass"}), "left in eval mode"),
    "with a graph": (edited(by_batch_sums, {NO_GRAD: "if True:"}), "gradients on"),
    "no reduction": (edited(by_batch_sums, {REDUCE: "pass"}), "this rank's own, in Python"),
    "no reduction, 0 without batches": (
        edited(by_batch_sums, {REDUCE: "pass", RETURN: f"{RETURN} if count else 0.0"}),
        "this rank's own, or 0",
    ),
    "reduces the right answers only, 0 without batches": (
        edited(
            by_batch_sums,
            {
                "for number in (hits, count):": "for number in (hits,):",
                RETURN: f"{RETURN} if count else 0.0",
            },
        ),
        "divides by this rank's samples, or returns 0",
    ),
    "bf16 counts": (
        edited(by_batch_sums, {REDUCE: "number.data = number.bfloat16()\ndist.all_reduce(number)"}),
        "counts in bf16, divided in Python",
    ),
}
SIBLINGS = {
    "reduces the right answers only": (
        edited(by_batch_sums, {"for number in (hits, count):": "for number in (hits,):"}),
        "divides by this rank's samples",
        "mean",
    ),
}
