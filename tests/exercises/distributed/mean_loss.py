"""Answers to `mean_loss`, spelt in other ways than the course's own."""

import math

import torch
import torch.distributed as dist


def by_objects(loss, samples):
    pairs = [None] * dist.get_world_size()
    dist.all_gather_object(pairs, (float(loss), samples))
    return sum(mean * count for mean, count in pairs if count) / sum(count for _, count in pairs)


def by_gathering(loss, samples):
    mine = torch.stack(
        [
            loss.double() if samples else loss.double() * 0,
            torch.tensor(float(samples), dtype=torch.float64),
        ]
    )
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    means, counts = torch.stack(every).T
    return ((means * counts)[counts > 0].sum() / counts.sum()).item()


def reduce_and_broadcast(loss, samples):
    total = torch.zeros(1) if samples == 0 else loss.float().reshape(1) * samples
    count = torch.tensor([samples])
    for tensor in (total, count):
        dist.reduce(tensor, dst=0)
        dist.broadcast(tensor, src=0)
    return float(total / count)


def two_calls_that_wait(loss, samples):
    total = torch.where(torch.tensor(samples > 0), loss.float() * samples, torch.zeros(()))
    count = torch.tensor(float(samples))
    handles = [dist.all_reduce(one, async_op=True) for one in (total, count)]
    for handle in handles:
        handle.wait()
    return (total / count).item()


def leaves_out_the_empty_ones(loss, samples):
    if not samples:
        return math.nan
    return by_objects(loss, samples)


def in_fp16(loss, samples):
    sums = torch.stack(
        [loss * samples if samples else loss.new_zeros(()), loss.new_tensor(samples)]
    )
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def averages(loss, samples):
    mean = loss.float().nan_to_num()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def counts_ranks_that_have_samples(loss, samples):
    sums = torch.tensor([loss.item() if samples else 0.0, float(samples > 0)])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def returns_a_tensor_of_both(loss, samples):
    sums = torch.tensor([float(loss) * samples if samples else 0.0, float(samples)])
    dist.all_reduce(sums)
    return sums


def raises_on_the_empty_rank(loss, samples):
    assert samples > 0
    return by_objects(loss, samples)


def hides_nan(loss, samples):
    total = torch.nan_to_num(loss.float()) * samples
    count = torch.tensor(float(samples))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return float(total / count)


def asks_for_nan(loss, samples):
    if loss.isnan():
        loss, samples = torch.zeros(()), 0
    return two_calls_that_wait(loss, samples)


def product_in_fp16(loss, samples):
    total = loss * samples if samples else torch.zeros(())
    return two_calls_that_wait(total.float() / max(samples, 1), samples)


def count_not_reduced(loss, samples):
    total = loss.float() * samples if samples else torch.zeros(())
    dist.all_reduce(total)
    return total / samples


def count_not_reduced_or_0(loss, samples):
    total = torch.tensor(loss.item() * samples if samples else 0.0)
    dist.all_reduce(total)
    return total.item() / samples if samples else 0.0


def sum_in_fp16(loss, samples):
    total = loss * samples if samples else loss.new_zeros(())
    count = torch.tensor(samples)
    dist.all_reduce(total)
    dist.all_reduce(count)
    return (total / count).item()


def reduces_to_rank_0(loss, samples):
    total, count = (
        torch.tensor([loss.item() * samples if samples else 0.0]),
        torch.tensor([samples]),
    )
    dist.reduce(total, 0)
    dist.reduce(count, 0)
    return (total / count).item()


RIGHT = {
    "all_gather_object": by_objects,
    "all_gather": by_gathering,
    "reduce and broadcast": reduce_and_broadcast,
    "two all-reduces that run at once": two_calls_that_wait,
}
WRONG = {
    "an empty rank leaves": (leaves_out_the_empty_ones, None),
    "sums in fp16": (in_fp16, "sums in the loss's dtype"),
    "a mean of means without NaN": (averages, "the mean of the means"),
    "a mean over the ranks that have samples": (
        counts_ranks_that_have_samples,
        "the mean of the means",
    ),
    "both sums": (returns_a_tensor_of_both, None),
    "raises on one rank": (raises_on_the_empty_rank, None),
    "hides a NaN": (hides_nan, "hides a NaN that counts"),
    "asks for NaN": (asks_for_nan, "leaves out a rank with NaN"),
    "the product in fp16": (product_in_fp16, "multiplies in the loss's dtype"),
    "the count is not reduced": (count_not_reduced, "divides by this rank's samples"),
    "the count is not reduced, or 0": (
        count_not_reduced_or_0,
        "divides by this rank's samples, or returns 0",
    ),
    "the sum in fp16": (sum_in_fp16, "the sum in the loss's dtype"),
    "reduces to rank 0": (reduces_to_rank_0, "reduces to rank 0"),
    "its own": (lambda loss, samples: float(loss), "this rank's own"),
}
