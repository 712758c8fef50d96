"""Answers to `clip_sharded`, spelt in other ways than the course's own."""

import torch
import torch.distributed as dist


def in_fp64(grads, max_norm):
    total = torch.tensor(
        sum((float((grad.double() ** 2).sum()) for grad in grads), 0.0), dtype=torch.float64
    )
    dist.all_reduce(total)
    norm = total.sqrt()
    for grad in grads:
        grad.mul_(min(1.0, float(max_norm / norm)) if norm > 0 else 1.0)
    return norm


def by_norms(grads, max_norm):
    own = torch.linalg.vector_norm(
        torch.cat([grad.flatten().float() for grad in grads] or [torch.zeros(1)])
    )
    every = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    norm = torch.stack(every).norm().item()
    if norm > max_norm:
        torch._foreach_mul_(grads, max_norm / norm) if grads else None
    return norm


def by_objects(grads, max_norm):
    squares = [None, None]
    dist.all_gather_object(squares, sum(grad.float().pow(2).sum().item() for grad in grads))
    norm = sum(squares) ** 0.5
    for grad in grads:
        if norm > max_norm:
            grad.copy_(grad.float() * (max_norm / norm))
    return norm


def as_torch_does(grads, max_norm):
    own = torch.nn.utils.get_total_norm([grad.float() for grad in grads] or [torch.zeros(1)])
    dist.all_reduce(total := own.square())
    norm = total.sqrt()
    for grad in grads:
        grad.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return norm.item()


def clips_first(grads, max_norm):
    own = by_norm(grads)
    for grad in grads:
        grad.mul_(min(1.0, max_norm / (own + 1e-12)))
    total = torch.tensor(by_norm(grads) ** 2)
    dist.all_reduce(total)
    return total.sqrt().item()


def by_norm(grads):
    return sum(grad.float().pow(2).sum().item() for grad in grads) ** 0.5


def halves_of_the_limit(grads, max_norm):
    limit = max_norm / dist.get_world_size() ** 0.5
    norm = by_norm(grads)
    for grad in grads:
        grad.mul_(min(1.0, limit / max(norm, 1e-30)))
    total = torch.tensor(norm**2)
    dist.all_reduce(total)
    return total.sqrt().item()


def clip(
    grads,
    max_norm,
    own=lambda grads: torch.tensor(by_norm(grads) ** 2),
    factor=lambda norm, most: min(1.0, most / norm) if norm else 1,
):
    total = own(grads)
    dist.all_reduce(total)
    norm = total.float().sqrt().item()
    for grad in grads:
        grad.mul_(factor(norm, max_norm))
    return norm


def replaces(grads, max_norm):
    norm = clip(grads, 1e30)
    for place, grad in enumerate(grads):
        grads[place] = grad * min(1.0, max_norm / max(norm, 1e-30))
    return norm


def norms_in_fp16(grads, max_norm):
    return clip(
        grads,
        max_norm,
        lambda grads: sum((grad.norm().float() ** 2 for grad in grads), torch.zeros(())),
    )


def sum_in_fp16(grads, max_norm):
    return clip(grads, max_norm, lambda grads: torch.tensor(by_norm(grads) ** 2).half())


def divides_by_0(grads, max_norm):
    return clip(grads, max_norm, factor=lambda norm, most: min(1.0, most / norm))


def always(grads, max_norm):
    return clip(grads, max_norm, factor=lambda norm, most: most / norm)


def always_in_tensors(grads, max_norm):
    return clip(grads, max_norm, factor=lambda norm, most: most / torch.tensor(norm))


def by_its_own(grads, max_norm):
    own, norm = by_norm(grads), clip(grads, 1e30)
    for grad in grads:
        grad *= min(1.0, max_norm / (own + 1e-6))
    return norm


def reduces_to_rank_0(grads, max_norm):
    total = torch.tensor(by_norm(grads) ** 2)
    dist.reduce(total, dst=0)
    norm = total.sqrt().item()
    for grad in grads:
        grad *= min(1.0, max_norm / (norm + 1e-6))
    return norm


def stacks(grads, max_norm):
    total = torch.stack([grad.float().norm() for grad in grads]).square().sum()
    dist.all_reduce(total)
    norm = total.sqrt().item()
    for grad in grads:
        grad.mul_(min(1.0, max_norm / norm))
    return norm


def largest_element(grads, max_norm):
    largest = torch.tensor(max((grad.abs().max().item() for grad in grads), default=0.0))
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest.item()


def sums_tensors(grads, max_norm):
    for grad in grads:
        dist.all_reduce(grad)
    return by_norm(grads)


RIGHT = {
    "in fp64": in_fp64,
    "the norm of the norms": by_norms,
    "all_gather_object": by_objects,
    "as clip_grad_norm_": as_torch_does,
}


def adds_norms(grads, max_norm):
    norm = torch.tensor([sum((grad.float().norm().item() for grad in grads), 0.0)])
    dist.all_reduce(norm)
    for grad in grads if norm > max_norm else ():
        grad.mul_(max_norm / norm)
    return norm


def some_clip(grads, max_norm):
    squares = torch.tensor(sum((grad.double().square().sum().item() for grad in grads), 0.0))
    above = squares.sqrt() > max_norm
    dist.all_reduce(squares)
    for grad in grads if above else ():
        grad.mul_(max_norm / squares.sqrt())
    return squares.sqrt().item()


def by_its_own_if_all_is_above(grads, max_norm):
    own, norm = by_norm(grads), clip(grads, 1e30)
    for grad in grads if norm > max_norm else ():
        grad *= max_norm / own
    return norm


def each_by_its_own(grads, max_norm):
    norm = clip(grads, 1e30)
    for grad in grads if norm > max_norm else ():
        grad.copy_(grad.float() * max_norm / torch.linalg.vector_norm(grad.float()))
    return norm


WRONG = {
    "by its own norm, if that of all is above": (
        by_its_own_if_all_is_above,
        "clips by its own norm, if that of all is too large",
    ),
    "each by its own norm": (
        each_by_its_own,
        "clips each parameter, if the norm of all is too large",
    ),
    "norms are added up": (adds_norms, "sum of norms"),
    "looks at its own": (some_clip, "decides by its own norm"),
    "clips, then measures": (clips_first, None),
    "an equal share of the limit": (halves_of_the_limit, None),
    "stacks what may be empty": (stacks, None),
    "the largest element": (largest_element, None),
    "adds up the gradients": (sums_tensors, None),
    "replaces the list's entries": (replaces, "replaces the tensors"),
    "norms in fp16": (norms_in_fp16, "the norm of each tensor in fp16"),
    "the sum in fp16": (sum_in_fp16, "the sum travels in fp16"),
    "divides by 0": (divides_by_0, None),
    "always": (always, "always to max_norm, even a norm of 0"),
    "always, in tensors": (always_in_tensors, "always to max_norm, even a norm of 0, in tensors"),
    "by its own norm": (by_its_own, "clips by its own norm"),
    "reduces to rank 0": (reduces_to_rank_0, "reduces to rank 0"),
}


def reduces_each(grads, max_norm):
    total = torch.zeros(())
    for grad in grads:
        square = grad.float().square().sum()
        dist.all_reduce(square)
        total += square
    for grad in grads if total.sqrt() > max_norm else ():
        grad *= max_norm / total.sqrt()
    return total.sqrt()


SIBLINGS = {
    "an all-reduce for each tensor": (reduces_each, "an empty rank leaves", "returns before"),
}
