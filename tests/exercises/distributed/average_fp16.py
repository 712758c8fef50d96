"""Answers to `average_fp16`, spelt in other ways than the course's own."""

import math

import torch
import torch.distributed as dist


def by_power_of_two(gradient, group):
    ranks = dist.get_world_size(group)
    largest = gradient.abs().max().double()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    if not math.isfinite(largest) or largest == 0:
        exponent = 0
    else:
        exponent = 14 - math.frexp(largest.item())[1] - math.ceil(math.log2(ranks))
    short = torch.ldexp(gradient.double(), torch.tensor(exponent)).half()
    dist.all_reduce(short, group=group)
    return torch.ldexp(short.double() / ranks, torch.tensor(-exponent)).float()


def by_gathering(gradient, group):
    ranks = dist.get_world_size(group)
    size = gradient.abs().max().clamp(min=1e-35)
    short = (gradient / size * 1000).half()
    parts = [torch.empty_like(short) for _ in range(ranks)]
    sizes = [torch.empty_like(size) for _ in range(ranks)]
    dist.all_gather(parts, short, group=group)
    dist.all_gather(sizes, size, group=group)
    return (
        sum(part.double() * one for part, one in zip(parts, sizes, strict=False))
        .div(1000 * ranks)
        .float()
    )


def with_a_safe_largest(gradient, group):
    largest = gradient.abs().amax().reshape(1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group)
    largest = torch.where(largest > 0, largest, torch.ones(1))
    ranks = dist.get_world_size(group=group)
    unit = gradient / largest * (30_000 / ranks)
    half = unit.to(torch.float16)
    dist.all_reduce(half, group=group)
    return half.to(torch.float32) / 30_000 * largest


def scales_by_own(gradient, group):
    largest = gradient.abs().max().clamp(min=1e-35)
    short = (gradient / largest).half()
    dist.all_reduce(short, group=group)
    return short.float() * largest / dist.get_world_size(group)


def adds_up_the_halves(gradient, group):
    short = (gradient / dist.get_world_size(group)).half()
    dist.all_reduce(short, group=group)
    return short.float()


def clamps(gradient, group):
    short = gradient.clamp(-3e4, 3e4).half()
    dist.all_reduce(short, group=group)
    return short.float() / dist.get_world_size(group)


def too_much_in_fp32(gradient, group):
    mean = gradient.clone()
    dist.all_reduce(mean, group=group)
    return mean / dist.get_world_size(group)


def with_avg(gradient, group):
    dist.all_reduce(gradient, op=dist.ReduceOp.AVG, group=group)
    return gradient


def two_parts(gradient, group):
    ranks = dist.get_world_size(group)
    high = gradient.bfloat16()
    low = (gradient - high.float()).bfloat16()
    for part in (high, low):
        dist.all_reduce(part, group=group)
    return (high.float() + low.float()) / ranks


def by_the_norm(gradient, group):
    square = gradient.double().square().sum()
    dist.all_reduce(square, op=dist.ReduceOp.MAX, group=group)
    ranks = dist.get_world_size(group)
    factor = 2.0**15 / square.sqrt().clamp(min=1e-300) / ranks
    short = (gradient.double() * factor).half()
    dist.all_reduce(short, group=group)
    return (short.double() / factor / ranks).float()


def average(
    gradient,
    group,
    size=lambda gradient: gradient.abs().max(),
    everywhere=None,
    reduced=None,
    target=2.0**14,
    back=None,
):
    largest = size(gradient)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=everywhere or group)
    ranks = dist.get_world_size(group)
    if largest == 0:
        return torch.zeros_like(gradient)
    short = (gradient * (target / largest / ranks)).half()
    dist.all_reduce(short, group=reduced or group)
    mean = short.float() * (largest / target)
    return back(mean) if back else mean


def without_abs(gradient, group):
    return average(gradient, group, lambda gradient: gradient.amax())


def of_the_mean(gradient, group):
    return average(gradient, group, lambda gradient: gradient.abs().mean())


def of_the_median(gradient, group):
    return average(gradient, group, lambda gradient: gradient.abs().median())


def largest_of_the_world(gradient, group):
    return average(gradient, group, everywhere=dist.group.WORLD)


def a_barrier_of_the_world(gradient, group):
    dist.barrier()
    return average(gradient, group)


def no_room(gradient, group):
    return average(gradient, group, target=1.2e5)


def added_epsilon(gradient, group):
    return average(gradient, group, lambda gradient: gradient.abs().max() + 1e-8)


def clamped_epsilon(gradient, group):
    return average(gradient, group, lambda gradient: gradient.abs().max().clamp(min=1e-10))


def zeros_return_early(gradient, group):
    if gradient.abs().max() == 0:
        return gradient
    return average(gradient, group)


def hides(gradient, group):
    return average(
        gradient, group, back=lambda mean: torch.where(mean.isfinite(), mean, torch.zeros(()))
    )


def pickled_largest(gradient, group):
    sizes = [None] * dist.get_world_size(group)
    dist.all_gather_object(sizes, gradient.abs().max(), group=group)
    return average(gradient, group, size=lambda _: torch.stack(sizes).amax())


RIGHT = {
    "a pickled largest element": pickled_largest,
    "by the norm": by_the_norm,
    "a power of two": by_power_of_two,
    "all_gather": by_gathering,
    "a safe largest element": with_a_safe_largest,
}


def smaller_on_others(gradient, group):
    """Takes the largest element of the group's first rank."""
    sizes = [torch.zeros(()) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, gradient.abs().max(), group=group)
    return average(gradient, group, size=lambda _: sizes[0].clone(), target=2.0**14)


def own_or_one(gradient, group):
    largest = gradient.abs().max()
    factor = 2.0**13 / (largest if largest else torch.ones(()))
    short = (gradient * factor).half()
    dist.all_reduce(short, group=group)
    return short.float() / factor / dist.get_world_size(group)


def row_by_row(gradient, group):
    for row in gradient:
        dist.all_reduce(row, group=group)
    return gradient / dist.get_world_size(group)


WRONG = {
    "row by row, in fp32": (row_by_row, None),
    "rank 0's scale": (smaller_on_others, "rank 0's largest"),
    "a scale of its own, or 1": (own_or_one, None),
    "a scale of its own": (scales_by_own, None),
    "divides first": (adds_up_the_halves, "divides before the cast"),
    "clamps": (clamps, None),
    "in fp32": (too_much_in_fp32, None),
    "an average that gloo lacks": (with_avg, None),
    "two bf16 parts": (two_parts, None),
    "amax without abs": (without_abs, "the largest without abs"),
    "the mean": (of_the_mean, "the mean and not the largest"),
    "the median": (of_the_median, "the mean and not the largest"),
    "MAX over the world": (largest_of_the_world, "the largest over all ranks"),
    "a barrier of the world": (a_barrier_of_the_world, None),
    "no room for the sum": (no_room, None),
    "an epsilon added": (added_epsilon, "an epsilon"),
    "an epsilon as a least value": (clamped_epsilon, "an epsilon"),
    "returns early": (zeros_return_early, "a rank with zeros leaves"),
    "hides what is not finite": (hides, "hides inf and NaN"),
}
