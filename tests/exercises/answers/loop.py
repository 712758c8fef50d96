import statistics
import time

import torch


# --- 1. honest_timing -------------------------------------------------------------------------------------
def t_right(step, next_batch, synchronize, clock, warmup, repeats):
    for _ in range(warmup):
        step(next_batch())
    samples = []
    for _ in range(repeats):
        batch = next_batch()
        synchronize()
        start = clock()
        step(batch)
        synchronize()
        samples.append(clock() - start)
    return statistics.median(samples)


def t_right_all_loaded_before(step, next_batch, synchronize, clock, warmup, repeats):
    batches = [next_batch() for _ in range(warmup + repeats)]
    times = []
    for n, batch in enumerate(batches):
        synchronize()
        t0 = clock()
        step(batch)
        synchronize()
        if n >= warmup:
            times.append(clock() - t0)
    return torch.tensor(times, dtype=torch.float64).quantile(0.5)


def t_no_sync(step, next_batch, synchronize, clock, warmup, repeats):
    for _ in range(warmup):
        step(next_batch())
    samples = []
    for _ in range(repeats):
        batch = next_batch()
        start = clock()
        step(batch)
        samples.append(clock() - start)
    return statistics.median(samples)


def t_sync_only_before(step, next_batch, synchronize, clock, warmup, repeats):
    for _ in range(warmup):
        step(next_batch())
    samples = []
    for _ in range(repeats):
        batch = next_batch()
        synchronize()
        start = clock()
        step(batch)
        samples.append(clock() - start)
    return statistics.median(samples)


def t_mean_with_first(step, next_batch, synchronize, clock, warmup, repeats):
    samples = []
    for _ in range(warmup + repeats):
        batch = next_batch()
        synchronize()
        start = clock()
        step(batch)
        synchronize()
        samples.append(clock() - start)
    return sum(samples) / len(samples)


def t_mean(step, next_batch, synchronize, clock, warmup, repeats):
    for _ in range(warmup):
        step(next_batch())
    samples = []
    for _ in range(repeats):
        batch = next_batch()
        synchronize()
        start = clock()
        step(batch)
        synchronize()
        samples.append(clock() - start)
    return sum(samples) / len(samples)


def t_loading(step, next_batch, synchronize, clock, warmup, repeats):
    for _ in range(warmup):
        step(next_batch())
    samples = []
    for _ in range(repeats):
        synchronize()
        start = clock()
        step(next_batch())
        synchronize()
        samples.append(clock() - start)
    return statistics.median(samples)


def t_total(step, next_batch, synchronize, clock, warmup, repeats):
    for _ in range(warmup):
        step(next_batch())
    total = 0
    for _ in range(repeats):
        batch = next_batch()
        synchronize()
        start = clock()
        step(batch)
        synchronize()
        total += clock() - start
    return total


def t_no_warmup(step, next_batch, synchronize, clock, warmup, repeats):
    samples = []
    for _ in range(repeats):
        batch = next_batch()
        synchronize()
        start = clock()
        step(batch)
        synchronize()
        samples.append(clock() - start)
    return statistics.median(samples)


def t_own_clock(step, next_batch, synchronize, clock, warmup, repeats):
    start = time.perf_counter()
    for _ in range(warmup + repeats):
        step(next_batch())
    synchronize()
    return (time.perf_counter() - start) / repeats


def t_milliseconds(*arguments):
    return t_right(*arguments) * 1000


def t_none(*arguments):
    t_right(*arguments)


# --- 2. add_autocast --------------------------------------------------------------------------------------
def a_right(model, inputs, targets, loss_fn, optimizer):
    with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
        loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def a_right_item(model, inputs, targets, loss_fn, optimizer):
    optimizer.zero_grad(set_to_none=False)
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        output = model(inputs)
        loss = loss_fn(output, targets)
    loss.backward()
    optimizer.step()
    return loss.item()


def a_backward_inside(model, inputs, targets, loss_fn, optimizer):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_fn(model(inputs), targets)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def a_loss_outside(model, inputs, targets, loss_fn, optimizer):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(inputs)
    loss = loss_fn(output, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def a_no_autocast(model, inputs, targets, loss_fn, optimizer):
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def a_half(model, inputs, targets, loss_fn, optimizer):
    model.bfloat16()
    loss = loss_fn(model(inputs.bfloat16()), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def a_fp16(model, inputs, targets, loss_fn, optimizer):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def a_no_zero(model, inputs, targets, loss_fn, optimizer):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


def a_no_step(model, inputs, targets, loss_fn, optimizer):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.zero_grad()
    return loss


def a_no_backward(model, inputs, targets, loss_fn, optimizer):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_fn(model(inputs), targets)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def a_none(model, inputs, targets, loss_fn, optimizer):
    a_right(model, inputs, targets, loss_fn, optimizer)


def a_leaves_it_on(model, inputs, targets, loss_fn, optimizer):
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_autocast_enabled("cpu", True)
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def a_cuda_only(model, inputs, targets, loss_fn, optimizer):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def a_unreduced(model, inputs, targets, loss_fn, optimizer):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets, reduction="none")
    loss.backward()
    return loss


# --- 3. add_scaler ----------------------------------------------------------------------------------------
def _forward(model, inputs, targets, loss_fn):
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        return loss_fn(model(inputs), targets)


def s_right(model, inputs, targets, loss_fn, optimizer, scaler):
    loss = _forward(model, inputs, targets, loss_fn)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.detach()


def s_right_unscales(model, inputs, targets, loss_fn, optimizer, scaler):
    optimizer.zero_grad()
    loss = _forward(model, inputs, targets, loss_fn)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def s_no_update(model, inputs, targets, loss_fn, optimizer, scaler):
    loss = _forward(model, inputs, targets, loss_fn)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    optimizer.zero_grad()
    return loss


def s_plain_step(model, inputs, targets, loss_fn, optimizer, scaler):
    loss = _forward(model, inputs, targets, loss_fn)
    scaler.scale(loss).backward()
    optimizer.step()
    scaler.update()
    optimizer.zero_grad()
    return loss


def s_not_scaled(model, inputs, targets, loss_fn, optimizer, scaler):
    loss = _forward(model, inputs, targets, loss_fn)
    loss.backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss


def s_scaled_but_unused(model, inputs, targets, loss_fn, optimizer, scaler):
    loss = _forward(model, inputs, targets, loss_fn)
    scaler.scale(loss)
    loss.backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss


def s_zero_between(model, inputs, targets, loss_fn, optimizer, scaler):
    loss = _forward(model, inputs, targets, loss_fn)
    scaler.scale(loss).backward()
    optimizer.zero_grad()
    scaler.step(optimizer)
    scaler.update()
    return loss


def s_zero_between_not_none(model, inputs, targets, loss_fn, optimizer, scaler):
    loss = _forward(model, inputs, targets, loss_fn)
    scaler.scale(loss).backward()
    optimizer.zero_grad(set_to_none=False)
    scaler.step(optimizer)
    scaler.update()
    return loss


def s_returns_scaled(model, inputs, targets, loss_fn, optimizer, scaler):
    loss = scaler.scale(_forward(model, inputs, targets, loss_fn))
    loss.backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.detach()


def s_divides_too(model, inputs, targets, loss_fn, optimizer, scaler):
    loss = _forward(model, inputs, targets, loss_fn)
    scaler.scale(loss).backward()
    for parameter in model.parameters():
        parameter.grad /= scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.detach()


def s_own_scaler(model, inputs, targets, loss_fn, optimizer, scaler):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    return s_right(model, inputs, targets, loss_fn, optimizer, scaler)


def s_no_autocast(model, inputs, targets, loss_fn, optimizer, scaler):
    loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss


def s_bf16(model, inputs, targets, loss_fn, optimizer, scaler):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss


def s_update_if_finite(model, inputs, targets, loss_fn, optimizer, scaler):
    loss = _forward(model, inputs, targets, loss_fn)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    if torch.isfinite(loss):
        scaler.update()
    optimizer.zero_grad()
    return loss.detach()


def s_half_model(model, inputs, targets, loss_fn, optimizer, scaler):
    model.half()
    return s_right(model, inputs.half(), targets, loss_fn, optimizer, scaler)


# --- 4. log_scale -----------------------------------------------------------------------------------------
def l_right(scaler, optimizer):
    used = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return used, scaler.get_scale() < used


def l_right_hook(scaler, optimizer):
    stepped = []
    hook = optimizer.register_step_post_hook(lambda *_: stepped.append(True))
    used = scaler.get_scale()
    scaler.step(optimizer)
    hook.remove()
    scaler.update()
    return used, not stepped


def l_right_looks(scaler, optimizer):
    used = scaler.get_scale()
    grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
    bad = not all(torch.isfinite(grad).all() for grad in grads)
    scaler.step(optimizer)
    scaler.update()
    return (used, bad)


def l_reads_after(scaler, optimizer):
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale(), scaler.get_scale() < before


def l_any_change(scaler, optimizer):
    used = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return used, scaler.get_scale() != used


def l_returned_none(scaler, optimizer):
    used = scaler.get_scale()
    skipped = scaler.step(optimizer) is None
    scaler.update()
    return used, skipped


def l_only_inf(scaler, optimizer):
    used = scaler.get_scale()
    grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
    skipped = any(bool(torch.isinf(grad).any()) for grad in grads)
    scaler.step(optimizer)
    scaler.update()
    return used, skipped


def l_never(scaler, optimizer):
    used = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return used, False


def l_no_update(scaler, optimizer):
    used = scaler.get_scale()
    scaler.step(optimizer)
    return used, scaler.get_scale() < used


def l_plain_step(scaler, optimizer):
    used = scaler.get_scale()
    scaler.unscale_(optimizer)
    optimizer.step()
    scaler.update()
    return used, scaler.get_scale() < used


def l_none(scaler, optimizer):
    l_right(scaler, optimizer)


def l_only_scale(scaler, optimizer):
    return l_right(scaler, optimizer)[0]


# --- 6. evaluate_right ------------------------------------------------------------------------------------
def e_right(model, batches):
    was_training = model.training
    model.eval()
    right = count = 0
    with torch.inference_mode():
        for inputs, targets in batches:
            with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
                logits = model(inputs)
            right += (logits.argmax(dim=-1) == targets).sum().item()
            count += len(targets)
    model.train(was_training)
    return right / count


def e_right_decorated(model, batches):
    @torch.inference_mode()
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def hits():
        return torch.cat([model(x).argmax(1) == y for x, y in batches])

    mode = model.training
    try:
        return hits_of(model, hits)
    finally:
        model.train(mode)


def hits_of(model, hits):
    model.eval()
    return hits().float().mean()


def e_train_mode(model, batches):
    right = count = 0
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        model.train()
        for inputs, targets in batches:
            right += (model(inputs).argmax(dim=-1) == targets).sum().item()
            count += len(targets)
    return right / count


def e_stays_in_eval(model, batches):
    model.eval()
    right = count = 0
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        for inputs, targets in batches:
            right += (model(inputs).argmax(dim=-1) == targets).sum().item()
            count += len(targets)
    return right / count


def e_graphs(model, batches):
    was_training = model.training
    model.eval()
    right = count = 0
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            right += (model(inputs).argmax(dim=-1) == targets).sum().item()
        count += len(targets)
    model.train(was_training)
    return right / count


def e_no_grad(model, batches):
    with torch.no_grad():
        return e_graphs(model, batches)


def e_no_autocast(model, batches):
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        right = sum((model(x).argmax(-1) == y).sum().item() for x, y in batches)
    model.train(was_training)
    return right / sum(len(y) for _, y in batches)


def _rates(model, batches):
    was_training = model.training
    model.eval()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        rates = [(model(x).argmax(-1) == y).float().mean().item() for x, y in batches]
    model.train(was_training)
    return rates


def e_mean_of_means(model, batches):
    rates = _rates(model, batches)
    return sum(rates) / len(rates)


def e_percent(model, batches):
    return 100 * e_right(model, batches)


def e_last_batch(model, batches):
    return _rates(model, batches)[-1]


def e_count(model, batches):
    return e_right(model, batches) * sum(len(y) for _, y in batches)


def e_wrong_dim(model, batches):
    was_training = model.training
    model.eval()
    right = 0
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        for x, y in batches:
            right += (model(x).argmax(0)[:5] == y[:5]).sum().item()
    model.train(was_training)
    return right / sum(len(y) for _, y in batches)


WRONG = {
    "honest_timing": {
        "no sync": (t_no_sync, "before the device had done the work"),
        "sync only before": (t_sync_only_before, "before the device had done the work"),
        "mean with the first step": (t_mean_with_first, "first steps are in your measurement"),
        "mean": (t_mean, "one hiccup moved your result"),
        "loading counted": (t_loading, "loading the batch is in your measurement"),
        "all steps together": (t_total, "time of all steps together"),
        "no warm-up": (t_no_warmup, "run the warm-up"),
        "a clock of one's own": (t_own_clock, "`clock()` was never read"),
        "milliseconds": (t_milliseconds, "in milliseconds"),
        "returns None": (t_none, "returned None"),
    },
    "add_autocast": {
        "backward inside": (a_backward_inside, "`backward()` ran inside"),
        "loss outside": (a_loss_outside, "outside of the autocast region, in bfloat16"),
        "no autocast": (a_no_autocast, "outside of autocast: the first Linear gave float32"),
        "converts the model": (a_half, "parameters are bfloat16 now"),
        "float16": (a_fp16, "gave float16, and the task asks for bfloat16"),
        "no zero_grad": (a_no_zero, "never cleared"),
        "no step": (a_no_step, "`optimizer.step()` ran 0 times"),
        "no backward": (a_no_backward, "`backward()` ran 0 times"),
        "returns None": (a_none, "returned None"),
        "leaves autocast on": (a_leaves_it_on, "inside the autocast region"),
        "autocast disabled": (a_cuda_only, "outside of autocast"),
        "loss not reduced": (a_unreduced, "more than one element"),
    },
    "add_scaler": {
        "no update": (s_no_update, "`scaler.update()` ran 0 times"),
        "optimizer.step": (s_plain_step, "`optimizer.step()` was called directly"),
        "loss not scaled": (s_not_scaled, "was not scaled"),
        "scaled loss unused": (s_scaled_but_unused, "was not scaled"),
        "zero_grad between": (s_zero_between, "cleared between `backward()` and the step"),
        "zero_grad between, to zeros": (s_zero_between_not_none, "cleared between `backward()` and the step"),
        "returns the scaled loss": (s_returns_scaled, "1,024 times too large"),
        "divides by hand too": (s_divides_too, "divided by the scale more than once"),
        "a scaler of its own": (s_own_scaler, "not by the scaler that was handed in"),
        "no autocast": (s_no_autocast, "outside of autocast"),
        "bf16": (s_bf16, "the task asks for float16"),
        "update only if finite": (s_update_if_finite, "`scaler.update()`"),
        "half model": (s_half_model, "parameters are float16 now"),
    },
    "log_scale": {
        "reads after update": (l_reads_after, "read after the update"),
        "any change is a skip": (l_any_change, "because it grew"),
        "step returned None": (l_returned_none, "returns what the optimizer returns"),
        "only inf": (l_only_inf, "inf is not the only cause"),
        "never skipped": (l_never, "your log says it was not"),
        "no update": (l_no_update, "has to run once in each call"),
        "optimizer.step": (l_plain_step, "`scaler.step(optimizer)` has to run once"),
        "returns None": (l_none, "returned None"),
        "only the scale": (l_only_scale, "not the pair"),
    },
    "count_bytes": {
        "AMP halves all": ({"fp32": 16, "amp": 8, "half": 8}, "AMP does not halve"),
        "forgets Adam": ({"fp32": 8, "amp": 8, "half": 4}, "Adam keeps two averages"),
        "only weights": ({"fp32": 4, "amp": 4, "half": 2}, "the weight alone"),
        "AMP keeps half copies": ({"fp32": 16, "amp": 18, "half": 8}, "only while the autocast region is open"),
        "half gradients in AMP": ({"fp32": 16, "amp": 14, "half": 8}, "dtype of its parameter"),
        "half with fp32 Adam": ({"fp32": 16, "amp": 16, "half": 12}, "in the parameter's dtype"),
        "one place open": ({"fp32": 16, "amp": ..., "half": 8}, "still `...` for amp"),
        "another key": ({"fp32": 16, "bf16": 16, "half": 8}, "the keys fp32, amp, half"),
        "strings": ({"fp32": "16", "amp": 16, "half": 8}, "is a number"),
    },
    "evaluate_right": {
        "train mode": (e_train_mode, "ran in train mode"),
        "stays in eval": (e_stays_in_eval, "put it back"),
        "records graphs": (e_graphs, "autograd recorded"),
        "no_grad": (e_no_grad, "under `no_grad`"),
        "no autocast": (e_no_autocast, "the logits are float32"),
        "mean of means": (e_mean_of_means, "unequal size"),
        "percent": (e_percent, "in percent"),
        "last batch": (e_last_batch, "only the last batch"),
        "a count": (e_count, "divide it by the number of all"),
        "argmax over the batch": (e_wrong_dim, "argmax over the last dimension"),
    },
}

RIGHT = {
    "honest_timing": {"sample by sample": t_right, "all loaded before": t_right_all_loaded_before},
    "add_autocast": {"zero_grad last": a_right, "zero_grad first, returns a float": a_right_item},
    "add_scaler": {"plain": s_right, "unscales first": s_right_unscales},
    "log_scale": {"compares scales": l_right, "step hook": l_right_hook, "looks at gradients": l_right_looks},
    "count_bytes": {
        "integers": {"fp32": 16, "amp": 16, "half": 8},
        "sums, any order": {"half": 2 + 2 + 2 + 2, "amp": 4.0 * 4, "fp32": 4 + 4 + 8},
    },
    "evaluate_right": {"adds up": e_right, "decorators": e_right_decorated},
}
