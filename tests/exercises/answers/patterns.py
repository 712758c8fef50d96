import functools
import io
import os
import shutil
import tempfile

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


# --- 1. accumulate ----------------------------------------------------------------------------------------
def groups_of(batches, every):
    return [batches[start : start + every] for start in range(0, len(batches), every)]


def region(model, inputs, targets, loss_fn):
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        return loss_fn(model(inputs), targets)


def finish(model, optimizer, scaler, max_norm):
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def one_right(model, batches, loss_fn, optimizer, scaler, every, max_norm):
    for group in groups_of(batches, every):
        rows = sum(len(targets) for _, targets in group)
        for inputs, targets in group:
            loss = region(model, inputs, targets, loss_fn) * (len(targets) / rows)
            scaler.scale(loss).backward()
        finish(model, optimizer, scaler, max_norm)


def one_right_rows_at_the_end(model, batches, loss_fn, optimizer, scaler, every, max_norm):
    rows = 0
    optimizer.zero_grad()
    for number, (inputs, targets) in enumerate(batches, 1):
        rows += len(targets)
        scaler.scale(region(model, inputs, targets, loss_fn) * len(targets)).backward()
        if number % every == 0 or number == len(batches):
            scaler.unscale_(optimizer)
            for p in model.parameters():
                p.grad /= rows
            clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)
            rows = 0


def one_right_scaled_clip(model, batches, loss_fn, optimizer, scaler, every, max_norm):
    for group in groups_of(batches, every):
        rows = sum(len(targets) for _, targets in group)
        losses = [region(model, x, y, loss_fn) * len(y) for x, y in group]
        scaler.scale(sum(losses) / rows).backward()
        clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def one_each(model, batches, loss_fn, optimizer, scaler, every, max_norm):
    for inputs, targets in batches:
        scaler.scale(region(model, inputs, targets, loss_fn) / every).backward()
        finish(model, optimizer, scaler, max_norm)


def one_weighted(weigh, model, batches, loss_fn, optimizer, scaler, every, max_norm):
    for group in groups_of(batches, every):
        for inputs, targets in group:
            scaler.scale(region(model, inputs, targets, loss_fn) * weigh(group, targets)).backward()
        finish(model, optimizer, scaler, max_norm)


def one_mean_of_means(*arguments):
    one_weighted(lambda group, targets: 1 / len(group), *arguments)


def one_sum(*arguments):
    one_weighted(lambda group, targets: 1.0, *arguments)


def one_tail_by_every(model, batches, loss_fn, optimizer, scaler, every, max_norm):
    def share(group, targets):
        rows = sum(len(y) for _, y in group)
        return len(targets) / rows * len(group) / every

    one_weighted(share, model, batches, loss_fn, optimizer, scaler, every, max_norm)


def one_drops_tail(model, batches, loss_fn, optimizer, scaler, every, max_norm):
    rows = 0
    for number, (inputs, targets) in enumerate(batches, 1):
        rows += len(targets)
        scaler.scale(region(model, inputs, targets, loss_fn) * len(targets)).backward()
        if number % every == 0:
            scaler.unscale_(optimizer)
            for p in model.parameters():
                p.grad /= rows
            clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            rows = 0


def one_by_hand(after, end, model, batches, loss_fn, optimizer, scaler, every, max_norm):
    """The right loop with something after each backward, and an end of its own."""
    for group in groups_of(batches, every):
        rows = sum(len(targets) for _, targets in group)
        for inputs, targets in group:
            scaler.scale(region(model, inputs, targets, loss_fn) * (len(targets) / rows)).backward()
            after(model, optimizer, scaler, max_norm)
        end(model, optimizer, scaler, max_norm)


def nothing(*_):
    pass


def one_unscales_inside(*arguments):
    def stepped(model, optimizer, scaler, max_norm):
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    one_by_hand(lambda m, o, s, n: s.unscale_(o), stepped, *arguments)


def one_updates_inside(*arguments):
    one_by_hand(lambda m, o, s, n: s.update(), finish, *arguments)


def one_region_around_all(model, batches, loss_fn, optimizer, scaler, every, max_norm):
    with torch.autocast("cpu", dtype=torch.float16):
        one_right(model, batches, loss_fn, optimizer, scaler, every, max_norm)


def one_clears_inside(model, batches, loss_fn, optimizer, scaler, every, max_norm):
    for group in groups_of(batches, every):
        rows = sum(len(targets) for _, targets in group)
        for inputs, targets in group:
            optimizer.zero_grad()
            scaler.scale(region(model, inputs, targets, loss_fn) * (len(targets) / rows)).backward()
        finish(model, optimizer, scaler, max_norm)


def one_clips_scaled(*arguments):
    def end(model, optimizer, scaler, max_norm):
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    one_by_hand(nothing, end, *arguments)


def one_clips_inside(*arguments):
    def end(model, optimizer, scaler, max_norm):
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    def after(model, optimizer, scaler, max_norm):
        clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale() / 8)

    one_by_hand(after, end, *arguments)


def one_no_clip(model, batches, loss_fn, optimizer, scaler, every, max_norm):
    one_right(model, batches, loss_fn, optimizer, scaler, every, 1e9)


def one_never_clears(*arguments):
    def end(model, optimizer, scaler, max_norm):
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()

    one_by_hand(nothing, end, *arguments)


def one_clears_if_stepped(*arguments):
    def end(model, optimizer, scaler, max_norm):
        before = scaler.get_scale()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            optimizer.zero_grad()

    one_by_hand(nothing, end, *arguments)


def one_plain_step(*arguments):
    def end(model, optimizer, scaler, max_norm):
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        scaler.update()
        optimizer.zero_grad()

    one_by_hand(nothing, end, *arguments)


def one_no_update(*arguments):
    def end(model, optimizer, scaler, max_norm):
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        optimizer.zero_grad()

    one_by_hand(nothing, end, *arguments)


def one_right_clears_first(model, batches, loss_fn, optimizer, scaler, every, max_norm):
    for group in groups_of(batches, every):
        optimizer.zero_grad()
        rows = sum(len(targets) for _, targets in group)
        for inputs, targets in group:
            scaler.scale(region(model, inputs, targets, loss_fn) * (len(targets) / rows)).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()


# --- 2. two_optimizers ------------------------------------------------------------------------------------
def both_losses(body, heads, inputs, targets, loss_fn):
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        features = body(inputs)
        return [loss_fn(head(features), target) for head, target in zip(heads, targets, strict=True)]


def two_backward(losses, scaler):
    scaler.scale(losses[0]).backward(retain_graph=True)
    scaler.scale(losses[1]).backward()


def two_end(optimizers, scaler):
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()


def two_right(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    two_backward(both_losses(body, heads, inputs, targets, loss_fn), scaler)
    two_end(optimizers, scaler)


def two_right_sum(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=False)
    scaler.scale(sum(both_losses(body, heads, inputs, targets, loss_fn))).backward()
    scaler.step(optimizers[1])
    scaler.step(optimizers[0])
    scaler.update()


def two_right_list(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    losses = both_losses(body, heads, inputs, targets, loss_fn)
    torch.autograd.backward(scaler.scale(losses))
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    two_end(optimizers, scaler)


def two_no_retain(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    for loss in both_losses(body, heads, inputs, targets, loss_fn):
        scaler.scale(loss).backward()
    two_end(optimizers, scaler)


def two_backward_inside(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        two_backward(both_losses(body, heads, inputs, targets, loss_fn), scaler)
    two_end(optimizers, scaler)


def two_fp32(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    features = body(inputs)
    losses = [loss_fn(head(features), target) for head, target in zip(heads, targets, strict=True)]
    two_backward(losses, scaler)
    two_end(optimizers, scaler)


def two_updates(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    two_backward(both_losses(body, heads, inputs, targets, loss_fn), scaler)
    for optimizer in optimizers:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def two_no_update(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    two_backward(both_losses(body, heads, inputs, targets, loss_fn), scaler)
    for optimizer in optimizers:
        scaler.step(optimizer)
        optimizer.zero_grad()


def two_scalers(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    other = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    losses = both_losses(body, heads, inputs, targets, loss_fn)
    scaler.scale(losses[0]).backward(retain_graph=True)
    other.scale(losses[1]).backward()
    scaler.step(optimizers[0])
    other.step(optimizers[1])
    scaler.update()
    other.update()
    for optimizer in optimizers:
        optimizer.zero_grad()


def two_skips_both(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    two_backward(both_losses(body, heads, inputs, targets, loss_fn), scaler)
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    clean = all(p.grad.isfinite().all() for o in optimizers for g in o.param_groups for p in g["params"])
    if clean:
        for optimizer in optimizers:
            scaler.step(optimizer)
    scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()


def two_one_step(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    two_backward(both_losses(body, heads, inputs, targets, loss_fn), scaler)
    two_end(optimizers[:1], scaler)


def two_plain_step(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    two_backward(both_losses(body, heads, inputs, targets, loss_fn), scaler)
    scaler.step(optimizers[0])
    optimizers[1].step()
    scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()


def two_scales_one(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    losses = both_losses(body, heads, inputs, targets, loss_fn)
    scaler.scale(losses[0]).backward(retain_graph=True)
    losses[1].backward()
    two_end(optimizers, scaler)


def two_clears_between(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    losses = both_losses(body, heads, inputs, targets, loss_fn)
    scaler.scale(losses[1]).backward(retain_graph=True)
    optimizers[0].zero_grad()
    scaler.scale(losses[0]).backward()
    two_end(optimizers, scaler)


def two_detaches(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        features = body(inputs)
        first, second = loss_fn(heads[0](features), targets[0]), loss_fn(heads[1](features.detach()), targets[1])
    scaler.scale(first).backward()
    scaler.scale(second).backward()
    two_end(optimizers, scaler)


def two_body_twice(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    for head, target in zip(heads, targets, strict=True):
        with torch.autocast(inputs.device.type, dtype=torch.float16):
            loss = loss_fn(head(body(inputs)), target)
        scaler.scale(loss).backward()
    two_end(optimizers, scaler)


def two_clears_one(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    two_backward(both_losses(body, heads, inputs, targets, loss_fn), scaler)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    optimizers[0].zero_grad()


def two_mean(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    losses = both_losses(body, heads, inputs, targets, loss_fn)
    scaler.scale(sum(losses) / 2).backward()
    two_end(optimizers, scaler)


def two_no_scale(body, heads, inputs, targets, loss_fn, optimizers, scaler):
    losses = both_losses(body, heads, inputs, targets, loss_fn)
    scaler.scale(torch.ones(()))
    sum(losses).backward()
    two_end(optimizers, scaler)


# --- 3. gradient_penalty ----------------------------------------------------------------------------------
def half_loss(model, inputs, targets, loss_fn):
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        return loss_fn(model(inputs), targets)


def norm_of(gradients):
    return sum(g.pow(2).sum() for g in gradients).sqrt()


def three_end(total, optimizer, scaler):
    scaler.scale(total).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def three_right(model, inputs, targets, loss_fn, optimizer, scaler, weight):
    loss = half_loss(model, inputs, targets, loss_fn)
    scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    gradients = [g / scaler.get_scale() for g in scaled]
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        total = loss + weight * norm_of(gradients)
    three_end(total, optimizer, scaler)


def three_right_norm_then_unscale(model, inputs, targets, loss_fn, optimizer, scaler, weight):
    optimizer.zero_grad()
    loss = half_loss(model, inputs, targets, loss_fn)
    scaled = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
    norm = torch.stack([g.norm() for g in scaled]).norm() / scaler.get_scale()
    scaler.scale(loss + norm * weight).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def three_right_flat(model, inputs, targets, loss_fn, optimizer, scaler, weight):
    loss = half_loss(model, inputs, targets, loss_fn)
    parameters = tuple(model.parameters())
    scale = torch.tensor(scaler.get_scale())
    gradients = torch.autograd.grad(loss, parameters, grad_outputs=scale, create_graph=True)
    penalty = torch.cat([g.flatten() for g in gradients]).div(scale).norm()
    three_end(torch.add(loss, penalty, alpha=weight), optimizer, scaler)


def three_scaled(model, inputs, targets, loss_fn, optimizer, scaler, weight):
    loss = half_loss(model, inputs, targets, loss_fn)
    gradients = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    three_end(loss + weight * norm_of(gradients), optimizer, scaler)


def three_plain_first(model, inputs, targets, loss_fn, optimizer, scaler, weight):
    loss = half_loss(model, inputs, targets, loss_fn)
    gradients = torch.autograd.grad(loss, model.parameters(), create_graph=True)
    three_end(loss + weight * norm_of(gradients), optimizer, scaler)


def three_no_graph(model, inputs, targets, loss_fn, optimizer, scaler, weight):
    loss = half_loss(model, inputs, targets, loss_fn)
    gradients = torch.autograd.grad(scaler.scale(loss), model.parameters(), retain_graph=True)
    three_end(loss + weight * norm_of(gradients) / scaler.get_scale(), optimizer, scaler)


def three_plain_second(model, inputs, targets, loss_fn, optimizer, scaler, weight):
    loss = half_loss(model, inputs, targets, loss_fn)
    scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    (loss + weight * norm_of(scaled) / scaler.get_scale()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def three_backward_first(model, inputs, targets, loss_fn, optimizer, scaler, weight):
    loss = half_loss(model, inputs, targets, loss_fn)
    scaler.scale(loss).backward(create_graph=True)
    penalty = norm_of([p.grad / scaler.get_scale() for p in model.parameters()])
    three_end(loss + weight * penalty, optimizer, scaler)


def three_penalised(penalty, model, inputs, targets, loss_fn, optimizer, scaler, weight):
    loss = half_loss(model, inputs, targets, loss_fn)
    scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    three_end(penalty(loss, [g / scaler.get_scale() for g in scaled], weight), optimizer, scaler)


def three_only_penalty(*arguments):
    three_penalised(lambda loss, g, weight: weight * norm_of(g), *arguments)


def three_no_weight(*arguments):
    three_penalised(lambda loss, g, weight: loss + norm_of(g), *arguments)


def three_sum_of_norms(*arguments):
    three_penalised(lambda loss, g, weight: loss + weight * sum(one.norm() for one in g), *arguments)


def three_detached(*arguments):
    three_penalised(lambda loss, g, weight: loss + weight * norm_of(g).item(), *arguments)


def three_never_clears(model, inputs, targets, loss_fn, optimizer, scaler, weight):
    loss = half_loss(model, inputs, targets, loss_fn)
    scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    scaler.scale(loss + weight * norm_of(scaled) / scaler.get_scale()).backward()
    scaler.step(optimizer)
    scaler.update()


def three_no_penalty(model, inputs, targets, loss_fn, optimizer, scaler, weight):
    three_end(half_loss(model, inputs, targets, loss_fn), optimizer, scaler)


def three_fp32(model, inputs, targets, loss_fn, optimizer, scaler, weight):
    loss = loss_fn(model(inputs), targets)
    gradients = torch.autograd.grad(loss, model.parameters(), create_graph=True)
    three_end(loss + weight * norm_of(gradients), optimizer, scaler)


# --- 4. save_training -------------------------------------------------------------------------------------
def whole_state(model, optimizer, scaler, scheduler, step):
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "scheduler": scheduler.state_dict(),
        "rng": torch.get_rng_state(),
        "step": step,
    }


def four_right(path, *training):
    temporary = path.with_name(path.name + ".tmp")
    torch.save(whole_state(*training), temporary)
    os.replace(temporary, path)


def four_right_fsync(path, *training):
    buffer = io.BytesIO()
    torch.save(whole_state(*training), buffer)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(buffer.getvalue())
        file.flush()
        os.fsync(file.fileno())
    os.rename(file.name, path)


def four_right_pathlib(path, *training):
    temporary = path.with_suffix(".new")
    with open(temporary, "wb") as file:
        torch.save(dict(whole_state(*training), torch=torch.__version__.split("+")[0]), file)
    temporary.replace(path)


def four_in_place(path, *training):
    torch.save(whole_state(*training), path)


def four_buffer_in_place(path, *training):
    buffer = io.BytesIO()
    torch.save(whole_state(*training), buffer)
    path.write_bytes(buffer.getvalue())


def four_copies(path, *training):
    temporary = path.with_suffix(".tmp")
    torch.save(whole_state(*training), temporary)
    shutil.copyfile(temporary, path)


def four_removes_first(path, *training):
    temporary = path.with_suffix(".tmp")
    torch.save(whole_state(*training), temporary)
    path.unlink(missing_ok=True)
    temporary.rename(path)


def four_moves_away(path, *training):
    temporary = path.with_suffix(".tmp")
    torch.save(whole_state(*training), temporary)
    if path.exists():
        path.rename(path.with_suffix(".bak"))
    temporary.rename(path)


def four_other_folder(path, *training):
    with tempfile.TemporaryDirectory() as folder:
        torch.save(whole_state(*training), os.path.join(folder, "file"))
        shutil.move(os.path.join(folder, "file"), path)


def four_state(change, path, *training):
    temporary = path.with_suffix(".tmp")
    state = whole_state(*training)
    change(state, *training)
    torch.save(state, temporary)
    os.replace(temporary, path)


def four_no_scaler(path, *training):
    four_state(lambda state, *_: state.pop("scaler"), path, *training)


def four_no_rng(path, *training):
    four_state(lambda state, *_: state.pop("rng"), path, *training)


def four_no_optimizer(path, *training):
    four_state(lambda state, *_: state.pop("optimizer"), path, *training)


def four_no_scheduler(path, *training):
    four_state(lambda state, *_: state.pop("scheduler"), path, *training)


def four_only_scale(path, *training):
    four_state(lambda state, m, o, scaler, *_: state.update(scaler=scaler.get_scale()), path, *training)


def four_fresh_streak(path, *training):
    def change(state, m, o, scaler, *_):
        state["scaler"] = torch.amp.GradScaler("cpu", init_scale=scaler.get_scale()).state_dict()

    four_state(change, path, *training)


def four_only_parameters(path, *training):
    four_state(lambda state, model, *_: state.update(model=dict(model.named_parameters())), path, *training)


def four_whole_objects(path, *training):
    four_state(lambda state, model, *_: state.update(model=model), path, *training)


def four_seed(path, *training):
    four_state(lambda state, *_: state.update(rng=torch.initial_seed()), path, *training)


def four_seeds_anew(path, *training):
    torch.manual_seed(0)
    four_right(path, *training)


def four_half(path, *training):
    def change(state, model, *_):
        state["model"] = {k: v.half() if v.is_floating_point() else v for k, v in model.state_dict().items()}

    four_state(change, path, *training)


def four_suffix(path, *training):
    torch.save(whole_state(*training), f"{path}.ckpt")


def four_keeps_old(path, *training):
    if not path.exists():
        four_right(path, *training)


def four_next_step(path, *training):
    four_right(path, *training[:-1], training[-1] + 1)


# --- 5. resume_training -----------------------------------------------------------------------------------
def five_right(path, model, optimizer, scaler, scheduler):
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    if scaler is not None and checkpoint["scaler"] is not None:
        scaler.load_state_dict(checkpoint["scaler"])
    torch.set_rng_state(checkpoint["rng"])
    return checkpoint["step"]


def five_right_own_error(path, model, optimizer, scaler, scheduler):
    try:
        with open(path, "rb") as file:
            checkpoint = torch.load(file)
    except Exception as error:
        raise ValueError(f"{path} is no checkpoint") from error
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    for name, part in parts.items():
        if part and checkpoint[name]:
            part.load_state_dict(checkpoint[name])
    torch.random.set_rng_state(checkpoint["rng"])
    return torch.tensor(checkpoint["step"])


def five_forgets(what, path, model, optimizer, scaler, scheduler):
    checkpoint = torch.load(path, weights_only=True)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    for name, part in parts.items():
        if name != what and part is not None and checkpoint[name] is not None:
            part.load_state_dict(checkpoint[name])
    if what != "rng":
        torch.set_rng_state(checkpoint["rng"])
    return checkpoint["step"]


def five_no_scaler(*training):
    return five_forgets("scaler", *training)


def five_no_rng(*training):
    return five_forgets("rng", *training)


def five_no_optimizer(*training):
    return five_forgets("optimizer", *training)


def five_no_scheduler(*training):
    return five_forgets("scheduler", *training)


def five_only_scale(path, model, optimizer, scaler, scheduler):
    step = five_forgets("scaler", path, model, optimizer, scaler, scheduler)
    state = torch.load(path)["scaler"]
    if scaler is not None and state is not None:
        scaler.load_state_dict(scaler.state_dict() | {"scale": state["scale"]})
    return step


def five_always_scaler(path, model, optimizer, scaler, scheduler):
    step = five_forgets("scaler", path, model, optimizer, scaler, scheduler)
    scaler.load_state_dict(torch.load(path)["scaler"])
    return step


def five_scaler_if_there(path, model, optimizer, scaler, scheduler):
    step = five_forgets("scaler", path, model, optimizer, scaler, scheduler)
    if scaler is not None:
        scaler.load_state_dict(torch.load(path)["scaler"])
    return step


def five_unpickles(path, model, optimizer, scaler, scheduler):
    checkpoint = torch.load(path, weights_only=False)
    model.load_state_dict(checkpoint["model"])
    return five_right(path, model, optimizer, scaler, scheduler)


def five_swallows(path, model, optimizer, scaler, scheduler):
    try:
        return five_right(path, model, optimizer, scaler, scheduler)
    except Exception:
        return 0


def five_if_exists(path, model, optimizer, scaler, scheduler):
    if not path.exists():
        return 0
    return five_right(path, model, optimizer, scaler, scheduler)


def five_not_strict(path, model, optimizer, scaler, scheduler):
    step = five_forgets("model", path, model, optimizer, scaler, scheduler) if len(model) == 5 else 0
    model.load_state_dict(torch.load(path)["model"], strict=False)
    return step


def five_none(*training):
    five_right(*training)


def five_next_step(*training):
    return five_right(*training) + 1


def five_rng_first(path, model, optimizer, scaler, scheduler):
    torch.set_rng_state(torch.load(path)["rng"])
    model(torch.randn(4, 10))
    return five_forgets("rng", path, model, optimizer, scaler, scheduler)


def five_eval(path, model, *training):
    step = five_right(path, model, *training)
    model.eval()
    return step


# --- 6. resume_mid_accumulation ---------------------------------------------------------------------------
def six_save(path, model, optimizer, scaler, micro_step, other=None):
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "gradients": {name: p.grad for name, p in model.named_parameters()},
        "micro_step": micro_step,
    }
    torch.save(state | (other or {}), path)


def six_load(path, model, optimizer, scaler):
    state = torch.load(path, weights_only=True)
    for part, name in ((model, "model"), (optimizer, "optimizer"), (scaler, "scaler")):
        if state[name] is not None:
            part.load_state_dict(state[name])
    for name, p in model.named_parameters():
        p.grad = state["gradients"][name]
    return state["micro_step"]


def six_save_list(path, model, optimizer, scaler, micro_step):
    there = [(number, p.grad) for number, p in enumerate(model.parameters()) if p.grad is not None]
    parts = [part.state_dict() for part in (model, optimizer, scaler)]
    torch.save((parts, there, torch.tensor(micro_step)), path)


def six_load_list(path, model, optimizer, scaler):
    parts, there, micro_step = torch.load(path)
    for part, state in zip((model, optimizer, scaler), parts, strict=True):
        part.load_state_dict(state)
    optimizer.zero_grad()
    parameters = list(model.parameters())
    for number, gradient in there:
        parameters[number].grad = gradient.clone()
    return micro_step


def six_save_unscaled(path, model, optimizer, scaler, micro_step):
    if micro_step:
        scaler.unscale_(optimizer)
    six_save(path, model, optimizer, scaler, micro_step)


def six_save_divided(path, model, optimizer, scaler, micro_step):
    scale = scaler.get_scale()
    divided = {n: None if p.grad is None else p.grad / scale for n, p in model.named_parameters()}
    six_save(path, model, optimizer, scaler, micro_step, {"gradients": divided})


def six_load_multiplied(path, model, optimizer, scaler):
    micro_step = six_load(path, model, optimizer, scaler)
    for p in model.parameters():
        if p.grad is not None:
            p.grad *= scaler.get_scale()
    return micro_step


def six_save_without_gradients(path, model, optimizer, scaler, micro_step):
    six_save(path, model, optimizer, scaler, micro_step, {"gradients": dict.fromkeys(dict(model.named_parameters()))})


def six_save_zeros(path, model, optimizer, scaler, micro_step):
    filled = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}
    six_save(path, model, optimizer, scaler, micro_step, {"gradients": filled})


def six_save_half(path, model, optimizer, scaler, micro_step):
    halved = {n: None if p.grad is None else p.grad.half() for n, p in model.named_parameters()}
    six_save(path, model, optimizer, scaler, micro_step, {"gradients": halved})


def six_load_half(path, model, optimizer, scaler):
    state = torch.load(path)
    micro_step = six_load_after(state, model, optimizer, scaler)
    for name, p in model.named_parameters():
        g = state["gradients"][name]
        p.grad = None if g is None else g.float()
    return micro_step


def six_load_after(state, model, optimizer, scaler):
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    return state["micro_step"]


def six_save_clean(path, model, optimizer, scaler, micro_step):
    clean = {n: None if p.grad is None else p.grad.nan_to_num(0, 0, 0) for n, p in model.named_parameters()}
    six_save(path, model, optimizer, scaler, micro_step, {"gradients": clean})


def six_save_no_scaler(path, model, optimizer, scaler, micro_step):
    six_save(path, model, optimizer, scaler, micro_step, {"scaler": None})


def six_save_no_optimizer(path, model, optimizer, scaler, micro_step):
    six_save(path, model, optimizer, scaler, micro_step, {"optimizer": None})


def six_load_none(*training):
    six_load(*training)


def six_load_zero(*training):
    six_load(*training)
    return 0


def six_save_finishes(path, model, optimizer, scaler, micro_step):
    if micro_step:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    six_save(path, model, optimizer, scaler, 0)


def six_load_blank(path, model, optimizer, scaler):
    """Nothing yet."""


def six_load_raises(path, model, optimizer, scaler):
    return torch.load(path)["micro-step"]


# --- 7. recompute -----------------------------------------------------------------------------------------
def seven_right(blocks, inputs):
    for block in blocks:
        inputs = checkpoint(block, inputs, use_reentrant=False)
    return inputs


class Recompute(torch.autograd.Function):
    """A checkpoint by hand: keeps the input, the autocast state and the random state."""

    keep_autocast, keep_random, fork = True, True, True

    @classmethod
    def run(cls, block, x):
        return cls.apply(block, x, *block.parameters())

    @staticmethod
    def forward(ctx, block, x, *parameters):
        ctx.block, ctx.random = block, torch.get_rng_state()
        ctx.region = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        ctx.save_for_backward(x)
        return block(x)

    @classmethod
    def again(cls, ctx, x):
        enabled, dtype = ctx.region
        region = torch.autocast("cpu", dtype=dtype, enabled=enabled and cls.keep_autocast)
        with torch.enable_grad(), region, torch.random.fork_rng(enabled=cls.fork):
            if cls.keep_random:
                torch.set_rng_state(ctx.random)
            return ctx.block(x)

    @classmethod
    def differentiate(cls, ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        output = cls.again(ctx, x)
        return None, *torch.autograd.grad(output, (x, *ctx.block.parameters()), gradient.to(output.dtype))

    @staticmethod
    def backward(ctx, gradient):
        return Recompute.differentiate(ctx, gradient)


class WithoutAutocast(Recompute):
    keep_autocast = False

    @staticmethod
    def backward(ctx, gradient):
        return WithoutAutocast.differentiate(ctx, gradient)


class WithoutRandom(Recompute):
    keep_random = False

    @staticmethod
    def backward(ctx, gradient):
        return WithoutRandom.differentiate(ctx, gradient)


class WithoutFork(Recompute):
    fork = False

    @staticmethod
    def backward(ctx, gradient):
        return WithoutFork.differentiate(ctx, gradient)


class InFloat32(Recompute):
    keep_autocast = False

    @staticmethod
    def backward(ctx, gradient):
        saved = ctx.saved_tensors[0]
        x = saved.float().detach().requires_grad_()
        output = InFloat32.again(ctx, x)
        found = torch.autograd.grad(output, (x, *ctx.block.parameters()), gradient.float())
        return None, found[0].to(saved.dtype), *found[1:]


def seven_by(run, blocks, inputs):
    for block in blocks:
        inputs = run(block, inputs)
    return inputs


seven_right_by_hand = functools.partial(seven_by, Recompute.run)
seven_no_autocast = functools.partial(seven_by, WithoutAutocast.run)
seven_float = functools.partial(seven_by, InFloat32.run)
seven_no_random = functools.partial(seven_by, WithoutRandom.run)
seven_no_fork = functools.partial(seven_by, WithoutFork.run)


def seven_right_functools(blocks, inputs):
    run = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=True)
    return functools.reduce(lambda x, block: run(lambda value: block(value), x), blocks, inputs)


def seven_right_reentrant(blocks, inputs):
    inputs = inputs.detach().requires_grad_(torch.is_grad_enabled())
    for block in blocks:
        inputs = checkpoint(block, inputs, use_reentrant=True) if torch.is_grad_enabled() else block(inputs)
    return inputs


def seven_plain(blocks, inputs):
    for block in blocks:
        inputs = block(inputs)
    return inputs


def seven_reentrant(blocks, inputs):
    for block in blocks:
        inputs = checkpoint(block, inputs, use_reentrant=True)
    return inputs


def seven_reentrant_later(blocks, inputs):
    inputs = blocks[0](inputs)
    for block in blocks[1:]:
        inputs = checkpoint(block, inputs, use_reentrant=True)
    return inputs


def seven_no_rng_state(blocks, inputs):
    for block in blocks:
        inputs = checkpoint(block, inputs, use_reentrant=False, preserve_rng_state=False)
    return inputs


def seven_all_in_one(blocks, inputs):
    return checkpoint(seven_plain, blocks, inputs, use_reentrant=False)


def seven_sequential(blocks, inputs):
    return checkpoint_sequential(torch.nn.Sequential(*blocks), 2, inputs, use_reentrant=False)


def seven_no_grad(blocks, inputs):
    with torch.no_grad():
        return seven_plain(blocks, inputs)


def seven_island(blocks, inputs):
    with torch.autocast("cpu", enabled=False):
        return seven_right(blocks, inputs)


def seven_own_region(blocks, inputs):
    with torch.autocast("cpu", dtype=torch.get_autocast_dtype("cpu")):
        return seven_right(blocks, inputs)


def seven_every_other(blocks, inputs):
    for number, block in enumerate(blocks):
        inputs = block(inputs) if number % 2 else checkpoint(block, inputs, use_reentrant=False)
    return inputs


def seven_none(blocks, inputs):
    seven_right(blocks, inputs)


# --- 8. frozen_layers -------------------------------------------------------------------------------------
class EightRight(nn.Module):
    def __init__(self, backbone, head):
        super().__init__()
        self.backbone = backbone.half().requires_grad_(False)
        self.head = head
        self.train()

    def forward(self, inputs):
        with torch.no_grad(), torch.autocast(inputs.device.type, dtype=torch.float16):
            features = self.backbone(inputs)
        return self.head(features.float())

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def trainable(self):
        return self.head.parameters()


class EightRightBn32(nn.Module):
    def __init__(self, backbone, head):
        super().__init__()
        self.parts = nn.ModuleDict({"head": head, "backbone": backbone})
        for module in backbone:
            if isinstance(module, nn.Linear):
                module.half()
        for parameter in backbone.parameters():
            parameter.requires_grad = False

    def forward(self, inputs):
        x = inputs
        for module in self.parts["backbone"]:
            x = module(x.half() if isinstance(module, nn.Linear) else x.float())
        return self.parts["head"](x)

    def train(self, mode=True):
        self.training = mode
        self.parts["head"].train(mode)
        self.parts["backbone"].train(False)
        return self

    def trainable(self):
        return [parameter for parameter in self.parameters() if parameter.requires_grad]


class EightAllHalf(EightRight):
    def __init__(self, backbone, head):
        super().__init__(backbone, head)
        self.half()


class EightNotFrozen(EightRight):
    def __init__(self, backbone, head):
        super().__init__(backbone, head)
        self.backbone.requires_grad_(True)


class EightAllFrozen(EightRight):
    def __init__(self, backbone, head):
        super().__init__(backbone, head)
        self.requires_grad_(False)


class EightFp32(EightRight):
    def __init__(self, backbone, head):
        super().__init__(backbone, head)
        self.backbone.float()


class EightTrains(EightRight):
    def train(self, mode=True):
        return nn.Module.train(self, mode)


class EightTrainNone(EightRight):
    def train(self, mode=True):
        super().train(mode)


class EightTrainHeadToo(EightRight):
    def train(self, mode=True):
        nn.Module.train(self, False)
        return self


class EightForgetsMode(EightRight):
    def train(self, mode=True):
        nn.Module.train(self, True)
        self.backbone.eval()
        return self


class EightAllParameters(EightRight):
    def trainable(self):
        return self.parameters()


class EightNamed(EightRight):
    def trainable(self):
        return self.head.named_parameters()


class EightNoReturn(EightRight):
    def trainable(self):
        list(self.head.parameters())


class EightNoGrad(EightRight):
    def forward(self, inputs):
        with torch.no_grad():
            return super().forward(inputs)


class EightHalfFeatures(EightRight):
    def forward(self, inputs):
        return self.head(self.backbone(inputs))


class EightHidden(EightRight):
    def __init__(self, backbone, head):
        super().__init__(backbone, head)
        self.__dict__["hidden"] = [self._modules.pop("backbone")]

    def forward(self, inputs):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
            features = self.hidden[0](inputs)
        return self.head(features.float())

    def train(self, mode=True):
        return nn.Module.train(self, mode)


class EightLastLayer(EightRight):
    def trainable(self):
        return self.head[-1].parameters()


class EightOther(EightRight):
    def forward(self, inputs):
        with torch.no_grad(), torch.autocast(inputs.device.type, dtype=torch.float16):
            features = self.backbone(inputs)
        return self.head(features.float().relu())


# --- 9. clip_both -----------------------------------------------------------------------------------------
def parameters_of(optimizers):
    return [p for o in optimizers for group in o.param_groups for p in group["params"]]


def nine_end(optimizers, scaler):
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()


def nine_right(optimizers, scaler, max_norm):
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = clip_grad_norm_(parameters_of(optimizers), max_norm)
    if norm.isfinite():
        for optimizer in optimizers:
            scaler.step(optimizer)
    scaler.update()
    return norm


def nine_right_error(optimizers, scaler, max_norm):
    parameters, norm = parameters_of(optimizers), float("inf")
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    try:
        norm = clip_grad_norm_(parameters, max_norm, error_if_nonfinite=True).item()
        for optimizer in reversed(optimizers):
            scaler.step(optimizer)
    except RuntimeError:
        pass
    scaler.update()
    return norm


def nine_right_scaled(optimizers, scaler, max_norm):
    parameters, scale = parameters_of(optimizers), scaler.get_scale()
    norm = torch.cat([p.grad.flatten() for p in parameters]).norm()
    if norm.isfinite():
        for p in parameters:
            p.grad *= min(1.0, max_norm * scale / float(norm))
        for optimizer in optimizers:
            scaler.step(optimizer)
    else:
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
    scaler.update()
    return float(norm) / scale


def nine_poisons(optimizers, scaler, max_norm):
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = clip_grad_norm_(parameters_of(optimizers), max_norm)
    nine_end(optimizers, scaler)
    return norm


def nine_only_nan(optimizers, scaler, max_norm):
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = clip_grad_norm_(parameters_of(optimizers), max_norm)
    if not norm.isnan():
        for optimizer in optimizers:
            scaler.step(optimizer)
    scaler.update()
    return norm


def nine_apart(optimizers, scaler, max_norm):
    norms = []
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
        norms.append(clip_grad_norm_(parameters_of([optimizer]), max_norm))
    nine_end(optimizers, scaler)
    return torch.stack(norms).norm()


def nine_clips_scaled(optimizers, scaler, max_norm):
    norm = clip_grad_norm_(parameters_of(optimizers), max_norm)
    if norm.isfinite():
        nine_end(optimizers, scaler)
    return norm


def nine_unscales_one(optimizers, scaler, max_norm):
    scaler.unscale_(optimizers[0])
    norm = clip_grad_norm_(parameters_of(optimizers), max_norm)
    if norm.isfinite():
        nine_end(optimizers, scaler)
    return norm


def nine_unscales_twice(optimizers, scaler, max_norm):
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    return nine_right(optimizers, scaler, max_norm)


def nine_sum(optimizers, scaler, max_norm):
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = sum(clip_grad_norm_(parameters_of([o]), 1e9) for o in optimizers)
    for p in parameters_of(optimizers):
        p.grad *= min(1.0, max_norm / float(norm))
    if norm.isfinite():
        for optimizer in optimizers:
            scaler.step(optimizer)
    scaler.update()
    return norm


def nine_raises(optimizers, scaler, max_norm):
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = clip_grad_norm_(parameters_of(optimizers), max_norm, error_if_nonfinite=True)
    nine_end(optimizers, scaler)
    return norm


def nine_returns_early(optimizers, scaler, max_norm):
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = clip_grad_norm_(parameters_of(optimizers), max_norm)
    if not norm.isfinite():
        return norm
    nine_end(optimizers, scaler)
    return norm


def nine_updates_twice(optimizers, scaler, max_norm):
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = clip_grad_norm_(parameters_of(optimizers), max_norm)
    for optimizer in optimizers:
        if norm.isfinite():
            scaler.step(optimizer)
            scaler.update()
    return norm


def nine_none(optimizers, scaler, max_norm):
    nine_right(optimizers, scaler, max_norm)


def nine_norm_after(optimizers, scaler, max_norm):
    nine_right(optimizers, scaler, max_norm)
    return torch.cat([p.grad.flatten() for p in parameters_of(optimizers)]).norm()


def nine_plain_step(optimizers, scaler, max_norm):
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = clip_grad_norm_(parameters_of(optimizers), max_norm)
    if norm.isfinite():
        for optimizer in optimizers:
            optimizer.step()
    scaler.update()
    return norm


RIGHT = {
    "accumulate": {
        "rows of the group first": one_right,
        "divides after unscaling": one_right_rows_at_the_end,
        "one graph, clips scaled": one_right_scaled_clip,
        "clears before the group": one_right_clears_first,
    },
    "two_optimizers": {"retains the graph": two_right, "one sum": two_right_sum, "a list of losses": two_right_list},
    "gradient_penalty": {
        "unscales, then the norm": three_right,
        "norm, then unscales": three_right_norm_then_unscale,
        "scale as first gradient": three_right_flat,
    },
    "save_training": {
        "os.replace": four_right,
        "buffer, fsync, rename": four_right_fsync,
        "open file, pathlib, one key more": four_right_pathlib,
    },
    "resume_training": {"ifs": five_right, "an error of its own": five_right_own_error},
    "resume_mid_accumulation": {
        "by name": (six_save, six_load),
        "by place": (six_save_list, six_load_list),
        "unscaled in the file": (six_save_divided, six_load_multiplied),
    },
    "recompute": {
        "torch's": seven_right,
        "by hand": seven_right_by_hand,
        "reduce": seven_right_functools,
        "reentrant, with an input that needs a gradient": seven_right_reentrant,
    },
    "frozen_layers": {"region of its own": EightRight, "batch norm in float32": EightRightBn32},
    "clip_both": {
        "asks the norm": nine_right,
        "error_if_nonfinite, caught": nine_right_error,
        "clips scaled": nine_right_scaled,
    },
}

WRONG = {
    "accumulate": {
        "updates each micro-batch": (one_each, "the optimizer stepped after every micro-batch"),
        "mean of means": (one_mean_of_means, "that is the mean over micro-batches"),
        "sum for mean": (one_sum, "the gradients are the sum over the micro-batches"),
        "tail divided by every": (one_tail_by_every, "was still divided by `every`"),
        "drops the tail": (one_drops_tail, "the last group is a short one"),
        "unscales inside the group": (one_unscales_inside, "`unscale_` ran in the middle of a group"),
        "updates inside the group": (one_updates_inside, "ran for a micro-batch that made no step"),
        "one region around all": (one_region_around_all, "`backward()` ran inside the autocast region"),
        "clears inside the group": (one_clears_inside, "cleared inside the group"),
        "clips before unscaling": (one_clips_scaled, "you clipped before unscaling"),
        "clips inside the group": (one_clips_inside, "clipped once"),
        "no clipping": (one_no_clip, "was not clipped to `max_norm`"),
        "never clears": (one_never_clears, "the gradients are never cleared"),
        "clears only after a step": (one_clears_if_stepped, "clear the gradients of a skipped group as well"),
        "steps by hand": (one_plain_step, "`optimizer.step()` was called directly"),
        "no update": (one_no_update, "`scaler.update()` is missing"),
    },
    "two_optimizers": {
        "frees the graph": (two_no_retain, "the first `backward()` freed it"),
        "backward inside": (two_backward_inside, "`backward()` ran inside the autocast region"),
        "no autocast": (two_fp32, "the body did not run under fp16 autocast"),
        "an update for each": (two_updates, "ran once for each optimizer"),
        "no update": (two_no_update, "`scaler.update()` has to run once an iteration"),
        "a scaler for each": (two_scalers, "A scaler for each optimizer"),
        "skips both": (two_skips_both, "whatever the other one found"),
        "steps one": (two_one_step, "call it for both"),
        "steps by hand": (two_plain_step, "`optimizer.step()` was called directly"),
        "scales one loss": (two_scales_one, "one loss was scaled by"),
        "scales none": (two_no_scale, "no loss was scaled"),
        "clears between": (two_clears_between, "or its gradients were cleared"),
        "detaches": (two_detaches, "the second loss does not reach the body"),
        "runs the body twice": (two_body_twice, "the body ran twice"),
        "clears one": (two_clears_one, "found inf or NaN again"),
        "averages": (two_mean, "the losses were averaged"),
    },
    "gradient_penalty": {
        "on scaled gradients": (three_scaled, "the penalty was computed on scaled gradients"),
        "first pass unscaled": (three_plain_first, "the first pass started from the plain loss"),
        "second pass unscaled": (three_plain_second, "the second pass started from the plain sum"),
        "no graph": (three_no_graph, "the penalty has no effect"),
        "detached": (three_detached, "the penalty has no effect"),
        "backward for grad": (three_backward_first, "left its gradients in `parameter.grad`"),
        "never clears": (three_never_clears, "the gradients are never cleared"),
        "no penalty": (three_no_penalty, "a penalty takes two"),
        "only the penalty": (three_only_penalty, "on loss and penalty together"),
        "forgets the weight": (three_no_weight, "is to be multiplied by `weight`"),
        "sum of norms": (three_sum_of_norms, "you added up the norms of each parameter's"),
        "fp32": (three_fp32, "did not run under fp16 autocast"),
    },
    "save_training": {
        "in place": (four_in_place, "the save was killed in the middle"),
        "buffer, then in place": (four_buffer_in_place, "written over in place"),
        "copies over": (four_copies, "written over in place"),
        "removes first": (four_removes_first, "was removed before the new one"),
        "moves away": (four_moves_away, "was moved out of the way first"),
        "temporary file elsewhere": (four_other_folder, "is in another folder"),
        "no scaler": (four_no_scaler, "`scaler` is not in the file"),
        "no rng": (four_no_rng, "dropout draws other masks"),
        "no optimizer": (four_no_optimizer, "Adam would start over"),
        "no scheduler": (four_no_scheduler, "`scheduler` is not in the file"),
        "only the scale": (four_only_scale, "what the file holds under `scaler` cannot be loaded"),
        "streak lost": (four_fresh_streak, "the streak of clean steps"),
        "only parameters": (four_only_parameters, "the running statistics of batch norm"),
        "whole objects": (four_whole_objects, "refuses the file"),
        "the seed": (four_seed, "A seed says where the draws began"),
        "seeds anew": (four_seeds_anew, "saving changed the run"),
        "in fp16": (four_half, "what the file holds under `model` is not what the run had"),
        "another name": (four_suffix, "under that very name"),
        "keeps the old file": (four_keeps_old, "left the old checkpoint there"),
        "step + 1": (four_next_step, "the file's `step` is"),
    },
    "resume_training": {
        "no scaler": (five_no_scaler, "the scaler's scale is not as the file has it"),
        "only the scale": (five_only_scale, "the scaler's streak of clean steps"),
        "no rng": (five_no_rng, "`torch.set_rng_state` comes last"),
        "rng first": (five_rng_first, "after everything that could draw"),
        "no optimizer": (five_no_optimizer, "Adam's averages start from zero again"),
        "no scheduler": (five_no_scheduler, "the schedule starts over"),
        "always loads the scaler": (five_always_scaler, "there is nobody to load the scaler's state into"),
        "loads None": (five_scaler_if_there, "leave the new scaler at its beginning"),
        "runs code": (five_unpickles, "and the code ran"),
        "swallows errors": (five_swallows, "passed over in silence"),
        "begins anew if there is no file": (five_if_exists, "a file that is not there was passed over"),
        "not strict": (five_not_strict, "`strict=False` is for those"),
        "no return": (five_none, "returned None"),
        "step + 1": (five_next_step, "the file says step"),
        "eval mode": (five_eval, "the model is in eval mode"),
    },
    "resume_mid_accumulation": {
        "no gradients": ((six_save_without_gradients, six_load), "what was accumulated is lost"),
        "unscales in the run": ((six_save_unscaled, six_load), "saving changed the run"),
        "unscales in the file": ((six_save_divided, six_load), "Save it as it is, with its scale"),
        "zeros for None": ((six_save_zeros, six_load), "for the optimizer that is not the same"),
        "in fp16": ((six_save_half, six_load_half), "was rounded on the way"),
        "cleans inf away": ((six_save_clean, six_load), "an overflow in the group was cleaned away"),
        "no scaler": ((six_save_no_scaler, six_load), "the scaler's state belongs to the gradients"),
        "no momentum": ((six_save_no_optimizer, six_load), "the optimizer's momentum after loading"),
        "no micro-step": ((six_save, six_load_none), "`load` returned None"),
        "begins the group anew": ((six_save, six_load_zero), "micro-batches of the group were done"),
        "steps early": ((six_save_finishes, six_load), "saving changed the run"),
        "raises": ((six_save, six_load_raises), "KeyError"),
        "half written": ((six_save, six_load_blank), "`load_midway` is still to be written"),
        "one function": (six_save, "both functions, as a pair"),
    },
    "recompute": {
        "no checkpoint": (seven_plain, "nothing was run again"),
        "reentrant": (seven_reentrant, "the output has no graph"),
        "first block plain": (seven_reentrant_later, "block 0 was not run again"),
        "random state not kept": (seven_no_rng_state, "dropout drew another mask"),
        "by hand, no autocast": (seven_no_autocast, "Backward runs outside of the region"),
        "by hand, in float32": (seven_float, "in float32 when they ran again"),
        "by hand, no random state": (seven_no_random, "dropout drew another mask"),
        "by hand, random state moved": (seven_no_fork, "moves the random generator"),
        "all in one": (seven_all_in_one, "all blocks stood in one checkpoint"),
        "two segments": (seven_sequential, "was not run again"),
        "region of its own": (seven_own_region, "under `no_grad`, in fp32 and eval mode"),
        "every other": (seven_every_other, "block 1 was not run again"),
        "no_grad": (seven_no_grad, "the output has no graph"),
        "region switched off": (seven_island, "the output is not that of the blocks"),
        "no return": (seven_none, "returned None"),
    },
    "frozen_layers": {
        "all in fp16": (EightAllHalf, "Attempting to unscale FP16 gradients"),
        "not frozen": (EightNotFrozen, "the backbone is not frozen"),
        "all frozen": (EightAllFrozen, "the head is frozen, too"),
        "backbone in fp32": (EightFp32, "take half of the memory"),
        "batch norm trains": (EightTrains, "the frozen batch norm is in training mode"),
        "train returns None": (EightTrainNone, "`return self`"),
        "head in eval mode": (EightTrainHeadToo, "the head is in eval mode"),
        "never in eval mode": (EightForgetsMode, "the head is in training mode"),
        "all parameters": (EightAllParameters, "the optimizer gets the frozen ones as well"),
        "named parameters": (EightNamed, "without their names"),
        "trainable returns None": (EightNoReturn, "`trainable()` returned None"),
        "no_grad for all": (EightNoGrad, "`no_grad` is for the backbone's pass alone"),
        "no region of its own": (EightHalfFeatures, "outside of autocast"),
        "backbone hidden": (EightHidden, "has to hold both parts as submodules"),
        "last layer only": (EightLastLayer, "and the head has"),
        "another model": (EightOther, "the model is `head(backbone(inputs))`"),
    },
    "clip_both": {
        "poisons the clean one": (nine_poisons, "the first optimizer's weights are NaN now"),
        "looks for NaN only": (nine_only_nan, "with a norm of inf its clipped gradients are all 0"),
        "each apart": (nine_apart, "each optimizer was clipped by its own norm"),
        "clips before unscaling": (nine_clips_scaled, "you clipped before unscaling"),
        "unscales one": (nine_unscales_one, "or unscaled only one of the two"),
        "unscales twice": (nine_unscales_twice, "Each optimizer is unscaled once"),
        "sum of norms": (nine_sum, "the root of the sum of squares"),
        "raises on an overflow": (nine_raises, "ended the training at an overflow"),
        "no update when skipped": (nine_returns_early, "also when they were left out"),
        "updates for each": (nine_updates_twice, "once in each"),
        "no return": (nine_none, "returned None"),
        "norm after clipping": (nine_norm_after, "before clipping is"),
        "steps by hand": (nine_plain_step, "`optimizer.step()` was called directly"),
    },
}
