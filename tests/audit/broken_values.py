"""Broken steps: gradients of a wrong size or of a wrong loss: scaling, accumulation, clearing, factors, penalties."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_

from tests.audit.broken_parts import Gan, Trainer, collector, dicts, given, mse, mse_of_dict, net, parts, rows
from tests.audit.case import Case, Made

CASES: list[Case] = []
case = collector(CASES)


def mse_and_decay(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x), y) + 0.05 * sum(p.square().sum() for p in model.parameters())


# ---- the scale in the gradients


@case("function", "still-scaled", "overflow-not-skipped", "update-missing")
def plain_step_after_a_scaled_backward() -> Made:
    """Scaled, and stepped by the optimizer itself: Adam hides the factor, but not from eps, from clipping or from an inf."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3, foreach=True)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        optimizer.step()

    return train_step, given(model, optimizer, scaler, loss=mse)


@case("GAN", "still-scaled", "overflow-not-skipped")
def generator_stepped_without_the_scaler() -> Made:
    """The discriminator is stepped by the scaler, the generator by its optimizer, with the scale in its gradients."""
    gan = Gan()

    def train_step(real):
        with torch.autocast("cpu", dtype=torch.float16):
            fake = gan.G(torch.randn(len(real), 4))
            d_loss = F.relu(1 - gan.D(real)).mean() + F.relu(1 + gan.D(fake.detach())).mean()
        gan.opt_D.zero_grad()
        gan.scaler.scale(d_loss).backward()
        gan.scaler.step(gan.opt_D)
        with torch.autocast("cpu", dtype=torch.float16):
            g_loss = -gan.D(fake).mean()
        gan.opt_G.zero_grad()
        gan.scaler.scale(g_loss).backward()
        gan.opt_G.step()
        gan.scaler.update()

    return train_step, gan.given()


@case("optimizer in backward", "still-scaled", "overflow-not-skipped", "update-missing")
def optimizers_stepped_in_backward_hooks() -> Made:
    """Each parameter's optimizer steps in a hook during backward, where its gradient still has the scale in it."""
    model, _, scaler = parts()
    optimizers = {p: torch.optim.SGD([p], lr=1e-5) for p in model.parameters()}

    def hook(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)

    def train_step(x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()

    return train_step, given(model, list(optimizers.values()), scaler, loss=mse)


@case("hand scaling", "still-scaled", "wrong-factor", "gradient-differs")
def loss_times_1024_and_never_divided() -> Made:
    """The loss is multiplied against underflow and the gradients are not divided: the rate is 1024 times what it says."""
    model, optimizer, _ = parts(lr=1e-5, momentum=0.9)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y) * 1024
        loss.backward()
        if all(p.grad.isfinite().all() for p in model.parameters()):
            optimizer.step()

    return train_step, given(model, optimizer, loss=mse)


@case("SAM", "still-scaled", "unscaled-before-backward")
def sam_unscaled_for_the_climb_only() -> Made:
    """unscale_ before the climb; the second backward is scaled, and scaler.step thinks that it has unscaled already."""
    model, optimizer, scaler = parts(lr=1e-5)

    def train_step(x, y, rho=0.05):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        with torch.no_grad():
            climb = [p.grad * (rho / (norm + 1e-12)) for p in model.parameters()]
            torch._foreach_add_(list(model.parameters()), climb)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), climb)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return train_step, given(model, optimizer, scaler)


@case("function", "loss-not-scaled", "depends-on-scale")
def scaled_loss_thrown_away() -> Made:
    """scale() returns the scaled loss, it changes nothing in place: step() divides gradients that were never scaled."""
    model, optimizer, scaler = parts(momentum=0.9)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss)
        loss.backward()
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler)


@case("GAN, method", "loss-not-scaled", "depends-on-scale")
def half_of_the_discriminator_loss_unscaled() -> Made:
    """Two backwards for the discriminator, and only that of the real images is scaled: fakes count 4096 times less."""

    class GanTrainer(Gan):
        def train_D(self, real, fake):
            self.opt_D.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss_real, loss_fake = F.softplus(-self.D(real)).mean(), F.softplus(self.D(fake)).mean()
            self.scaler.scale(loss_real).backward()
            loss_fake.backward()
            self.scaler.step(self.opt_D)

        def train_G(self, fake):
            self.opt_G.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.softplus(-self.D(fake)).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt_G)

        def __call__(self, real):
            with torch.autocast("cpu", dtype=torch.float16):
                fake = self.G(torch.randn(len(real), 4))
            self.train_D(real, fake.detach())
            self.train_G(fake)
            self.scaler.update()

    gan = GanTrainer()
    return gan, gan.given()


@case("closure", "loss-not-scaled", "depends-on-scale", "gradient-differs")
def auxiliary_loss_backward_unscaled() -> Made:
    """The regularizer has a backward of its own, without the scaler: scaler.step divides it to nothing."""

    def make(model, optimizer, scaler, weight=0.05):
        def train_step(x, y):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            (weight * sum(p.square().sum() for p in model.parameters())).backward()
            scaler.step(optimizer)
            scaler.update()

        return train_step

    model, optimizer, scaler = parts()
    return make(model, optimizer, scaler), given(model, optimizer, scaler, loss=mse_and_decay)


@case("method", "scaled-twice", "depends-on-scale")
def loss_scaled_by_the_helper_and_its_caller() -> Made:
    """compute_loss returns a scaled loss, and its caller scales it again: scaler.step divides once."""

    class HelpedTrainer(Trainer):
        def compute_loss(self, batch):
            return self.scaler.scale(self.loss(batch["x"], batch["y"]))

        def training_step(self, batch):
            self.optimizer.zero_grad()
            self.scaler.scale(self.compute_loss(batch)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    trainer = HelpedTrainer(torch.optim.SGD, 1e-4, init_scale=2.0**7)
    return trainer.training_step, trainer.given(batches=dicts(), loss=mse_of_dict)


@case("function", "scaled-twice", "depends-on-scale")
def scale_as_the_gradient_of_a_scaled_loss() -> Made:
    """backward is given the scale as the loss's gradient, though the loss has been scaled: the factor is there squared."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3, init_scale=2.0**10)

    def train_step(x, y):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward(gradient=torch.tensor(scaler.get_scale()))
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler, loss=mse)


def wgan_gp(critic: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    mixed = (0.3 * real + 0.7 * fake).requires_grad_()
    grad = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
    return critic(fake).mean() - critic(real).mean() + 10 * (grad.norm(2, dim=1) - 1).square().mean()


@case("gradient penalty", "depends-on-scale", "gradient-differs")
def penalty_of_scaled_gradients() -> Made:
    """The gradient's norm is taken before the scale is out of it: what is pulled to 1 is 1024 times the true norm."""
    critic, optimizer, scaler = parts(torch.optim.Adam, 1e-4, init_scale=2.0**10)

    def train_step(real, fake):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = critic(fake).mean() - critic(real).mean()
        mixed = (0.3 * real + 0.7 * fake).requires_grad_()  # the penalty in fp32, as is usual
        grad = torch.autograd.grad(scaler.scale(critic(mixed).sum()), mixed, create_graph=True)[0]
        loss = loss.float() + 10 * (grad.norm(2, dim=1) - 1).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    batches = [(x + 1, x.flip(0) / 2) for x, _ in rows()]
    return train_step, given(critic, optimizer, scaler, batches=batches, loss=wgan_gp)


@case("function", "depends-on-scale")
def gradients_divided_by_a_fixed_number() -> Made:
    """Divided by the 65536 of the scaler's start: after the first overflow the scale is half of it, and so is each step."""
    model, optimizer, scaler = parts(init_scale=2.0**16)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        for p in model.parameters():
            p.grad /= 65536.0
        finite = all(p.grad.isfinite().all() for p in model.parameters())
        if finite:
            optimizer.step()
        scaler.update(scaler.get_scale() * (1.0 if finite else 0.5))

    return train_step, given(model, optimizer, scaler)


@case("method", "depends-on-scale", "gradient-differs")
def decay_added_to_scaled_gradients() -> Made:
    """The decay's gradient is added before unscaling: it is divided by a scale that it never had."""

    class DecayTrainer(Trainer):
        def train_step(self, x, y):
            self.optimizer.zero_grad()
            self.scaler.scale(self.loss(x, y)).backward()
            for p in self.model.parameters():
                p.grad.add_(p.detach(), alpha=2 * 0.05)
            self.scaler.step(self.optimizer)
            self.scaler.update()

    trainer = DecayTrainer(torch.optim.SGD, 0.1)
    return trainer.train_step, trainer.given(loss=mse_and_decay)


@case("function", "depends-on-scale", "loss-not-scaled", "gradient-differs")
def penalty_added_after_scaling() -> Made:
    """The penalty is added to the scaled loss: relative to the loss it is 4096 times too small."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3, fused=True)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        penalty = 0.05 * sum(p.square().sum() for p in model.parameters())
        (scaler.scale(loss) + penalty).backward()
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler, loss=mse_and_decay)


@case("two optimizers", "depends-on-scale", "update-per-optimizer")
def divided_by_the_scale_after_update() -> Made:
    """The second half is divided by hand, by the scale that update() has just set, not by the one it was made with."""
    model, _, _ = parts()
    scaler = GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
    adam, sgd = torch.optim.Adam(model[0].parameters(), lr=1e-3), torch.optim.SGD(model[2].parameters(), lr=0.1)

    def train_step(x, y):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(adam)
        scaler.update()
        for p in model[2].parameters():
            p.grad /= scaler.get_scale()
        if all(p.grad.isfinite().all() for p in model[2].parameters()):
            sgd.step()

    return train_step, given(model, [adam, sgd], scaler, loss=mse)


# ---- accumulation


@case("accumulation", "sum-not-mean")
def micro_batches_summed() -> Made:
    """The loss is not divided by the number of micro-batches: the gradient is four times the large batch's."""
    model, optimizer, scaler = parts(lr=0.05)

    def train_step(x, y, last):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return train_step, given(model, optimizer, scaler, loss=mse, accumulate=4)


@case("accelerate by hand", "sum-not-mean")
def accelerator_that_does_not_divide() -> Made:
    """An imitation of Accelerator: the real backward divides by the accumulation steps, this one only scales."""

    class Accelerator:
        def __init__(self, scaler, gradient_accumulation_steps):
            self.scaler, self.every, self.step = scaler, gradient_accumulation_steps, 0

        def accumulate(self):
            self.step += 1
            self.sync_gradients = self.step % self.every == 0
            return torch.autocast("cpu", dtype=torch.float16)

        def backward(self, loss):
            self.scaler.scale(loss).backward()

    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3)
    accelerator = Accelerator(scaler, gradient_accumulation_steps=2)

    def train_step(batch):
        with accelerator.accumulate():
            loss = F.mse_loss(model(batch["x"]), batch["y"])
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 10.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return train_step, given(model, optimizer, scaler, batches=dicts(), loss=mse_of_dict, accumulate=2)


@case("chunks in one step", "sum-not-mean", "wrong-factor", "gradient-differs")
def chunks_of_a_batch_summed() -> Made:
    """The step itself cuts the batch into chunks to save memory, and adds up the gradients of their means."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3)

    def train_step(x, y):
        optimizer.zero_grad()
        for x_part, y_part in zip(x.chunk(4), y.chunk(4), strict=True):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(model(x_part), y_part)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler, loss=mse)


UNEQUAL = (8, 8, 8, 2)


@case("accumulation", "mean-of-means")
def unequal_micro_batches() -> Made:
    """Buckets of unequal size, each divided by four: an example of the small one counts four times as much."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3)

    def train_step(batch, last=False):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(batch["x"]), batch["y"])
        scaler.scale(loss / 4).backward()
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    batches = [{"x": x[:n], "y": y[:n]} for (x, y), n in zip(rows(8), itertools.cycle(UNEQUAL), strict=False)]
    return train_step, given(model, optimizer, scaler, batches=batches, loss=mse_of_dict, accumulate=4)


@case("accumulation, method", "last-group-mean")
def shorter_last_group() -> Made:
    """Ten micro-batches in groups of four: the last two are divided by four as well, and count half."""

    class GroupTrainer(Trainer):
        def train_step(self, x, y, last=False):
            self.scaler.scale(self.loss(x, y) / 4).backward()
            if last:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()

    trainer = GroupTrainer(torch.optim.SGD, 0.05)
    return trainer.train_step, trainer.given(batches=rows(10), loss=mse, accumulate=4)


@case("accumulation, closure", "cleared-every-micro-batch")
def cleared_at_the_start_of_each_call() -> Made:
    """zero_grad at the top of each call: only the last micro-batch reaches the step, with a quarter of its weight."""
    model, optimizer, scaler = parts(lr=0.05)
    i = 0

    def train_step(x, y):
        nonlocal i
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y) / 4
        scaler.scale(loss).backward()
        i += 1
        if i % 4 == 0:
            scaler.step(optimizer)
            scaler.update()

    return train_step, given(model, optimizer, scaler, loss=mse, accumulate=4)


# ---- clearing, factors, other losses


@case("function", "never-cleared")
def zero_grad_without_parentheses() -> Made:
    """zero_grad lacks its parentheses: every step is made with the sum of all gradients so far."""
    model, optimizer, _ = parts(lr=0.01)

    def train_step(x, y):
        optimizer.zero_grad  # noqa: B018
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()

    return train_step, given(model, optimizer, loss=mse)


@case("method", "never-cleared", "kept-after-skip")
def another_optimizer_cleared() -> Made:
    """An unused optimizer is cleared: unscaling leaves 1/4096 of the old gradients in the next, and an inf for ever."""

    class FrozenBackboneTrainer(Trainer):
        def train_step(self, batch):
            backbone_optimizer.zero_grad()
            self.scaler.scale(self.loss(batch["x"], batch["y"])).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    trainer = FrozenBackboneTrainer(foreach=True)
    backbone_optimizer = torch.optim.SGD(net(1).parameters(), lr=0.1)
    return trainer.train_step, trainer.given(batches=dicts(), loss=mse_of_dict)


@case("GAN", "never-cleared", "gradient-differs")
def discriminator_never_cleared() -> Made:
    """Only the generator is cleared, twice: the discriminator keeps its own old gradients and those of the generator's loss."""
    gan = Gan()

    def train_step(real):
        with torch.autocast("cpu", dtype=torch.float16):
            fake = gan.G(torch.randn(len(real), 4))
            d_loss = F.softplus(-gan.D(real)).mean() + F.softplus(gan.D(fake.detach())).mean()
        gan.opt_G.zero_grad()
        gan.scaler.scale(d_loss).backward()
        gan.scaler.step(gan.opt_D)
        gan.scaler.update()
        with torch.autocast("cpu", dtype=torch.float16):
            g_loss = F.softplus(-gan.D(fake)).mean()
        gan.opt_G.zero_grad()
        gan.scaler.scale(g_loss).backward()
        gan.scaler.step(gan.opt_G)
        gan.scaler.update()

    return train_step, gan.given()


@case("LBFGS", "never-cleared")
def lbfgs_closure_that_does_not_clear() -> Made:
    """The closure lacks zero_grad: LBFGS calls it several times a step, and each gradient has all earlier ones in it."""
    model, optimizer, _ = parts(torch.optim.LBFGS, 0.1, max_iter=4)

    def train_step(x, y):
        def closure():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)

    return train_step, given(model, optimizer, loss=mse)


@case("accumulation, method", "wrong-factor")
def divided_by_the_accumulation_twice() -> Made:
    """compute_loss divides by the number of micro-batches, and the step does so once more."""

    class AccumulatingTrainer(Trainer):
        accumulation_steps = 4

        def compute_loss(self, x, y):
            return self.loss(x, y) / self.accumulation_steps

        def train_step(self, x, y, last=False):
            loss = self.compute_loss(x, y)
            self.scaler.scale(loss / self.accumulation_steps).backward()
            if last:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()

    trainer = AccumulatingTrainer(torch.optim.SGD, 0.1)
    return trainer.train_step, trainer.given(loss=mse, accumulate=4)


@case("function", "wrong-factor", "gradient-differs")
def mean_divided_by_the_batch_size() -> Made:
    """mse_loss takes the mean already, and it is divided by the batch's size again."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y) / x.shape[0]
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler, loss=mse)


@case("function", "gradient-differs")
def penalty_taken_as_a_number() -> Made:
    """.item() makes a number of the penalty: it is in the loss that is logged, and not in any gradient."""
    model, optimizer, scaler = parts(torch.optim.SGD, 0.05)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        loss = loss + 0.05 * sum(p.square().sum().item() for p in model.parameters())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler, loss=mse_and_decay)


@case("two models", "gradient-differs")
def one_tower_detached() -> Made:
    """Two towers are to meet, and one is detached "to save memory": it learns from its own head only."""
    towers = [net(0), net(1)]
    optimizer = torch.optim.AdamW([p for tower in towers for p in tower.parameters()], lr=1e-3)
    scaler = GradScaler("cpu", init_scale=2.0**12)

    def loss(towers, x, y):
        a, b = towers[0](x).float(), towers[1](x).float()
        return F.mse_loss(a, y) + F.mse_loss(b, y) + F.mse_loss(a, b)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            a, b = towers[0](x).float(), towers[1](x).detach().requires_grad_().float()
            total = F.mse_loss(a, y) + F.mse_loss(a, b) + F.mse_loss(towers[1](x).float(), y)
        scaler.scale(total).backward()
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(towers, optimizer, scaler, loss=loss)
