"""Answers to `agreed_step`, spelt in other ways than the course's own."""

import torch
import torch.distributed as dist


def grads_of(optimizer):
    return [
        p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
    ]


def by_objects(optimizer, scale):
    grads = grads_of(optimizer)
    fine = all(bool(torch.isfinite(grad).all()) for grad in grads)
    every = [None, None]
    dist.all_gather_object(every, fine)
    if all(every):
        for grad in grads:
            grad /= scale
        optimizer.step()
    return all(every)


def by_sum(optimizer, scale):
    bad = torch.zeros(1, dtype=torch.int64)
    for grad in grads_of(optimizer):
        grad.mul_(1 / scale)
        bad += (~grad.isfinite()).sum()
    dist.all_reduce(bad)
    if bad.item():
        return False
    optimizer.step()
    return True


def by_min(optimizer, scale):
    fine = torch.ones(())
    for grad in grads_of(optimizer):
        torch._foreach_div_([grad], scale)
        fine *= grad.isfinite().all()
    handle = dist.all_reduce(fine, op=dist.ReduceOp.MIN, async_op=True)
    handle.wait()
    if fine:
        optimizer.step()
    return fine.bool()


def by_scaler(optimizer, scale):
    found, inverse = torch.zeros(1), torch.tensor([1 / scale])
    if grads := grads_of(optimizer):
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    stepped = found.item() == 0
    if stepped:
        optimizer.step()
    return stepped


def by_norm_of_the_mean(optimizer, scale):
    total = torch.zeros(())
    for grad in grads_of(optimizer):
        grad.div_(scale)
        total += grad.sum()
    dist.all_reduce(total)
    if total > 0:
        optimizer.step()
    return bool(total > 0)


def agrees_after_the_return_value(optimizer, scale):
    grads = grads_of(optimizer)
    for grad in grads:
        grad.div_(scale)
    fine = all(grad.isfinite().all() for grad in grads)
    flag = torch.tensor(float(fine))
    dist.all_reduce(flag)
    if flag == 2:
        optimizer.step()
    return fine


def zeroes_them_out(optimizer, scale):
    for grad in grads_of(optimizer):
        grad.div_(scale).nan_to_num_(0.0, 0.0, 0.0)
    dist.barrier()
    optimizer.step()
    return True


def raises_where_it_is_bad(optimizer, scale):
    grads = grads_of(optimizer)
    if not all(grad.isfinite().all() for grad in grads):
        raise OverflowError("inf")
    return by_sum(optimizer, scale)


def assumes_gradients(optimizer, scale):
    grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
    torch._foreach_div_(grads, scale)
    return by_sum(optimizer, 1.0)


def by_the_norm(optimizer, scale):
    grads = grads_of(optimizer)
    for grad in grads:
        grad.div_(scale)
    square = torch.stack([torch.zeros(()), *(grad.pow(2).sum() for grad in grads)]).sum()
    dist.all_reduce(square)
    if square.isfinite():
        optimizer.step()
    return bool(square.isfinite())


def leaves_with_an_inf(optimizer, scale):
    for grad in grads_of(optimizer):
        grad.div_(scale)
        if not grad.isfinite().all():
            return False
    return by_sum(optimizer, 1.0)


def largest(optimizer, scale):
    most = torch.zeros(1)
    for grad in grads_of(optimizer):
        grad.div_(scale)
        most = torch.maximum(most, grad.abs().max())
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    if most.isfinite():
        optimizer.step()
    return most.isfinite()


def ends_the_group(optimizer, scale):
    stepped = by_sum(optimizer, scale)
    dist.destroy_process_group()
    return stepped


RIGHT = {
    "all_gather_object": by_objects,
    "counts with SUM": by_sum,
    "MIN": by_min,
    "GradScaler's own op": by_scaler,
}


def mean_of_flags(optimizer, scale):
    grads = [
        p.grad.div_(scale)
        for group in optimizer.param_groups
        for p in group["params"]
        if p.grad is not None
    ]
    flag = torch.tensor(0.0 if all(grad.isfinite().all() for grad in grads) else 1.0)
    dist.all_reduce(flag)
    taken = bool(flag / dist.get_world_size() < 1)
    optimizer.step() if taken else None
    return taken


def by_their_sums(optimizer, scale):
    grads = [
        p.grad.div_(scale)
        for group in optimizer.param_groups
        for p in group["params"]
        if p.grad is not None
    ]
    flag = torch.tensor(0.0 if all(grad.sum().isfinite() for grad in grads) else 1.0)
    dist.all_reduce(flag)
    optimizer.step() if flag == 0 else None
    return flag == 0


def largest_in_python(optimizer, scale):
    most = torch.zeros(1)
    for grad in grads_of(optimizer):
        grad.div_(scale)
        most = max(most, grad.abs().max().view(1))
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    if most.isfinite():
        optimizer.step()
    return most.isfinite()


def steps_then_decides(optimizer, scale):
    bad = torch.zeros(1)
    for grad in grads_of(optimizer):
        grad /= scale
        bad += (~grad.isfinite()).sum()
    optimizer.step()
    dist.all_reduce(bad)
    return bad.item() == 0


WRONG = {
    "steps, then decides": (steps_then_decides, "steps whatever was found"),
    "the mean of the flags": (mean_of_flags, "skips only if all found one"),
    "their sums": (by_their_sums, "judges by the norm"),
    "steps if a sum is positive": (by_norm_of_the_mean, None),
    "returns its own finding": (agrees_after_the_return_value, "returns what this rank found"),
    "writes zeros for inf": (zeroes_them_out, None),
    "raises on one rank": (raises_where_it_is_bad, None),
    "takes gradients for granted": (assumes_gradients, None),
    "judges by the norm of all": (by_the_norm, "judges by the norm"),
    "leaves with an inf": (leaves_with_an_inf, "a rank with an inf leaves"),
    "the largest": (largest, "MAX of the gradients"),
    "ends the group": (ends_the_group, None),
}
SIBLINGS = {
    "the largest, by Python's max": (
        largest_in_python,
        "misses NaN",
        "`isfinite()` is False for inf and for NaN",
    ),
}
