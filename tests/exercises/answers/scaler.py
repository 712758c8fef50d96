import functools
import math

import torch

from amp_course.scaler import DynamicScaler

INF = float("inf")


# --- 1. static_scaling ------------------------------------------------------------------------------------
def backward_all(model, batches, loss_fn, scale):
    for inputs, targets in batches:
        (loss_fn(model(inputs), targets) / len(batches) * scale).backward()


def divide(model, scale):
    for parameter in model.parameters():
        parameter.grad.div_(scale)


def one_right(model, batches, loss_fn, optimizer, scale):
    backward_all(model, batches, loss_fn, scale)
    divide(model, scale)
    optimizer.step()
    optimizer.zero_grad()


def one_right_after(model, batches, loss_fn, optimizer, scale):
    optimizer.zero_grad(set_to_none=False)
    for inputs, targets in batches:
        (scale * loss_fn(model(inputs), targets)).backward()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = parameter.grad.float() * (1 / (scale * len(batches)))
    optimizer.step()


def one_right_one_graph(model, batches, loss_fn, optimizer, scale):
    model.zero_grad()
    torch.stack([loss_fn(model(x), y) for x, y in batches]).mean().mul(scale).backward()
    divide(model, scale)
    optimizer.step()


def one_right_by_torch(model, batches, loss_fn, optimizer, scale):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets) / len(batches)
        loss.backward(gradient=torch.tensor(scale))
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)
    optimizer.zero_grad()


def one_no_unscale(model, batches, loss_fn, optimizer, scale):
    backward_all(model, batches, loss_fn, scale)
    optimizer.step()
    optimizer.zero_grad()


def one_divides_weights(model, batches, loss_fn, optimizer, scale):
    backward_all(model, batches, loss_fn, scale)
    optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.div_(scale)
    optimizer.zero_grad()


def one_scales_rate(model, batches, loss_fn, optimizer, scale):
    backward_all(model, batches, loss_fn, scale)
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / scale
    optimizer.step()
    optimizer.zero_grad()


def one_unscales_before(model, batches, loss_fn, optimizer, scale):
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets) * scale
        (loss / scale / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


def one_scales_after(model, batches, loss_fn, optimizer, scale):
    backward_all(model, batches, loss_fn, 1.0)
    for parameter in model.parameters():
        parameter.grad.mul_(scale)
    optimizer.step()
    optimizer.zero_grad()


def one_never_scales(model, batches, loss_fn, optimizer, scale):
    backward_all(model, batches, loss_fn, 1.0)
    divide(model, scale)
    optimizer.step()
    optimizer.zero_grad()


def one_unscales_inside(model, batches, loss_fn, optimizer, scale):
    for inputs, targets in batches:
        (loss_fn(model(inputs), targets) * scale / len(batches)).backward()
        divide(model, scale)
    optimizer.step()
    optimizer.zero_grad()


def one_unscales_twice(model, batches, loss_fn, optimizer, scale):
    backward_all(model, batches, loss_fn, scale)
    divide(model, scale)
    divide(model, scale)
    optimizer.step()
    optimizer.zero_grad()


def one_sum(model, batches, loss_fn, optimizer, scale):
    backward_all(model, batches, loss_fn, scale * len(batches))
    divide(model, scale)
    optimizer.step()
    optimizer.zero_grad()


def one_clears_inside(model, batches, loss_fn, optimizer, scale):
    for inputs, targets in batches:
        optimizer.zero_grad()
        (loss_fn(model(inputs), targets) * scale / len(batches)).backward()
    divide(model, scale)
    optimizer.step()


def one_never_clears(model, batches, loss_fn, optimizer, scale):
    backward_all(model, batches, loss_fn, scale)
    divide(model, scale)
    optimizer.step()


def one_clears_first(model, batches, loss_fn, optimizer, scale):
    backward_all(model, batches, loss_fn, scale)
    divide(model, scale)
    optimizer.zero_grad()
    optimizer.step()


def one_steps_each(model, batches, loss_fn, optimizer, scale):
    for batch in batches:
        one_right(model, [batch], loss_fn, optimizer, scale)


def one_no_step(model, batches, loss_fn, optimizer, scale):
    backward_all(model, batches, loss_fn, scale)
    divide(model, scale)
    optimizer.zero_grad()


def one_last_batch(model, batches, loss_fn, optimizer, scale):
    one_right(model, batches[-1:], loss_fn, optimizer, scale)


def one_steps_by_hand(model, batches, loss_fn, optimizer, scale):
    backward_all(model, batches, loss_fn, scale)
    divide(model, scale)
    optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad * 1000
    optimizer.zero_grad()


# --- 2. unscale_and_check ---------------------------------------------------------------------------------
def gradients(optimizer):
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def two_right(optimizer, scale):
    found = False
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.div_(scale)
                found = found or not torch.isfinite(parameter.grad).all()
    return found


def two_right_foreach(optimizer, scale):
    torch._foreach_mul_(gradients(optimizer), 1 / scale)
    return torch.stack([~g.isfinite().all() for g in gradients(optimizer)]).any()


def two_right_max(optimizer, scale):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad = parameter.grad / scale
    return max(0.0 if g.abs().max() < INF else 1.0 for g in gradients(optimizer))


def two_params(optimizer, scale):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.data /= scale
    return any(not g.isfinite().all() for g in gradients(optimizer))


def two_misses_nan(optimizer, scale):
    two_right(optimizer, scale)
    return any(bool(g.isinf().any()) for g in gradients(optimizer))


def two_misses_minus(optimizer, scale):
    two_right(optimizer, scale)
    return any(bool((g == INF).any() or g.isnan().any()) for g in gradients(optimizer))


def two_in_fp16(optimizer, scale):
    for g in gradients(optimizer):
        g.copy_(g.half() / scale)
    return any(not g.isfinite().all() for g in gradients(optimizer))


def two_rounds_to_fp16(optimizer, scale):
    for g in gradients(optimizer):
        g.copy_((g / scale).half())
    return any(not g.isfinite().all() for g in gradients(optimizer))


def two_returns_in_loop(optimizer, scale):
    for g in gradients(optimizer):
        g.div_(scale)
        return not g.isfinite().all()


def two_returns_early(optimizer, scale):
    for g in gradients(optimizer):
        g.div_(scale)
        if not g.isfinite().all():
            return True
    return False


def two_only_first(optimizer, scale):
    two_right(optimizer, scale)
    return not gradients(optimizer)[0].isfinite().all()


def two_grad_none(optimizer, scale):
    found = False
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.div_(scale)
            found |= not parameter.grad.isfinite().all()
    return found


def two_first_group(optimizer, scale):
    mine = [p.grad for p in optimizer.param_groups[0]["params"]]
    torch._foreach_div_(mine, scale)
    return any(not g.isfinite().all() for g in mine)


def two_new_tensors(optimizer, scale):
    found = False
    for g in gradients(optimizer):
        g = g / scale
        found |= not bool(g.isfinite().all())
    return found


def two_sums(optimizer, scale):
    found = any(not g.sum().isfinite() for g in gradients(optimizer))
    two_right(optimizer, scale)
    return found


def two_multiplies(optimizer, scale):
    return two_right(optimizer, 1 / scale)


def two_twice(optimizer, scale):
    two_right(optimizer, scale)
    return two_right(optimizer, scale)


def two_cleans(optimizer, scale):
    found = two_right(optimizer, scale)
    for g in gradients(optimizer):
        g.nan_to_num_()
    return found


def two_none(optimizer, scale):
    two_right(optimizer, scale)


def two_list(optimizer, scale):
    two_right(optimizer, scale)
    return [g for g in gradients(optimizer) if not g.isfinite().all()]


# --- 3. update_rule ---------------------------------------------------------------------------------------
def three_right(scale, streak, found_inf, growth, backoff, interval):
    if found_inf:
        return scale * backoff, 0
    streak += 1
    if streak < interval:
        return scale, streak
    grown = scale * growth
    return (grown if torch.tensor(grown).isfinite() else scale), 0


def three_right_torch(scale, streak, found_inf, growth, backoff, interval):
    scale, streak = torch.tensor(scale), torch.tensor(streak, dtype=torch.int32)
    torch._amp_update_scale_(scale, streak, torch.tensor(float(found_inf)), growth, backoff, interval)
    return [scale, streak]


def three_right_flat(scale, streak, found_inf, growth, backoff, interval):
    clean = 0 if found_inf else streak + 1
    factor = backoff if found_inf else growth if clean == interval else 1
    if scale * factor > torch.finfo(torch.float32).max:
        factor = 1
    return scale * factor, clean % interval


def three_grows_on_skip(scale, streak, found_inf, growth, backoff, interval):
    if streak + 1 == interval:
        return three_right(scale, streak, False, growth, backoff, interval)
    return three_right(scale, streak, found_inf, growth, backoff, interval)


def three_keeps_streak(scale, streak, found_inf, growth, backoff, interval):
    after, now = three_right(scale, streak, found_inf, growth, backoff, interval)
    return after, streak if found_inf else now


def three_counts_skip(scale, streak, found_inf, growth, backoff, interval):
    after, now = three_right(scale, streak, found_inf, growth, backoff, interval)
    return after, streak + 1 if found_inf else now


def three_one_late(scale, streak, found_inf, growth, backoff, interval):
    if found_inf:
        return scale * backoff, 0
    if streak == interval:
        return scale * growth, 0
    return scale, streak + 1


def three_one_early(scale, streak, found_inf, growth, backoff, interval):
    if not found_inf and streak + 2 == interval:
        return scale * growth, 0
    return three_right(scale, streak, found_inf, growth, backoff, interval)


def three_no_reset(scale, streak, found_inf, growth, backoff, interval):
    after, now = three_right(scale, streak, found_inf, growth, backoff, interval)
    return after, now if found_inf else streak + 1


def three_to_inf(scale, streak, found_inf, growth, backoff, interval):
    if found_inf:
        return scale * backoff, 0
    return (scale * growth, 0) if streak + 1 == interval else (scale, streak + 1)


def three_clamps(scale, streak, found_inf, growth, backoff, interval):
    after, now = three_to_inf(scale, streak, found_inf, growth, backoff, interval)
    return min(after, torch.finfo(torch.float32).max), now


def three_keeps_at_top(scale, streak, found_inf, growth, backoff, interval):
    after, now = three_right(scale, streak, found_inf, growth, backoff, interval)
    return after, streak + 1 if not found_inf and now == 0 and after == scale else now


def three_no_backoff(scale, streak, found_inf, growth, backoff, interval):
    return (scale, 0) if found_inf else three_right(scale, streak, found_inf, growth, backoff, interval)


def three_floor(scale, streak, found_inf, growth, backoff, interval):
    after, now = three_right(scale, streak, found_inf, growth, backoff, interval)
    return max(after, 1.0), now


def three_always_halves(scale, streak, found_inf, growth, backoff, interval):
    return three_right(scale, streak, found_inf, growth, 0.5, interval)


def three_always_doubles(scale, streak, found_inf, growth, backoff, interval):
    return three_right(scale, streak, found_inf, 2.0, backoff, interval)


def three_only_scale(scale, streak, found_inf, growth, backoff, interval):
    return three_right(scale, streak, found_inf, growth, backoff, interval)[0]


def three_none(scale, streak, found_inf, growth, backoff, interval):
    three_right(scale, streak, found_inf, growth, backoff, interval)


# --- 4. scaler_class --------------------------------------------------------------------------------------
class FourRight:
    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self._scale, self._streak = init_scale, 0
        self._growth, self._backoff, self._interval = growth_factor, backoff_factor, growth_interval
        self._found = {}

    def scale(self, loss):
        return loss * self._scale

    def unscale_(self, optimizer):
        self._found[id(optimizer)] = two_right(optimizer, self._scale)

    def step(self, optimizer):
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        if not self._found[id(optimizer)]:
            optimizer.step()

    def update(self):
        found = any(self._found.values())
        self._found.clear()
        self._scale, self._streak = three_right(
            self._scale, self._streak, found, self._growth, self._backoff, self._interval
        )

    def get_scale(self):
        return self._scale

    def state_dict(self):
        return {
            "scale": self._scale,
            "streak": self._streak,
            "growth": self._growth,
            "backoff": self._backoff,
            "interval": self._interval,
        }

    def load_state_dict(self, state):
        self._scale, self._streak = state["scale"], state["streak"]
        self._growth, self._backoff, self._interval = state["growth"], state["backoff"], state["interval"]


class FourTorch(torch.amp.GradScaler):
    def __init__(self, **options):
        super().__init__("cpu", **options)


class FourWithoutUnscale:
    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.s = torch.tensor(init_scale)
        self.options = [growth_factor, backoff_factor, growth_interval]
        self.clean, self.bad = 0, False

    def scale(self, loss):
        return self.s * loss

    def step(self, optimizer):
        found = two_right(optimizer, self.s)
        self.bad |= bool(found)
        return None if found else optimizer.step()

    def update(self):
        scale, self.clean = three_right(self.s.item(), self.clean, self.bad, *self.options)
        self.s.fill_(scale)
        self.bad = False

    def get_scale(self):
        return self.s

    def state_dict(self):
        return {"all": (self.s.item(), list(self.options), self.clean)}

    def load_state_dict(self, state):
        scale, self.options, self.clean = state["all"]
        self.s = torch.tensor(scale)


class FourForgetsStreak(FourRight):
    def load_state_dict(self, state):
        super().load_state_dict({**state, "streak": 0})


class FourForgetsOptions(FourRight):
    def load_state_dict(self, state):
        super().load_state_dict({**self.state_dict(), "scale": state["scale"], "streak": state["streak"]})


class FourForgetsScale(FourRight):
    def load_state_dict(self, state):
        super().load_state_dict({**state, "scale": self._scale})


class FourLivingState(FourRight):
    def state_dict(self):
        return self.__dict__

    def load_state_dict(self, state):
        self.__dict__.update(state)


class FourStepsOnInf(FourRight):
    def step(self, optimizer):
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        optimizer.step()


class FourNeverClears(FourRight):
    def update(self):
        found = any(self._found.values())
        for key in self._found:
            self._found[key] = found
        self._scale, self._streak = three_right(
            self._scale, self._streak, found, self._growth, self._backoff, self._interval
        )


class FourKeepsFound(FourWithoutUnscale):
    def step(self, optimizer):
        self.bad |= bool(two_right(optimizer, self.s))
        return None if self.bad else optimizer.step()

    def update(self):
        scale, self.clean = three_right(self.s.item(), self.clean, self.bad, *self.options)
        self.s.fill_(scale)


class FourUnscalesTwice(FourRight):
    def step(self, optimizer):
        self.unscale_(optimizer)
        super().step(optimizer)


class FourShares(FourWithoutUnscale):
    def step(self, optimizer):
        self.bad |= bool(two_right(optimizer, self.s))
        return None if self.bad else optimizer.step()


class FourLastWins(FourWithoutUnscale):
    def step(self, optimizer):
        self.bad = bool(two_right(optimizer, self.s))
        return None if self.bad else optimizer.step()


class FourNoUnscale(FourWithoutUnscale):
    def step(self, optimizer):
        found = any(not g.isfinite().all() for g in gradients(optimizer))
        self.bad |= found
        return None if found else optimizer.step()


class FourNoBackoff(FourRight):
    def update(self):
        self._found = dict.fromkeys(self._found, False)
        super().update()


class FourNoGrowth(FourRight):
    def update(self):
        self._streak = 0
        super().update()


class FourCountsOptimizers(FourRight):
    def step(self, optimizer):
        super().step(optimizer)
        self._streak += len(self._found) - 1


class FourNeverSteps(FourRight):
    def step(self, optimizer):
        self.unscale_(optimizer)


class FourDetaches(FourRight):
    def scale(self, loss):
        return torch.tensor(loss.item() * self._scale)


class FourNoScale(FourRight):
    def scale(self, loss):
        return loss


class FourScaleNone(FourRight):
    def scale(self, loss):
        loss * self._scale


class FourLazyUnscale(FourRight):
    def unscale_(self, optimizer):
        self._found[id(optimizer)] = any(not g.isfinite().all() for g in gradients(optimizer))


class FourLacks:
    def __init__(self, **options):
        pass

    def scale(self, loss):
        return loss

    def step(self, optimizer):
        optimizer.step()


class FourNoState(FourRight):
    def state_dict(self):
        self.saved = super().state_dict()


# --- 5. clip_scaled ---------------------------------------------------------------------------------------
def clip(parameters, max_norm):
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm)


def five_right(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = clip(parameters, max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


def five_right_scaled(loss, parameters, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    norm = clip(parameters, max_norm * scaler.get_scale())
    true = norm / scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return true.item()


def five_right_by_hand(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in parameters))
    if norm > max_norm:
        for p in parameters:
            p.grad *= max_norm / norm
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return norm


def five_right_guarded(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = clip(parameters, max_norm)
    if norm.isfinite():
        optimizer.step()
    scaler.update()
    return float(norm)


def five_error(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, error_if_nonfinite=True)
    scaler.step(optimizer)
    scaler.update()
    return norm


def five_before_unscaling(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    norm = clip(parameters, max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


def five_then_unscales(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    norm = clip(parameters, max_norm)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return norm


def five_plain_step(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = clip(parameters, max_norm)
    optimizer.step()
    scaler.update()
    return norm


def five_plain_step_scaled(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    optimizer.step()
    return clip(parameters, max_norm)


def five_unscales_by_hand(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    for p in parameters:
        p.grad.div_(scaler.get_scale())
    norm = clip(parameters, max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


def five_params(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.cat([p.grad.flatten() for p in parameters]).norm()
    with torch.no_grad():
        for p in parameters:
            p.mul_(max_norm / norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


def five_no_update(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = clip(parameters, max_norm)
    scaler.step(optimizer)
    return norm


def five_after_step(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    norm = clip(parameters, max_norm)
    scaler.update()
    return norm


def five_no_clip(loss, parameters, optimizer, scaler, max_norm):
    return five_right(loss, parameters, optimizer, scaler, 1e9)


def five_scaled_norm(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    norm = clip(parameters, max_norm * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
    return norm


def five_normalizes(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.cat([p.grad.flatten() for p in parameters]).norm()
    for p in parameters:
        p.grad *= max_norm / norm
    scaler.step(optimizer)
    scaler.update()
    return norm


def five_each_apart(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.cat([p.grad.flatten() for p in parameters]).norm()
    for p in parameters:
        clip([p], max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


def five_by_value(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.cat([p.grad.flatten() for p in parameters]).norm()
    torch.nn.utils.clip_grad_value_(parameters, max_norm / 2)
    scaler.step(optimizer)
    scaler.update()
    return norm


def five_norm_after(loss, parameters, optimizer, scaler, max_norm):
    five_right(loss, parameters, optimizer, scaler, max_norm)
    return torch.cat([p.grad.flatten() for p in parameters]).norm()


def five_none(loss, parameters, optimizer, scaler, max_norm):
    five_right(loss, parameters, optimizer, scaler, max_norm)


def five_no_step(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = clip(parameters, max_norm)
    scaler.update()
    return norm


# --- 6. scheduler_waits -----------------------------------------------------------------------------------
def six_right(loss, optimizer, scaler, scheduler):
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= before:
        scheduler.step()


def six_right_hook(loss, optimizer, scaler, scheduler):
    stepped = []
    hook = optimizer.register_step_post_hook(lambda *_: stepped.append(True))
    scaler.step(optimizer)
    hook.remove()
    scaler.update()
    if stepped:
        scheduler.step()


def six_right_gradients(loss, optimizer, scaler, scheduler):
    scaler.unscale_(optimizer)
    clean = all(bool(g.isfinite().all()) for g in gradients(optimizer))
    scaler.step(optimizer)
    if clean:
        scheduler.step()
    scaler.update()


def six_always(loss, optimizer, scaler, scheduler):
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()


def six_unequal(loss, optimizer, scaler, scheduler):
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped = scaler.get_scale() != before
    if not skipped:
        scheduler.step()


def six_before_update(loss, optimizer, scaler, scheduler):
    before = scaler.get_scale()
    scaler.step(optimizer)
    skipped = scaler.get_scale() < before
    scaler.update()
    if not skipped:
        scheduler.step()


def six_after_update(loss, optimizer, scaler, scheduler):
    scaler.step(optimizer)
    scaler.update()
    before = scaler.get_scale()
    if scaler.get_scale() >= before:
        scheduler.step()


def six_loss(loss, optimizer, scaler, scheduler):
    scaler.step(optimizer)
    scaler.update()
    if torch.isfinite(loss):
        scheduler.step()


def six_weights(loss, optimizer, scaler, scheduler):
    scaler.step(optimizer)
    scaler.update()
    if all(p.isfinite().all() for group in optimizer.param_groups for p in group["params"]):
        scheduler.step()


def six_only_nan(loss, optimizer, scaler, scheduler):
    clean = not any(g.isinf().any() for g in gradients(optimizer))
    scaler.step(optimizer)
    scaler.update()
    if clean:
        scheduler.step()


def six_only_plus(loss, optimizer, scaler, scheduler):
    clean = not any((g == INF).any() or g.isnan().any() for g in gradients(optimizer))
    scaler.step(optimizer)
    scaler.update()
    if clean:
        scheduler.step()


def six_first_gradient(loss, optimizer, scaler, scheduler):
    clean = gradients(optimizer)[0].isfinite().all()
    scaler.step(optimizer)
    scaler.update()
    if clean:
        scheduler.step()


def six_return_value(loss, optimizer, scaler, scheduler):
    stepped = scaler.step(optimizer)
    scaler.update()
    if stepped is not None:
        scheduler.step()


def six_scheduler_first(loss, optimizer, scaler, scheduler):
    if all(g.isfinite().all() for g in gradients(optimizer)):
        scheduler.step()
    scaler.step(optimizer)
    scaler.update()


def six_no_update(loss, optimizer, scaler, scheduler):
    scaler.step(optimizer)
    scheduler.step()


def six_update_if_stepped(loss, optimizer, scaler, scheduler):
    clean = all(g.isfinite().all() for g in gradients(optimizer))
    scaler.step(optimizer)
    if clean:
        scaler.update()
        scheduler.step()


def six_plain_step(loss, optimizer, scaler, scheduler):
    optimizer.step()
    scheduler.step()


RIGHT = {
    "static_scaling": {
        "unscales after the loop": one_right,
        "clears first, mean at the end": one_right_after,
        "one graph": one_right_one_graph,
        "torch's scaler, scale as the first gradient": one_right_by_torch,
    },
    "unscale_and_check": {
        "in a loop": two_right,
        "foreach, tensor result": two_right_foreach,
        "new gradients, largest size": two_right_max,
    },
    "update_rule": {"branches": three_right, "torch's kernel": three_right_torch, "no branches": three_right_flat},
    "scaler_class": {
        "dict of finds": FourRight,
        "torch's": FourTorch,
        "no unscale_": FourWithoutUnscale,
        "the course's own": functools.partial(DynamicScaler, "cpu"),
    },
    "clip_scaled": {
        "unscale, clip": five_right,
        "clips scaled to a scaled norm": five_right_scaled,
        "by hand": five_right_by_hand,
        "guarded by its own look": five_right_guarded,
    },
    "scheduler_waits": {"scale": six_right, "hook": six_right_hook, "gradients": six_right_gradients},
}

WRONG = {
    "static_scaling": {
        "forgets to unscale": (one_no_unscale, "still carry the scale"),
        "divides the weights": (one_divides_weights, "the weights were divided by the scale"),
        "scales the learning rate": (one_scales_rate, "out of the learning rate"),
        "unscales before backward": (one_unscales_before, "started from the plain loss, and"),
        "scales after backward": (one_scales_after, "multiplied by the scale after `backward()`"),
        "never scales, but unscales": (one_never_scales, "divided by a scale that the loss never had"),
        "unscales inside the loop": (one_unscales_inside, "only the last micro-batch is left"),
        "unscales twice": (one_unscales_twice, "divided by the scale twice"),
        "sum for mean": (one_sum, "the mean over 3 micro-batches is wanted"),
        "clears inside the loop": (one_clears_inside, "cleared between two micro-batches"),
        "never clears": (one_never_clears, "the gradients are never cleared"),
        "clears before the step": (one_clears_first, "has no gradient when the optimizer steps"),
        "steps for each micro-batch": (one_steps_each, "ran more than once"),
        "no step": (one_no_step, "`optimizer.step()` did not run"),
        "last micro-batch only": (one_last_batch, "ran 1 times for 3 micro-batches"),
        "moves the weights as well": (one_steps_by_hand, "leave them to"),
    },
    "unscale_and_check": {
        "unscales params, not grads": (two_params, "**parameters** were divided"),
        "misses NaN": (two_misses_nan, "a NaN was missed"),
        "misses -inf": (two_misses_minus, "a −inf was missed"),
        "unscales in fp16": (two_in_fp16, "went through fp16"),
        "rounds to fp16": (two_rounds_to_fp16, "went through fp16"),
        "stops at the first parameter": (two_returns_in_loop, "a `return` or `break` in the loop"),
        "returns before the rest": (two_returns_early, "you stop once an inf or NaN is found"),
        "looks at the first only": (two_only_first, "an inf in the second parameter's gradient was missed"),
        "trips on grad None": (two_grad_none, "has no gradient (`parameter.grad` is None)"),
        "first group only": (two_first_group, "the second parameter group"),
        "new tensors": (two_new_tensors, "the gradients are what they were"),
        "sums": (two_sums, "can overflow too"),
        "multiplies": (two_multiplies, "multiplied by the scale once more"),
        "unscales twice": (two_twice, "divided by the scale twice"),
        "cleans inf away": (two_cleans, "was replaced by a number"),
        "no return": (two_none, "returned None"),
        "returns a list": (two_list, "returned a list"),
    },
    "update_rule": {
        "grows on a skipped step": (three_grows_on_skip, "grows on a skipped step"),
        "does not reset the streak on backoff": (three_keeps_streak, "the streak goes on after a backoff"),
        "counts the skipped step": (three_counts_skip, "counts as a clean one"),
        "grows every interval+1": (three_one_late, "grows one step late"),
        "grows early": (three_one_early, "grows too early"),
        "does not reset after growth": (three_no_reset, "restarts at 0; if"),
        "grows to inf": (three_to_inf, "past float32's largest number"),
        "clamps at the largest": (three_clamps, "torch leaves the scale as it is"),
        "keeps the streak at the top": (three_keeps_at_top, "restarts at 0 anyway"),
        "no backoff": (three_no_backoff, "does not back off"),
        "floor of 1": (three_floor, "stops falling at 1"),
        "always halves": (three_always_halves, "backs off by a factor other"),
        "always doubles": (three_always_doubles, "grows by a factor other"),
        "only the scale": (three_only_scale, "not the pair"),
        "no return": (three_none, "returned None"),
    },
    "scaler_class": {
        "state forgets the streak": (FourForgetsStreak, "forgets the streak of clean steps"),
        "state forgets the factors": (FourForgetsOptions, "belong into the state too"),
        "state forgets the scale": (FourForgetsScale, "after loading: `state_dict` has to hold"),
        "state goes on living": (FourLivingState, "a number and not a tensor that goes on changing"),
        "steps on inf": (FourStepsOnInf, "the weights are NaN for good"),
        "update forgets to clear": (FourKeepsFound, "`update()` has to forget what was found"),
        "unscales only once ever": (FourNeverClears, "to forget which optimizers are unscaled"),
        "unscales twice": (FourUnscalesTwice, "the gradients were unscaled twice"),
        "shares found-inf": (FourShares, "keep what is found for each optimizer apart"),
        "last optimizer wins": (FourLastWins, "hid the inf that the first one found"),
        "never unscales": (FourNoUnscale, "too large: `step` has to unscale them first"),
        "no backoff": (FourNoBackoff, "does not back off"),
        "no growth": (FourNoGrowth, "does not grow"),
        "counts a step for each optimizer": (FourCountsOptimizers, "counts updates, not optimizers"),
        "never steps": (FourNeverSteps, "clean gradients was not taken"),
        "detaches": (FourDetaches, "without a graph"),
        "does not scale": (FourNoScale, "is not the loss times the scale"),
        "scale returns None": (FourScaleNone, "returned a NoneType"),
        "unscale_ leaves gradients": (FourLazyUnscale, "times too large: `step` has to unscale them first"),
        "lacks methods": (FourLacks, "lack `update`, `get_scale`"),
        "state_dict returns None": (FourNoState, "`state_dict()` returned None"),
    },
    "clip_scaled": {
        "clips before unscaling": (five_before_unscaling, "times too large: you clipped before unscaling"),
        "clips, then unscales": (five_then_unscales, "times too large: you clipped before unscaling"),
        "steps by hand": (five_plain_step, "`optimizer.step()` was called by hand"),
        "steps by hand, scaled": (five_plain_step_scaled, "and here they are not"),
        "unscales by hand": (five_unscales_by_hand, "divided by the scale twice"),
        "clips params": (five_params, "the weights changed before the step"),
        "no update": (five_no_update, "`scaler.update()` is missing"),
        "clips after the step": (five_after_step, "you clipped after the step"),
        "no clipping": (five_no_clip, "unclipped"),
        "norm of scaled gradients": (five_scaled_norm, "divide it by the scale for the log"),
        "always to max_norm": (five_normalizes, "were made larger"),
        "each parameter apart": (five_each_apart, "each parameter was clipped on its own"),
        "by value": (five_by_value, "elements were clipped"),
        "norm after clipping": (five_norm_after, "measured after clipping"),
        "no return": (five_none, "returned None"),
        "no step": (five_no_step, "no step was taken"),
        "raises on an overflow": (five_error, "`error_if_nonfinite` stops the training"),
    },
    "scheduler_waits": {
        "always": (six_always, "steps that the optimizer never took"),
        "compares with !=": (six_unequal, "because it **grew**"),
        "compares before update": (six_before_update, "you compare the scale before it changes"),
        "compares after update": (six_after_update, "both readings of the scale come after"),
        "looks at the loss": (six_loss, "you look at the loss"),
        "looks at the weights": (six_weights, "you look at the weights"),
        "looks for inf only": (six_only_nan, "you look for inf, and NaN"),
        "looks for +inf only": (six_only_plus, "you look for +inf"),
        "first gradient only": (six_first_gradient, "the first parameter's gradient only"),
        "return value of step": (six_return_value, "does not advance on clean steps"),
        "scheduler first": (six_scheduler_first, "the scheduler moved before the optimizer"),
        "no update": (six_no_update, "has to run once in each call"),
        "updates only after a step": (six_update_if_stepped, "after a skipped step too"),
        "steps by hand": (six_plain_step, "`scaler.step(optimizer)` has to run once"),
    },
}
