"""Broken steps: gradients clipped while scaled, not at all, to another length, or after each micro-batch."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from tests.audit.broken_parts import Gan, Trainer, collector, given, mse, net, parts, rows
from tests.audit.case import Case, Made

CASES: list[Case] = []
case = collector(CASES)


@case("function", "clipped-while-scaled")
def clipped_without_unscale() -> Made:
    """Without unscale_ a norm of 1 means one of 1/4096: every step is clipped to almost nothing."""
    model, optimizer, scaler = parts(momentum=0.9)

    def train_step(x, y):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler, loss=mse, max_norm=1.0)


@case("accumulation, method", "clipped-while-scaled")
def clipped_before_unscale() -> Made:
    """The two lines are in the wrong order: the clipped gradients are then divided by the scale."""

    class ClippingTrainer(Trainer):
        def micro_step(self, x, y, last=False):
            self.scaler.scale(self.loss(x, y) / 2).backward()
            if last:
                clip_grad_norm_(self.model.parameters(), max_norm=1.0)
                self.scaler.unscale_(self.optimizer)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()

    trainer = ClippingTrainer()
    return trainer.micro_step, trainer.given(loss=mse, accumulate=2)


def _value_clipped_step(model, optimizer, scaler, x, y):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    clip_grad_value_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


@case("partial", "clipped-while-scaled", "overflow-not-skipped")
def values_clipped_while_scaled() -> Made:
    """Scaled gradients cut at 0.5: little more than their signs is left, at 1/8192 each, and an inf becomes a 0.5 too."""
    model, optimizer, scaler = parts(torch.optim.RMSprop, 1e-3)
    return partial(_value_clipped_step, model, optimizer, scaler), given(model, optimizer, scaler)


@case("GAN", "clipped-while-scaled")
def generator_clipped_while_scaled() -> Made:
    """unscale_ is called for the discriminator only; the generator's gradients are clipped with the scale in them."""
    gan = Gan()

    def train_step(real):
        with torch.autocast("cpu", dtype=torch.float16):
            fake = gan.G(torch.randn(len(real), 4))
            d_loss = F.softplus(-gan.D(real)).mean() + F.softplus(gan.D(fake.detach())).mean()
        gan.opt_D.zero_grad()
        gan.scaler.scale(d_loss).backward()
        gan.scaler.unscale_(gan.opt_D)
        clip_grad_norm_(gan.D.parameters(), 0.1)
        gan.scaler.step(gan.opt_D)
        with torch.autocast("cpu", dtype=torch.float16):
            g_loss = F.softplus(-gan.D(fake)).mean()
        gan.opt_G.zero_grad()
        gan.scaler.scale(g_loss).backward()
        clip_grad_norm_(gan.G.parameters(), 0.1)
        gan.scaler.step(gan.opt_G)
        gan.scaler.update()

    return train_step, gan.given()


@case("callable object", "clipped-while-scaled")
def own_clipping_while_scaled() -> Made:
    """An own clip_gradients, called where backward has left the scale in the gradients."""

    class Step(Trainer):
        def clip_gradients(self, limit):
            total = sum(p.grad.square().sum() for p in self.model.parameters()).sqrt()
            if total > limit:
                for p in self.model.parameters():
                    p.grad *= limit / (total + 1e-6)

        def __call__(self, x, y):
            self.optimizer.zero_grad()
            self.scaler.scale(self.loss(x, y)).backward()
            self.clip_gradients(1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()

    step = Step(torch.optim.SGD, 0.1)
    return step, step.given(max_norm=1.0)


@case("function", "not-clipped")
def generator_of_parameters_used_up() -> Made:
    """model.parameters() is a generator that the optimizer has used up: what is clipped is an empty list."""
    model, scaler = net(), GradScaler("cpu", init_scale=2.0**12)
    params = model.parameters()
    optimizer = torch.optim.SGD(params, lr=0.05)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(params, 0.1)
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler, loss=mse, max_norm=0.1)


@case("function", "not-clipped")
def clipped_after_the_step() -> Made:
    """The gradients are clipped when the step has been made with them, just before they are cleared."""
    model, optimizer, scaler = parts(lr=0.05)

    def train_step(x):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), x.sum(-1, keepdim=True))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        clip_grad_norm_(model.parameters(), 0.1)
        scaler.update()
        optimizer.zero_grad()

    return train_step, given(model, optimizer, scaler, batches=[x for x, _ in rows()], max_norm=0.1)


@case("method", "not-clipped")
def own_clipping_of_a_name() -> Made:
    """`grad = grad * factor` binds a name anew: the parameters keep the gradients they had."""

    class Step(Trainer):
        def clip(self, limit):
            grads = [p.grad for p in self.model.parameters()]
            factor = limit / torch.nn.utils.get_total_norm(grads).clamp(min=limit)
            for grad in grads:
                grad = grad * factor

        def train_step(self, x, y):
            self.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(self.model(x), y)
            loss.backward()
            self.clip(0.1)
            self.optimizer.step()

    step = Step(torch.optim.SGD, 0.05)
    return step.train_step, given(step.model, step.optimizer, max_norm=0.1)


@case("two models", "not-clipped", "clipped-wrong")
def only_the_first_model_clipped() -> Made:
    """Two networks under one optimizer, and only the encoder is clipped; the decoder's gradient is as long as it comes."""
    encoder, decoder = net()[:2], nn.Linear(16, 1)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.05)
    scaler = GradScaler("cpu", init_scale=2.0**12)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(decoder(encoder(x)), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(encoder.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()

    return train_step, given([encoder, decoder], optimizer, scaler, max_norm=0.1)


@case("method", "clipped-wrong")
def limit_of_a_misspelt_setting() -> Made:
    """The setting is called max_norm and read as grad_clip: the default of 0.5 holds, not the 0.05 that was set."""
    settings = {"max_norm": 0.05, "lr": 0.05}

    class SettingsTrainer(Trainer):
        def train_step(self, x, y):
            self.optimizer.zero_grad()
            self.scaler.scale(self.loss(x, y)).backward()
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model.parameters(), settings.get("grad_clip", 0.5))
            self.scaler.step(self.optimizer)
            self.scaler.update()

    trainer = SettingsTrainer(torch.optim.SGD, settings["lr"])
    return trainer.train_step, trainer.given(loss=mse, max_norm=settings["max_norm"])


@case("accumulation", "clipped-every-micro-batch", "gradient-differs")
def clipped_after_each_backward() -> Made:
    """What has been gathered is clipped after each micro-batch: the earlier ones are cut down again and again."""
    model, optimizer, _ = parts(lr=0.05)

    def train_step(x, y, last=False):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x), y) / 4
        loss.backward()
        clip_grad_norm_(model.parameters(), 0.1)
        if last:
            optimizer.step()
            optimizer.zero_grad()

    return train_step, given(model, optimizer, loss=mse, accumulate=4, max_norm=0.1)
