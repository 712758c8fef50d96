"""Broken steps: calls that are missing, doubled, or out of order."""

from __future__ import annotations

import copy
import itertools
from functools import partial

import torch
import torch.nn.functional as F
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import ExponentialLR

from tests.audit.broken_parts import Gan, Trainer, collector, dicts, given, mse, mse_of_dict, net, parts, rows
from tests.audit.case import Case, Made

CASES: list[Case] = []
case = collector(CASES)


# ---- steps


@case("accumulation", "never-stepped")
def counter_that_starts_anew_each_call() -> Made:
    """The counter is a local variable: it is 1 in every call, and the update never comes."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3)

    def train_step(x, y, accum=4):
        i = 0
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y) / accum
        scaler.scale(loss).backward()
        i += 1
        if i % accum == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return train_step, given(model, optimizer, scaler, loss=mse, accumulate=4)


@case("GAN", "optimizer-not-stepped")
def gan_without_the_discriminator_step() -> Made:
    """The discriminator's step is missing: it stays as it was made, while the generator learns to fool it."""
    gan, bce = Gan(), F.binary_cross_entropy_with_logits

    def train_step(real):
        with torch.autocast("cpu", dtype=torch.float16):
            fake = gan.G(torch.randn(len(real), 4))
            d_real, d_fake = gan.D(real), gan.D(fake.detach())
            d_loss = bce(d_real, torch.ones_like(d_real)) + bce(d_fake, torch.zeros_like(d_fake))
        gan.opt_D.zero_grad()
        gan.scaler.scale(d_loss).backward()
        with torch.autocast("cpu", dtype=torch.float16):
            judged = gan.D(fake)
            g_loss = bce(judged, torch.ones_like(judged))
        gan.opt_G.zero_grad()
        gan.scaler.scale(g_loss).backward()
        gan.scaler.step(gan.opt_G)
        gan.scaler.update()

    return train_step, gan.given()


@case("method", "optimizer-not-stepped")
def optimizers_zipped_with_too_few_schedulers() -> Made:
    """zip() stops at the shorter list: only one optimizer has a scheduler, so the other one is never stepped."""

    class Module(Trainer):
        def configure(self):
            self.optimizers = [
                torch.optim.SGD(self.model[0].parameters()),
                torch.optim.Adam(self.model[2].parameters()),
            ]
            self.schedulers = [ExponentialLR(self.optimizers[0], 0.99)]

        def training_step(self, x, y):
            self.model.zero_grad()
            self.scaler.scale(self.loss(x, y)).backward()
            before = self.scaler.get_scale()
            for optimizer, _ in zip(self.optimizers, self.schedulers, strict=False):
                self.scaler.step(optimizer)
            self.scaler.update()
            if self.scaler.get_scale() >= before:
                self.schedulers[0].step()

    m = Module()
    m.configure()
    return m.training_step, given(m.model, m.optimizers, m.scaler, scheduler=m.schedulers, loss=mse)


@case("GAN", "stepped-twice", "overflow-not-skipped")
def gan_stepped_by_the_scaler_and_by_hand() -> Made:
    """Plain steps left over after those of the scaler: each update is made twice, and an overflow reaches the weights."""
    gan = Gan()

    def train_step(real):
        with torch.autocast("cpu", dtype=torch.float16):
            fake = gan.G(torch.randn(len(real), 4))
            loss_disc = ((1 - gan.D(real).float()) ** 2).mean() + (gan.D(fake.detach()).float() ** 2).mean()
        gan.opt_D.zero_grad()
        gan.scaler.scale(loss_disc).backward()
        gan.scaler.step(gan.opt_D)
        with torch.autocast("cpu", dtype=torch.float16):
            loss_gen = ((1 - gan.D(fake).float()) ** 2).mean()
        gan.opt_G.zero_grad()
        gan.scaler.scale(loss_gen).backward(inputs=list(gan.G.parameters()))
        gan.scaler.step(gan.opt_G)
        gan.scaler.update()
        gan.opt_G.step()
        gan.opt_D.step()

    return train_step, gan.given()


@case("accumulation", "stepped-twice")
def remainder_stepped_as_well() -> Made:
    """The full group's step and the one "for the last batches" both fire, and clearing waits for the next group's start."""
    model, optimizer, _ = parts()
    seen = itertools.count(1)

    def train_step(x, y, last=False):
        n = next(seen)
        if n % 4 == 1:
            optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x), y) / 4
        loss.backward()
        if n % 4 == 0:
            optimizer.step()
        if last:
            optimizer.step()

    return train_step, given(model, optimizer, loss=mse, accumulate=4)


@case("accumulation, method", "stepped-every-micro-batch")
def step_outside_the_accumulation_if() -> Made:
    """Only zero_grad is in the if: the weights move after each micro-batch, by a quarter of its gradient."""

    class AccumulatingTrainer(Trainer):
        def fit_batch(self, x, y):
            self.scaler.scale(self.loss(x, y) / 4).backward()
            self.micro += 1
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if self.micro % 4 == 0:
                self.optimizer.zero_grad()

    trainer = AccumulatingTrainer()
    return trainer.fit_batch, trainer.given(loss=mse, accumulate=4)


@case("accumulation, closure", "stepped-every-micro-batch")
def modulo_without_equals_zero() -> Made:
    """`% accum` lacks its `== 0`: it steps after each micro-batch except the one at which it should."""

    def make_step(model, optimizer, accum):
        i = 0

        def train_step(x, y):
            nonlocal i
            i += 1
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(model(x), y) / accum
            loss.backward()
            if i % accum:
                optimizer.step()
                optimizer.zero_grad()

        return train_step

    model, optimizer, _ = parts()
    return make_step(model, optimizer, 3), given(model, optimizer, batches=rows(9), accumulate=3)


# ---- update()


@case("function, fused", "update-missing", "step-raises")
def no_update() -> Made:
    """update() is missing: the scale never adapts, and the second step() raises."""
    model, optimizer, scaler = parts(torch.optim.Adam, 1e-3, fused=True)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)

    return train_step, given(model, optimizer, scaler, loss=mse)


@case("callable object", "update-missing", "no-update-after-skip")
def unscaled_by_hand_without_update() -> Made:
    """Unscaled, checked and skipped by hand, and nobody calls update(): once gradients overflow they always will."""

    class Step(Trainer):
        def __call__(self, x, y):
            self.model.zero_grad()
            self.scaler.scale(self.loss(x, y)).backward()
            grads = [p.grad for p in self.model.parameters()]
            torch._foreach_div_(grads, self.scaler.get_scale())
            if all(g.isfinite().all() for g in grads):
                self.optimizer.step()

    step = Step(torch.optim.SGD, 0.1)
    return step, step.given(loss=mse)


@case("function", "no-update-after-skip")
def update_only_if_the_norm_is_finite() -> Made:
    """step and update are both in the if: after a skip the scale is not lowered, and the next unscale_ raises."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3)

    def train_step(x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()

    return train_step, given(model, optimizer, scaler, loss=mse, max_norm=1.0)


@case("method", "no-update-after-skip")
def early_return_at_an_inf() -> Made:
    """An early return at an inf, before step and update: the scale stays, and every later batch overflows too."""

    class Learner(Trainer):
        def one_batch(self, x, y):
            self.optimizer.zero_grad()
            self.scaler.scale(self.loss(x, y)).backward()
            if any(not p.grad.isfinite().all() for p in self.model.parameters()):
                return
            self.scaler.step(self.optimizer)
            self.scaler.update()

    learner = Learner(torch.optim.RMSprop, init_scale=2.0**15)
    return learner.one_batch, learner.given()


@case("two optimizers", "update-per-optimizer", "depends-on-scale")
def update_in_the_loop_over_optimizers() -> Made:
    """When the scale changes after the first step, the second optimizer's gradients are divided by the new scale."""
    model, _, scaler = parts()
    weights, biases = [[p for p in model.parameters() if p.ndim == n] for n in (2, 1)]
    optimizers = [torch.optim.SGD(weights, lr=0.1, weight_decay=1e-4), torch.optim.SGD(biases, lr=0.2)]

    def train_step(x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return train_step, given(model, optimizers, scaler)


@case("accelerate by hand", "update-per-optimizer", "depends-on-scale")
def wrapped_optimizers_that_update_the_scaler() -> Made:
    """Each wrapped optimizer's step() updates the shared scaler, though both backwards come before them."""

    class Wrapped:
        def __init__(self, optimizer, scaler):
            self.optimizer, self.scaler, self.zero_grad = optimizer, scaler, optimizer.zero_grad

        def step(self):
            self.scaler.step(self.optimizer)
            self.scaler.update()

    models, scaler = [net(0), net(1)], GradScaler("cpu", init_scale=2.0**12)
    inner = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in models]
    wrapped = [Wrapped(optimizer, scaler) for optimizer in inner]

    def train_step(x, y):  # two students that teach each other
        with torch.autocast("cpu", dtype=torch.float16):
            a, b = models[0](x).float(), models[1](x).float()
            losses = F.mse_loss(a, y) + F.mse_loss(a, b.detach()), F.mse_loss(b, y) + F.mse_loss(b, a.detach())
        for optimizer, loss in zip(wrapped, losses, strict=True):
            optimizer.zero_grad()
            scaler.scale(loss).backward()
        for optimizer in wrapped:
            optimizer.step()

    return train_step, given(models, inner, scaler)


@case("accumulation", "update-every-micro-batch", "step-raises")
def update_outside_the_accumulation_if() -> Made:
    """update() is outside the if: after the first micro-batch no optimizer has stepped, and it raises."""
    model, optimizer, scaler = parts(torch.optim.Adam, 1e-3)

    def train_step(x, y, last):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y) / 4
        scaler.scale(loss).backward()
        if last:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()

    return train_step, given(model, optimizer, scaler, loss=mse, accumulate=4)


@case("accumulation, method", "update-every-micro-batch", "depends-on-scale", "gradient-differs")
def scale_ramped_after_each_micro_batch() -> Made:
    """A group's gradients are made with different scales, and the step divides them all by the last one."""

    class RampingTrainer(Trainer):
        def micro_step(self, x, y):
            self.micro += 1
            self.scaler.scale(self.loss(x, y) / 2).backward()
            self.scaler.update(min(self.scaler.get_scale() * 1.5, 2.0**20))
            if self.micro % 2 == 0:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()

    trainer = RampingTrainer(torch.optim.SGD, 0.1, init_scale=2.0**8)
    return trainer.micro_step, trainer.given(loss=mse, accumulate=2)


@case("method", "updated-twice", "step-raises")
def update_in_the_helper_and_in_the_step() -> Made:
    """The helper updates, and so does its caller: the second update() finds no inf checks and raises."""

    class HelpedTrainer(Trainer):
        def optimizer_step(self):
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()

        def train_step(self, x, y):
            self.scaler.scale(self.loss(x, y)).backward()
            self.optimizer_step()
            self.scaler.update()

    trainer = HelpedTrainer()
    return trainer.train_step, trainer.given()


@case("function", "update-before-step", "unscaled-twice", "step-raises")
def update_between_unscale_and_step() -> Made:
    """update() makes the scaler forget that it unscaled: step() divides once more, and the next unscale_ raises."""
    model, optimizer, scaler = parts()

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 5.0)
        scaler.update()
        scaler.step(optimizer)

    return train_step, given(model, optimizer, scaler, max_norm=5.0)


@case("function", "update-before-step", "depends-on-scale")
def scale_capped_before_the_step() -> Made:
    """Capped between backward and step: gradients made with the old scale are divided by the cap, 16 times too large."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3, init_scale=2.0**14)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        if scaler.get_scale() > 1024:  # "large scales crash"
            scaler.update(1024.0)
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler, loss=mse)


# ---- unscale_ and zero_grad


@case(
    "accumulation",
    "unscaled-every-micro-batch",
    "update-every-micro-batch",
    "clipped-every-micro-batch",
    "unscaled-twice",
)
def unscale_clip_and_update_each_micro_batch() -> Made:
    """The gradients of a group's first micro-batch are divided by the scale four times."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3)
    state = {"i": 0}

    def train_step(x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y) / 4
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        state["i"] += 1
        if state["i"] % 4 == 0:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()

    return train_step, given(model, optimizer, scaler, loss=mse, accumulate=4, max_norm=1.0)


@case("accumulation, method", "unscaled-every-micro-batch", "step-raises")
def unscale_outside_the_accumulation_if() -> Made:
    """unscale_ is outside the if: at the second micro-batch it raises."""

    class Module(Trainer):
        def training_step(self, batch, last=False):
            loss = self.loss(batch["x"], batch["y"]) / 2
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            if last:
                clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()

    module = Module()
    return module.training_step, module.given(batches=dicts(), loss=mse_of_dict, accumulate=2)


@case("method", "unscaled-twice", "step-raises")
def two_helpers_that_unscale() -> Made:
    """The clipping helper and the logging helper both call unscale_: the second call raises."""

    class LoggingTrainer(Trainer):
        def clip(self, max_norm):
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model.parameters(), max_norm)

        def grad_norms(self):
            self.scaler.unscale_(self.optimizer)
            return {name: p.grad.norm() for name, p in self.model.named_parameters()}

        def train_step(self, x, y):
            self.optimizer.zero_grad()
            self.scaler.scale(self.loss(x, y)).backward()
            self.clip(1.0)
            self.grad_norms()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    trainer = LoggingTrainer()
    return trainer.train_step, trainer.given(max_norm=1.0)


@case("function", "unscaled-twice", "depends-on-scale")
def divided_by_hand_then_by_the_scaler() -> Made:
    """Divided by hand for clipping, and again in scaler.step, which knows nothing of it: updates 4096 times too small."""
    model, optimizer, scaler = parts(momentum=0.9)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        for p in model.parameters():
            p.grad.data.div_(scaler.get_scale())
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler, max_norm=1.0)


def _foreach_step(x, y, model, optimizer, scaler):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch._foreach_mul_([p.grad for p in model.parameters()], 1 / scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
    model.zero_grad()


@case("partial, fused", "unscaled-twice", "depends-on-scale")
def foreach_division_after_unscale() -> Made:
    """unscale_ has divided already, and the gradients are multiplied by 1 / scale again; Adam hides it until eps counts."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3, fused=True)
    step = partial(_foreach_step, model=model, optimizer=optimizer, scaler=scaler)
    return step, given(model, optimizer, scaler, loss=mse)


@case("accumulation", "unscaled-before-backward", "still-scaled", "gradient-differs")
def unscale_before_the_last_backward() -> Made:
    """The earlier micro-batches' gradients are divided; those of the last are added with the scale still in them."""
    model, optimizer, scaler = parts(lr=1e-4)

    def train_step(x, y, last=False):
        if last:
            scaler.unscale_(optimizer)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y) / 4
        scaler.scale(loss).backward()
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return train_step, given(model, optimizer, scaler, loss=mse, accumulate=4)


@case("function", "unscaled-before-backward", "clipped-while-scaled", "still-scaled")
def unscale_of_zeroed_buffers() -> Made:
    """The gradients live in buffers zeroed in place, so unscale_ divides zeros, and what is clipped still has its scale."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    scaler.scale(torch.zeros(()))  # makes the scale, as a warm-up would

    def train_step(x, y):
        optimizer.zero_grad(set_to_none=False)
        scaler.unscale_(optimizer)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler, loss=mse, max_norm=5.0)


@case("function", "cleared-before-step", "weights-unchanged")
def zeroed_between_backward_and_step() -> Made:
    """zero_grad between backward and step: every update is made with zeros."""
    model, optimizer, scaler = parts()

    def train_step(x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        optimizer.zero_grad(set_to_none=False)
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler, loss=mse)


@case("accumulation", "cleared-before-step", "step-raises")
def cleared_at_the_last_micro_batch() -> Made:
    """The last micro-batch clears what was accumulated before it steps; scaler.step finds no gradients and raises."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3)

    def train_step(x, y, last=False):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y) / 2
        scaler.scale(loss).backward()
        if last:
            optimizer.zero_grad()
            scaler.step(optimizer)
            scaler.update()

    return train_step, given(model, optimizer, scaler, accumulate=2)


@case("EMA", "weights-unchanged")
def backup_taken_before_the_step() -> Made:
    """The backup for validation with the EMA weights is taken before the step and restored after it: all is undone."""

    class EmaTrainer(Trainer):
        def start(self):
            self.ema = copy.deepcopy(self.model)

        def train_step(self, x, y):
            backup = copy.deepcopy(self.model.state_dict())
            self.optimizer.zero_grad()
            self.scaler.scale(self.loss(x, y)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            with torch.no_grad():
                torch._foreach_lerp_(list(self.ema.parameters()), list(self.model.parameters()), 0.01)
                self.model.load_state_dict(self.ema.state_dict())
                self.validation = self.model(x)
                self.model.load_state_dict(backup)

    trainer = EmaTrainer()
    trainer.start()
    return trainer.train_step, trainer.given(loss=mse)
