"""Broken steps: overflows that are not skipped or not cleared away, and schedulers that move when they should not."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, OneCycleLR, StepLR

from tests.audit.broken_parts import Gan, Trainer, collector, dicts, given, mse, mse_of_dict, parts
from tests.audit.case import Case, Made

CASES: list[Case] = []
case = collector(CASES)


# ---- overflows


@case("function", "overflow-not-skipped")
def plain_step_after_unscale() -> Made:
    """unscale_ and a plain optimizer.step(): nobody looks at the inf, and clipping makes NaN of it for every weight."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scaler.update()

    return train_step, given(model, optimizer, scaler, loss=mse, max_norm=1.0)


@case("function", "overflow-not-skipped")
def isinf_after_clipping() -> Made:
    """The check comes after clipping, which has made NaN of the inf (inf * 0), and isinf() is false for NaN."""
    model, optimizer, scaler = parts()

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        if not any(torch.isinf(p.grad).any() for p in model.parameters()):
            optimizer.step()
        scaler.update()

    return train_step, given(model, optimizer, scaler, max_norm=1.0)


@case("callable object", "overflow-not-skipped")
def loss_checked_instead_of_gradients() -> Made:
    """A finite loss is taken for finite gradients; it is the scaled gradients that overflow, not the loss."""

    class CheckedStep(Trainer):
        def __call__(self, batch):
            self.optimizer.zero_grad()
            loss = self.loss(batch["x"], batch["y"])
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            if torch.isfinite(loss):
                self.optimizer.step()
            self.scaler.update()

    step = CheckedStep(foreach=True)
    return step, step.given(batches=dicts(), loss=mse_of_dict)


class DynamicScale:
    """A dynamic loss scale written by hand, as before PyTorch had one."""

    def __init__(self, has_overflow):
        self.scale, self.good, self.has_overflow = 2.0**10, 0, has_overflow

    def step(self, optimizer, params):
        if self.has_overflow(params):
            self.scale, self.good = self.scale / 2, 0
            return
        for p in params:
            p.grad.div_(self.scale)
        optimizer.step()
        self.good += 1
        if self.good % 1000 == 0:
            self.scale *= 2


@case("hand scaling", "overflow-not-skipped")
def hand_check_for_nan_only() -> Made:
    """x != x finds NaN but not inf: the inf goes into the weights."""
    model, optimizer, _ = parts()
    scale = DynamicScale(lambda params: any((p.grad != p.grad).any() for p in params))

    def train_step(x, y):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        (loss * scale.scale).backward()
        scale.step(optimizer, list(model.parameters()))

    return train_step, given(model, optimizer, loss=mse)


@case("hand scaling", "overflow-not-skipped")
def hand_check_of_one_gradient() -> Made:
    """Only the last bias is looked at ("inf would spread"), but what overflows further down in backward does not reach it."""
    model, optimizer, _ = parts(torch.optim.Adam, 1e-3)
    scale = DynamicScale(lambda params: not params[-1].grad.isfinite().all())

    def train_step(batch):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(batch["x"]), batch["y"])
        (loss * scale.scale).backward()
        scale.step(optimizer, list(model.parameters()))

    return train_step, given(model, optimizer, loss=mse_of_dict, batches=dicts())


@case("hand scaling", "overflow-not-skipped")
def hand_check_of_the_loss() -> Made:
    """The loss is looked at and the gradients are not: they overflow while the loss, not yet scaled, is finite."""
    model, optimizer, _ = parts()
    state = {"scale": 2.0**10}

    def train_step(x, y):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        if not loss.isfinite():
            state["scale"] /= 2
            return
        (loss * state["scale"]).backward()
        for p in model.parameters():
            p.grad.div_(state["scale"])
        optimizer.step()

    return train_step, given(model, optimizer)


@case("hand scaling", "kept-after-skip")
def hand_check_that_returns_before_clearing() -> Made:
    """An overflow halves the scale and returns, past the line that clears: the next gradients are added to the inf."""
    model, optimizer, _ = parts()
    state = {"scale": 2.0**10}

    def train_step(x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        (loss * state["scale"]).backward()
        if not all(p.grad.isfinite().all() for p in model.parameters()):
            state["scale"] /= 2
            return
        for p in model.parameters():
            p.grad.div_(state["scale"])
        optimizer.step()
        optimizer.zero_grad()

    return train_step, given(model, optimizer, loss=mse)


@case("two optimizers", "overflow-not-skipped")
def second_optimizer_stepped_without_a_check() -> Made:
    """The scaler steps the Adam half; the other is unscaled by hand and stepped whatever its gradients hold."""
    model, _, scaler = parts()
    matrices, vectors = [[p for p in model.parameters() if p.ndim == n] for n in (2, 1)]
    muon = torch.optim.SGD(matrices, lr=0.02, momentum=0.95, nesterov=True)
    adam = torch.optim.AdamW(vectors, lr=1e-3)

    def train_step(x, y):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(adam)
        for p in matrices:
            p.grad.mul_(1.0 / scaler.get_scale())
        clip_grad_norm_(model.parameters(), 1.0)
        muon.step()
        scaler.step(adam)
        scaler.update()

    return train_step, given(model, [muon, adam], scaler, loss=mse, max_norm=1.0)


@case("method", "kept-after-skip")
def cleared_only_after_a_step() -> Made:
    """zero_grad only after a step that was made: the inf of a skipped one stays, and all later ones are skipped too."""

    class CountingTrainer(Trainer):
        updates = 0

        def train_step(self, x, y):
            self.scaler.scale(self.loss(x, y)).backward()
            before = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if self.scaler.get_scale() >= before:
                self.updates += 1
                self.optimizer.zero_grad()

    trainer = CountingTrainer()
    return trainer.train_step, trainer.given(loss=mse)


@case("accumulation", "kept-after-skip", "last-group-mean")
def return_before_clearing() -> Made:
    """At a norm that is not finite it calls update() and returns; zero_grad would have come later."""
    model, optimizer, scaler = parts()

    def train_step(x, y, last=False):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y) / 2
        scaler.scale(loss).backward()
        if not last:
            return
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(model.parameters(), 2.0)
        if not norm.isfinite():
            scaler.update()
            return
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return train_step, given(model, optimizer, scaler, loss=mse, accumulate=2, max_norm=2.0)


# ---- schedulers


@case("function", "scheduler-never-moved", "scheduler-ran-on")
def scheduler_gate_the_wrong_way_round() -> Made:
    """The comparison is the wrong way round: the rate moves after skipped updates, and never after made ones."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3)
    scheduler = CosineAnnealingLR(optimizer, T_max=1000)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        if scale > scaler.get_scale():
            scheduler.step()

    return train_step, given(model, optimizer, scaler, scheduler=scheduler)


@case("method", "scheduler-never-moved")
def stepped_flag_set_without_amp_only() -> Made:
    """The flag that lets the scheduler move is only set in the branch without AMP: the rate stays as it is."""

    class FlagTrainer(Trainer):
        def train_step(self, x, y):
            optimizer_stepped = False
            self.optimizer.zero_grad()
            self.scaler.scale(self.loss(x, y)).backward()
            if self.scaler.is_enabled():
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
                optimizer_stepped = True
            if optimizer_stepped:
                scheduler.step()

    trainer = FlagTrainer()
    scheduler = StepLR(trainer.optimizer, step_size=1, gamma=0.99)
    return trainer.train_step, trainer.given(scheduler=scheduler, loss=mse)


@case("function", "scheduler-before-optimizer", "scheduler-ran-on")
def scheduler_before_the_scaler() -> Made:
    """scheduler.step() comes before scaler.step(): the first rate is never used, and a skip cannot be known yet."""
    model, optimizer, scaler = parts()
    scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + 0.01 * step))

    def train_step(x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scheduler.step()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return train_step, given(model, optimizer, scaler, scheduler=scheduler, loss=mse)


@case("callable object", "scheduler-before-optimizer")
def rate_set_at_the_start_of_the_iteration() -> Made:
    """The rate "for this iteration" is set by scheduler.step() at the top, but the first was set when it was made."""

    class Iteration(Trainer):
        def __call__(self, x, y):
            scheduler.step()
            self.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()

    iteration = Iteration(torch.optim.SGD, 0.01, momentum=0.9)
    scheduler = CosineAnnealingLR(iteration.optimizer, T_max=500)
    return iteration, given(iteration.model, iteration.optimizer, scheduler=scheduler, loss=mse)


@case("accumulation", "scheduler-every-micro-batch", "last-group-mean")
def scheduler_outside_the_accumulation_if() -> Made:
    """scheduler.step() is outside the if: planned for the updates, it reaches its end after a quarter of them."""
    model, optimizer, _ = parts(torch.optim.AdamW, 1e-3)
    scheduler = OneCycleLR(optimizer, max_lr=1e-3, total_steps=1000)

    def train_step(x, y, last=False):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x), y) / 4
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()

    return train_step, given(model, optimizer, scheduler=scheduler, loss=mse, accumulate=4)


@case("accumulation, closure", "scheduler-every-micro-batch", "scheduler-ran-on")
def scheduler_gated_on_a_flag_of_the_last_update() -> Made:
    """The flag "not skipped" is kept from the last update and looked at after every micro-batch."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3)
    scheduler = ExponentialLR(optimizer, 0.999)
    i, skipped = 0, False

    def train_step(x, y):
        nonlocal i, skipped
        i += 1
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y) / 2
        scaler.scale(loss).backward()
        if i % 2 == 0:
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            skipped = scaler.get_scale() < before
            optimizer.zero_grad()
        if not skipped:
            scheduler.step()

    return train_step, given(model, optimizer, scaler, scheduler=scheduler, accumulate=2)


@case("accelerate by hand", "scheduler-moved-twice")
def scheduler_moved_once_per_process() -> Made:
    """A copied idiom: the scheduler moves once per process, though its length was counted in updates of all of them."""

    class Accelerated(Trainer):
        num_processes = 2

        def __call__(self, x, y):
            self.scaler.scale(self.loss(x, y)).backward()
            scale = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            step_was_skipped = self.scaler.get_scale() < scale
            if not step_was_skipped:
                for _ in range(self.num_processes):
                    scheduler.step()
            self.optimizer.zero_grad()

    step = Accelerated()
    scheduler = LambdaLR(step.optimizer, lambda n: max(0.0, 1 - n / 1000))
    return step, step.given(scheduler=scheduler, loss=mse)


@case("GAN", "scheduler-moved-twice")
def one_scheduler_moved_for_both_networks() -> Made:
    """The helper is called for each network, and moves both schedulers each time."""
    gan = Gan()
    schedulers = [CosineAnnealingLR(optimizer, T_max=1000) for optimizer in (gan.opt_G, gan.opt_D)]

    def update(loss, optimizer):
        optimizer.zero_grad()
        gan.scaler.scale(loss).backward()
        gan.scaler.step(optimizer)
        before = gan.scaler.get_scale()
        gan.scaler.update()
        if gan.scaler.get_scale() >= before:
            for scheduler in schedulers:
                scheduler.step()

    def train_step(real):
        with torch.autocast("cpu", dtype=torch.float16):
            fake = gan.G(torch.randn(len(real), 4))
            d_loss = F.softplus(-gan.D(real)).mean() + F.softplus(gan.D(fake.detach())).mean()
        update(d_loss, gan.opt_D)
        with torch.autocast("cpu", dtype=torch.float16):
            g_loss = F.softplus(-gan.D(fake)).mean()
        update(g_loss, gan.opt_G)

    return train_step, gan.given(scheduler=schedulers)


@case("function", "scheduler-ran-on")
def scheduler_after_every_update() -> Made:
    """The tutorials' loop: the scheduler moves in skipped updates too, so the rate runs ahead of the updates."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3, init_scale=2.0**14)
    scheduler = OneCycleLR(optimizer, max_lr=1e-2, total_steps=500)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()

    return train_step, given(model, optimizer, scaler, scheduler=scheduler, loss=mse, max_norm=1.0)


@case("function", "scheduler-ran-on")
def scheduler_gated_on_a_positive_scale() -> Made:
    """A gate that is always open: the scale is above 0 after a skipped update too."""
    model, optimizer, scaler = parts()
    scheduler = ExponentialLR(optimizer, 0.999)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() > 0:
            scheduler.step()

    return train_step, given(model, optimizer, scaler, scheduler=scheduler)


@case("method, fused", "scheduler-ran-on")
def old_scale_read_after_the_update() -> Made:
    """The scale "before" is read after update(), so it is always the same as the one after."""

    class LateTrainer(Trainer):
        def train_step(self, x, y):
            self.scaler.scale(self.loss(x, y)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            before = self.scaler.get_scale()
            if not before > self.scaler.get_scale():
                scheduler.step()

    trainer = LateTrainer(fused=True)
    scheduler = CosineAnnealingLR(trainer.optimizer, T_max=200)
    return trainer.train_step, trainer.given(scheduler=scheduler, loss=mse)


@case("function", "scheduler-stalls")
def scheduler_gated_on_an_equal_scale() -> Made:
    """`==` takes a grown scale for a skipped update: the rate misses a move each time the scale grows."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3)
    scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() == before:
            scheduler.step()

    return train_step, given(model, optimizer, scaler, scheduler=scheduler, loss=mse)


@case("accumulation, callable object", "scheduler-stalls")
def remembered_scale_never_renewed() -> Made:
    """The scale is remembered from the start and never renewed: once it has grown, the scheduler stands still for ever."""

    class Loop(Trainer):
        def __call__(self, x, y):
            self.micro += 1
            self.scaler.scale(self.loss(x, y) / 2).backward()
            if self.micro % 2 == 0:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                if self.scaler.get_scale() == first_scale:
                    scheduler.step()
                self.optimizer.zero_grad()

    loop = Loop(torch.optim.SGD, 0.1, momentum=0.9)
    first_scale = loop.scaler.get_scale()
    scheduler = ExponentialLR(loop.optimizer, 0.99)
    return loop, loop.given(scheduler=scheduler, loss=mse, accumulate=2)


@case("two optimizers", "scheduler-stalls", "scheduler-ran-on")
def scheduler_waits_for_a_smaller_or_equal_scale() -> Made:
    """`<=` was meant to say "did not overflow": it moves in skipped updates, and not in those after which the scale grows."""
    model, _, _ = parts()
    scaler = GradScaler("cpu", init_scale=2.0**12, growth_interval=100)
    optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters(), lr=1e-3)]
    schedulers = [ExponentialLR(optimizer, 0.99) for optimizer in optimizers]

    def train_step(x, y):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() <= before:
            for scheduler in schedulers:
                scheduler.step()

    return train_step, given(model, optimizers, scaler, scheduler=schedulers, loss=mse)
