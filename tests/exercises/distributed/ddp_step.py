"""Answers to `ddp_step`, spelt in other ways than the course's own."""

import contextlib

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_


def by_flag(model, batches, loss_fn, optimizer, scaler, max_norm):
    for number, (x, y) in enumerate(batches):
        model.require_backward_grad_sync = number == len(batches) - 1
        with torch.autocast("cpu", torch.float16):
            output = model(x)
        scaler.scale(loss_fn(output, y) / len(batches)).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(
        [p for group in optimizer.param_groups for p in group["params"]], max_norm
    )
    scaler.step(optimizer)
    scaler.update()
    model.zero_grad()


def first_and_last(model, batches, loss_fn, optimizer, scaler, max_norm):
    optimizer.zero_grad(set_to_none=False)

    def backward(batch):
        with torch.autocast(device_type="cpu", dtype=torch.half):
            loss = loss_fn(model(batch[0]), batch[1])
        scaler.scale(loss).backward()

    *others, last = batches
    with model.no_sync():
        for batch in others:
            backward(batch)
    backward(last)
    scaler.unscale_(optimizer)
    for parameter in model.parameters():
        parameter.grad /= len(batches)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=False)


def in_one_region(model, batches, loss_fn, optimizer, scaler, max_norm):
    with contextlib.ExitStack() as stack, torch.autocast("cpu", dtype=torch.float16):
        if len(batches) > 1:
            stack.enter_context(model.no_sync())
        for number, (x, y) in enumerate(batches, 1):
            if number == len(batches):
                stack.close()
            scaler.scale(loss_fn(model(x), y).mul(1 / len(batches))).backward()
    scaler.unscale_(optimizer)
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    factor = min(1.0, max_norm / (norm.item() + 1e-6)) if norm.isfinite() else 1.0
    for p in model.parameters():
        p.grad.mul_(factor)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def all_in_one_batch(model, batches, loss_fn, optimizer, scaler, max_norm):
    first_and_last(
        model,
        [tuple(map(torch.cat, zip(*batches, strict=False)))],
        loss_fn,
        optimizer,
        scaler,
        max_norm,
    )


def reduces_by_hand(model, batches, loss_fn, optimizer, scaler, max_norm):
    with model.no_sync():
        for x, y in batches:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss / len(batches)).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def steps_each(model, batches, loss_fn, optimizer, scaler, max_norm):
    for batch in batches:
        first_and_last(model, [batch], loss_fn, optimizer, scaler, max_norm)


def no_clip_no_unscale(model, batches, loss_fn, optimizer, scaler, max_norm):
    for number, (x, y) in enumerate(batches, 1):
        with model.no_sync() if number < len(batches) else contextlib.nullcontext():
            with torch.autocast("cpu", dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss / len(batches)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def in_bf16(model, batches, loss_fn, optimizer, scaler, max_norm):
    for number, (x, y) in enumerate(batches, 1):
        with model.no_sync() if number < len(batches) else contextlib.nullcontext():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss / len(batches)).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def one_rank_stops(model, batches, loss_fn, optimizer, scaler, max_norm):
    if dist.get_rank() == 1 and len(batches) == 4:
        return
    by_flag(model, batches, loss_fn, optimizer, scaler, max_norm)


def steps(
    model,
    batches,
    loss_fn,
    optimizer,
    scaler,
    max_norm,
    *,
    clip=clip_grad_norm_,
    step=lambda scaler, optimizer: scaler.step(optimizer),
    start=None,
    end=None,
):
    if start:
        start(optimizer)
    for number, (x, y) in enumerate(batches):
        with contextlib.nullcontext() if number == len(batches) - 1 else model.no_sync():
            with torch.autocast("cpu", torch.float16):
                loss = loss_fn(model(x), y) / len(batches)
            scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(list(model.parameters()), max_norm)
    step(scaler, optimizer)
    scaler.update()
    (end or torch.optim.Optimizer.zero_grad)(optimizer)


def steps_past_the_scaler(*given):
    steps(*given, step=lambda scaler, optimizer: optimizer.step())


def clears_at_the_start(*given):
    steps(*given, start=lambda optimizer: optimizer.zero_grad(), end=lambda optimizer: None)


def clips_values(*given):
    steps(*given, clip=torch.nn.utils.clip_grad_value_)


def clips_parameters(*given):
    steps(*given, clip=lambda parameters, most: [clip_grad_norm_(one, most) for one in parameters])


def normalises(*given):
    def clip(parameters, most):
        norm = torch.nn.utils.get_total_norm([one.grad for one in parameters])
        for one in parameters:
            one.grad *= most / norm

    steps(*given, clip=clip)


RIGHT = {
    "the flag of DDP": by_flag,
    "the last one apart": first_and_last,
    "one region, an exit stack": in_one_region,
}


def by_ranks(model, batches, loss_fn, optimizer, scaler, max_norm):
    def mean_over_ranks(output, targets):
        return loss_fn(output, targets) * len(batches) / dist.get_world_size()

    by_flag(model, batches, mean_over_ranks, optimizer, scaler, max_norm)


def flag_off(model, *rest):
    model.require_backward_grad_sync = False
    steps(model, *rest)
    model.require_backward_grad_sync = True


WRONG = {
    "the flag is off": (flag_off, "never syncs"),
    "divided by the ranks": (by_ranks, "divides by the world size instead"),
    "one large batch": (all_in_one_batch, None),
    "sums over the ranks by hand": (reduces_by_hand, None),
    "a step for each micro-batch": (steps_each, None),
    "no clipping": (no_clip_no_unscale, "no clipping"),
    "in bf16": (in_bf16, None),
    "one rank returns early": (one_rank_stops, None),
    "steps past the scaler": (steps_past_the_scaler, "steps by hand"),
    "clears at the start": (clears_at_the_start, "clears only at the start"),
    "clips each element": (clips_values, "clips values"),
    "clips each parameter": (clips_parameters, "clips each parameter"),
    "normalises": (normalises, "always to max_norm"),
}
