"""Exercise 7 of chapter 10: one accuracy, to which every rank adds its part."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from amp_course.checking import Card, Case, Exercise, Mistake, families, read_number
from amp_course.distributed.ranks import call_on_rank, cases_on_ranks

card = Card(
    chapter="distributed",
    name="shared_accuracy",
    number=7,
    title="Evaluate on every rank",
    difficulty=3,
    importance=4,
    minutes=10,
    lines=13,
    task="Write `shared_accuracy(model, batches)`, which every rank calls. `model` is wrapped in "
    "DDP and has a batch norm; `batches` is this rank's own list of (inputs, targets). Ranks may "
    "have different numbers of batches, of any size, and a rank may have none. Evaluate in eval "
    "mode and without gradients, and leave the model in the mode in which it was. Return the "
    "accuracy over the samples of all ranks, from 0 to 1, a number that is the same on each.",
    hints=(
        "Rank 0 has 3 samples, all right; rank 1 has one, and it is wrong. The accuracy is 3/4, "
        "not 1/2. What do you have to add up, and in which dtype can you count?",
        "A call of `model` may send rank 0's buffers to the other ranks, in eval mode too, and "
        "then it waits for all of them. `model.module` is your model without DDP.",
        "Count right answers and samples as Python ints, in a loop with `model.module(inputs)`. "
        "Then `sums = torch.tensor([right, count])`, `dist.all_reduce(sums)` on every rank, and "
        "return `(sums[0] / sums[1]).item()`.",
    ),
    why="An evaluation on one rank makes all the others wait, and with DDP's wrapper it hangs. "
    "Counts that are added up are right for any split.",
    alternative="`dist.all_gather_object` of the pairs (right answers, samples), and plain Python.",
)


def right(model: Any, batches: list[Any]) -> float:
    training = model.training
    model.eval()
    hits = count = 0
    with torch.inference_mode():
        for inputs, targets in batches:
            hits += (model.module(inputs).argmax(dim=1) == targets).sum().item()
            count += len(targets)
    model.train(training)
    sums = torch.tensor([hits, count])  # int64
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


Part = list[tuple[int, int]]  # for each batch of a rank: samples, and how many of them are right
# Whether the model is in training mode, the parts of both ranks, the case in words
EVEN: list[tuple[bool, tuple[Part, Part], str]] = [
    (True, ([(40, 38), (24, 23)], [(30, 6), (6, 0)]), "with two batches on each rank"),
]
UNEVEN = [
    (
        False,
        ([(9, 2), (9, 3), (5, 5)], [(16, 15)]),
        "with three batches on rank 0 and one on rank 1",
    ),
    (True, ([(1500, 1203)], [(1500, 411), (1499, 480), (4, 3)]), "with 4,503 samples"),
]
EMPTY = [
    (True, ([(12, 7), (8, 8)], list[tuple[int, int]]()), "with no batch on rank 1"),
    (False, (list[tuple[int, int]](), [(7, 3)]), "with no batch on rank 0"),
]
MODE, GRADIENTS = "the mode in the forward pass", "the gradient mode in the forward pass"
WEIGHTS = "how the ranks' accuracies are weighted"
NAMES = {True: "train", False: "eval"}


def on_rank(answer: Callable[..., Any], seed: int, inputs: list[Any]) -> list[Case]:
    """Evaluate one model on this rank's batches, case by case."""
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    for tensor in filter(torch.is_floating_point, [*net.parameters(), *net.buffers()]):
        tensor.data = torch.rand(tensor.shape, generator=generator) - 0.5 * (tensor.dim() > 1)
    model, seen = DistributedDataParallel(net), set[tuple[bool, bool]]()
    rows = torch.randn(6000, 6, generator=generator)
    best = net.eval()(rows).detach().topk(2)
    clear = (best.values[:, 0] - best.values[:, 1]).argsort(descending=True)
    net.register_forward_hook(lambda *_: seen.add((net.training, torch.is_grad_enabled())))
    found = []
    for training, parts, case in inputs:
        batches, first = list[Any](), 0
        for samples, hits in parts[dist.get_rank()]:
            chosen = clear[first : first + samples]
            shift = (torch.arange(samples) >= hits).long()
            batches.append((rows[chosen], (best.indices[chosen, 0] + shift) % 4))
            first += samples
        model.train(training)
        before = [one.clone() for one in net.buffers()]
        seen.clear()
        number = read_number(call_on_rank(answer, case, model, batches), case)
        same = all(map(torch.equal, before, net.buffers()))
        outer, inner = NAMES[model.training], NAMES[net.training]
        modes = {NAMES[one] for one, _ in seen} if batches else {"eval"}
        outputs = {
            MODE: " and ".join(sorted(modes)) or "unknown, as the model never ran",
            GRADIENTS: "on" if any(on for _, on in seen) else "off",
            WEIGHTS: _weights(number, parts),
            "the accuracy": number,
            "the buffers after the call": "as before" if same else "changed",
            "the mode after the call": inner
            if inner == outer
            else f"{outer} for the wrapper and {inner} for `model.module`",
        }
        total = sum(n for part in parts for n, _ in part)
        found.append(Case(case, outputs, {"total": f"{total:,}", "number": f"{number:.4g}"}))
    return found


def _weights(number: float, parts: tuple[Part, Part]) -> str:
    totals = [[sum(one) for one in zip(*part, strict=True)] or [1, 0] for part in parts]
    mean = sum(hits / count for count, hits in totals) / 2
    return "all alike" if math.isclose(number, mean, rel_tol=1e-4) else "by their samples"


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Equal numbers of batches, other numbers, more samples than 16 bits can count, no samples."""
    seed, drawn = draw.randrange(10_000), list[Part]()
    for batches in (2, 1):
        sizes = [draw.randint(2, 40) for _ in range(batches)]
        drawn.append([(size, draw.randint(1, size)) for size in sizes])
    more = (True, tuple(drawn), "with drawn batches, two on rank 0 and one on rank 1")
    for inputs in (EVEN, [*UNEVEN, more], EMPTY):  # many wrong answers fail in the latter two
        yield from cases_on_ranks(on_rank, answer, seed, inputs)


TRAINING, EVAL, BACK = "training = model.training", "model.eval()", "model.train(training)"
OFF, COUNT = "with torch.inference_mode():", "count += len(targets)"
START = "hits = count = 0"
HITS = "hits += (model.module(inputs).argmax(dim=1) == targets).sum().item()"
SUMS, REDUCE = "sums = torch.tensor([hits, count])", "dist.all_reduce(sums)"
RETURN = "return (sums[0] / sums[1]).item()"
QUOTIENT = "return sums[0].item() / sums[1].item()"
ADD = "Add up the right answers and the samples of all ranks, then divide"
OWN, OWN_SAMPLES = families.DIVIDES_BY_ITS_OWN_SAMPLES

mistakes = [
    Mistake(
        *families.NO_EVAL,
        edits={EVAL: "pass"},
        violates="Evaluate in eval mode",
    ),
    Mistake(
        *families.GRADIENTS_ON,
        edits={OFF: "if True:"},
        violates="without gradients",
    ),
    *(
        Mistake(
            f"this rank's own{where}",
            f"each rank returns the accuracy of only its own samples. {ADD}",
            edits={REDUCE: "pass", RETURN: instead},
            violates="over the samples of all ranks",
        )
        for where, instead in (
            ("", RETURN),
            (", in Python", "return hits / count"),
            (", or 0", "return hits / count if count else 0.0"),
        )
    ),
    Mistake(
        "the mean of the ranks' accuracies",
        f"this is the mean of the ranks' accuracies, which ignores their numbers of samples. {ADD}",
        edits={SUMS: "sums = torch.tensor([hits / count, 1.0])"},
    ),
    *(
        Mistake(
            f"mean of accuracies{where}",
            "this is the mean of the batches' accuracies, so a small batch counts like a large "
            f"one. {ADD}",
            edits={
                HITS: HITS.replace(".sum()", ".float().mean()"),
                COUNT: "count += 1",
                SUMS: sums,
            },
            violates="of any size",
        )
        for where, sums in (
            ("", "sums = torch.tensor([hits, count], dtype=torch.float32)"),
            (", in int64 on an empty rank", SUMS),
        )
    ),
    *(
        Mistake(
            f"reduces in the loop{too}",
            "the all-reduce runs after each batch, so the counts that it has already added up are "
            "added up again. Call it once, after the loop",
            edits={
                START: "sums = torch.zeros(2)",
                HITS: HITS.replace("+=", "="),
                COUNT: f"sums += torch.tensor([hits, len(targets)])\n{REDUCE}",
                SUMS: "pass",
                REDUCE: after,
            },
        )
        for too, after in (("", "pass"), (" and after it", REDUCE))
    ),
    Mistake(
        "calls the wrapper",
        "a rank without batches does not call `model`, and the other waits in its first call "
        "forever: DDP sends rank 0's buffers there, in eval mode too. Call `model.module`, which "
        "sends nothing",
        edits={HITS: HITS.replace("model.module", "model")},
        violates="a rank may have none",
    ),
    Mistake(
        "an empty rank leaves",
        "a rank without batches does not call the all-reduce, and the other waits there forever. "
        "Let every rank call it, with 0 right answers of 0",
        edits={TRAINING: f"if not batches:\n    return 0.0\n{TRAINING}"},
        violates="which every rank calls",
    ),
    Mistake(
        "only rank 0 reduces",
        "only rank 0 calls the all-reduce, and waits there for the other forever. Every rank has "
        "to call a collective",
        edits={REDUCE: f"if dist.get_rank() == 0:\n    {REDUCE}"},
    ),
    Mistake(
        *families.REDUCES_TO_RANK_0,
        edits={REDUCE: "dist.reduce(sums, dst=0)"},
        violates="the same on each",
    ),
    *(
        Mistake(
            f"counts in {name}{where}",
            f"the counts are in {name}, where counts above {most} may be rounded, and a "
            f"quotient to {bits} bits. Count in int64 or fp32",
            edits={
                SUMS: f"sums = torch.tensor([hits, count], dtype=torch.{dtype})",
                RETURN: instead,
            },
        )
        for name, dtype, most, bits in (
            ("fp16", "float16", "2,048", 11),
            ("bf16", "bfloat16", "256", 8),
        )
        for where, instead in (("", RETURN), (", divided in Python", QUOTIENT))
    ),
    *(
        Mistake(f"{OWN}{where}", OWN_SAMPLES, edits={RETURN: f"return sums[0].item() / {count}"})
        for where, count in (("", "count"), (", or returns 0", "count if count else 0.0"))
    ),
    Mistake(
        "not divided",
        "this is the number of right answers. Divide it by the number of samples, {total}",
        edits={RETURN: "return sums[0].item()"},
        violates="from 0 to 1",
    ),
    Mistake(
        "left in eval mode",
        "the model was in training mode and is in eval mode now, so training goes on without "
        "batch statistics. Put the mode back",
        edits={BACK: "pass"},
        violates="the mode in which it was",
    ),
    Mistake(
        "always back to train mode",
        "the model was in eval mode and is in training mode now. Keep `model.training`, and put "
        "that back",
        edits={BACK: "model.train()"},
    ),
]

shared_accuracy = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-5,
    messages={
        WEIGHTS: "{case}, your {number} is the mean of the ranks' accuracies, which ignores "
        f"their numbers of samples. {ADD}"
    },
)
