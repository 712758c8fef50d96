"""Sound steps of GANs: the order of the two, where update() stands, critics that step more often, penalties, toggling."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.audit.case import Case, Made
from tests.audit.sound_loops import register

CASES: list[Case] = []
case = register(CASES)
bce = F.binary_cross_entropy_with_logits


def generator() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 8))


def discriminator() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))


def reals(count: int = 6) -> list[tuple[Tensor]]:
    source = torch.Generator().manual_seed(4)
    return [(0.5 * torch.randn(8, 8, generator=source) + 1.0,) for _ in range(count)]


@case(
    "DCGAN: discriminator first, two backwards, one update()", "GAN", "All three gradients were made under one scale."
)
def dcgan() -> Made:
    netG, netD = generator(), discriminator()
    optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(real: Tensor) -> tuple[float, float]:
        netD.zero_grad()
        label = torch.ones(len(real), 1)
        with torch.autocast("cpu", dtype=torch.float16):
            errD_real = bce(netD(real), label)
        scaler.scale(errD_real).backward()
        with torch.autocast("cpu", dtype=torch.float16):
            fake = netG(torch.randn(len(real), 4))
            errD_fake = bce(netD(fake.detach()), torch.zeros_like(label))
        scaler.scale(errD_fake).backward()
        scaler.step(optimizerD)
        netG.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            errG = bce(netD(fake), label)
        scaler.scale(errG).backward()  # leaves gradients in netD, which are cleared before they are used
        scaler.step(optimizerG)
        scaler.update()
        return errD_real.item() + errD_fake.item(), errG.item()

    parts = dict(model=[netD, netG], optimizer=[optimizerD, optimizerG], scaler=scaler)
    return step, dict(batches=reals(), **parts)


@case(
    "generator first, noise in the batch, both losses passed", "GAN", "Both losses hold at the weights before the call."
)
def generator_first() -> Made:
    g, d = generator(), discriminator()
    opt_g, opt_d = torch.optim.Adam(g.parameters(), lr=2e-3), torch.optim.Adam(d.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(real: Tensor, z: Tensor) -> dict[str, float]:
        valid, fake = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        opt_g.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            made = g(z)
            g_loss = bce(d(made), valid)
        scaler.scale(g_loss).backward()
        scaler.step(opt_g)
        opt_d.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            d_loss = (bce(d(real), valid) + bce(d(made.detach()), fake)) / 2
        scaler.scale(d_loss).backward()
        scaler.step(opt_d)
        scaler.update()
        return {"g_loss": g_loss.item(), "d_loss": d_loss.item()}

    def generator_loss(models: list[nn.Module], real: Tensor, z: Tensor) -> Tensor:
        return bce(models[1](models[0](z)), torch.ones(len(real), 1))

    def discriminator_loss(models: list[nn.Module], real: Tensor, z: Tensor) -> Tensor:
        made = models[0](z).detach()
        return (bce(models[1](real), torch.ones(len(real), 1)) + bce(models[1](made), torch.zeros(len(real), 1))) / 2

    batches = [(real, torch.randn(8, 4)) for (real,) in reals()]
    parts = dict(model=[g, d], optimizer=[opt_g, opt_d], scaler=scaler, loss=(generator_loss, discriminator_loss))
    return step, dict(batches=batches, **parts)


@case("GAN with update() after each step, hinge loss", "GAN", "Each backward comes after the update() before it.")
def gan_two_updates() -> Made:
    g, d = (
        generator(),
        nn.Sequential(*(nn.utils.parametrizations.spectral_norm(nn.Linear(i, o)) for i, o in ((8, 8), (8, 1)))),
    )
    opt_g, opt_d = torch.optim.Adam(g.parameters(), lr=1e-3), torch.optim.Adam(d.parameters(), lr=4e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(real: Tensor) -> float:
        z = torch.randn(len(real), 4)
        opt_d.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            with torch.no_grad():
                fake = g(z)
            d_loss = F.relu(1 - d(real)).mean() + F.relu(1 + d(fake)).mean()
        scaler.scale(d_loss).backward()
        scaler.step(opt_d)
        scaler.update()
        opt_g.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            g_loss = -d(g(z)).mean()
        scaler.scale(g_loss).backward()
        scaler.step(opt_g)
        scaler.update()
        return d_loss.item()

    return step, dict(model=[g, d], optimizer=[opt_g, opt_d], batches=reals(), scaler=scaler)


class Pix2Pix:
    """CycleGAN's and pix2pix's code: an object with set_requires_grad, backward_D and backward_G."""

    def __init__(self) -> None:
        self.netG = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.netD = nn.Sequential(nn.Linear(16, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        self.optimizer_G = torch.optim.Adam(self.netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
        self.optimizer_D = torch.optim.Adam(self.netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    @staticmethod
    def set_requires_grad(net: nn.Module, requires_grad: bool) -> None:
        for param in net.parameters():
            param.requires_grad = requires_grad

    def backward_D(self) -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            pred_fake = self.netD(torch.cat((self.real_A, self.fake_B.detach()), 1))
            pred_real = self.netD(torch.cat((self.real_A, self.real_B), 1))
            loss_D = 0.5 * ((pred_fake.float() ** 2).mean() + ((pred_real.float() - 1) ** 2).mean())
        self.scaler.scale(loss_D).backward()

    def backward_G(self) -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            pred_fake = self.netD(torch.cat((self.real_A, self.fake_B), 1))
            self.loss_G = ((pred_fake.float() - 1) ** 2).mean() + 10.0 * F.l1_loss(self.fake_B.float(), self.real_B)
        self.scaler.scale(self.loss_G).backward()

    def optimize_parameters(self, real_A: Tensor, real_B: Tensor) -> float:
        self.real_A, self.real_B = real_A, real_B
        with torch.autocast("cpu", dtype=torch.float16):
            self.fake_B = self.netG(self.real_A)
        self.set_requires_grad(self.netD, True)
        self.optimizer_D.zero_grad()
        self.backward_D()
        self.scaler.step(self.optimizer_D)
        self.set_requires_grad(self.netD, False)
        self.optimizer_G.zero_grad()
        self.backward_G()
        self.scaler.step(self.optimizer_G)
        self.scaler.update()
        return self.loss_G.item()


@case("pix2pix: requires_grad toggled between the phases", "GAN", "The discriminator is left frozen by each call.")
def pix2pix() -> Made:
    gan = Pix2Pix()
    batches = [(real, real.roll(1, 1)) for (real,) in reals()]
    parts = dict(model=[gan.netG, gan.netD], optimizer=[gan.optimizer_G, gan.optimizer_D], scaler=gan.scaler)
    return gan.optimize_parameters, dict(batches=batches, **parts)


@case("GAN with a scaler per optimizer", "GAN", "Each scaler sees its own backward, step and update; both are passed.")
def gan_two_scalers() -> Made:
    g, d = generator(), discriminator()
    opt_g, opt_d = torch.optim.RMSprop(g.parameters(), lr=1e-3), torch.optim.RMSprop(d.parameters(), lr=1e-3)
    scaler_g, scaler_d = (torch.amp.GradScaler("cpu", init_scale=2.0**k) for k in (10, 14))

    def step(real: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.float16):
            fake = g(torch.randn(len(real), 4))
            d_loss = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
        opt_d.zero_grad()
        scaler_d.scale(d_loss).backward()
        scaler_d.unscale_(opt_d)
        nn.utils.clip_grad_norm_(d.parameters(), 1.0)
        scaler_d.step(opt_d)
        scaler_d.update()
        with torch.autocast("cpu", dtype=torch.float16):
            g_loss = F.softplus(-d(fake)).mean()
        opt_g.zero_grad()
        scaler_g.scale(g_loss).backward()
        scaler_g.step(opt_g)
        scaler_g.update()
        return d_loss.item()

    parts = dict(model=[d, g], optimizer=[opt_d, opt_g], scaler=[scaler_d, scaler_g])
    return step, dict(batches=reals(), **parts)


@case("WGAN: weights clamped, generator every fifth call", "GAN", "In most calls the generator's optimizer rests.")
def wgan() -> Made:
    g, d, n_critic, iteration = generator(), discriminator(), 5, 0
    opt_g, opt_d = torch.optim.RMSprop(g.parameters(), lr=1e-3), torch.optim.RMSprop(d.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(real: Tensor) -> float:
        nonlocal iteration
        opt_d.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            fake = g(torch.randn(len(real), 4)).detach()
            loss_d = -d(real).mean() + d(fake).mean()
        scaler.scale(loss_d).backward()
        scaler.step(opt_d)
        scaler.update()
        for p in d.parameters():
            p.data.clamp_(-0.1, 0.1)
        if iteration % n_critic == 0:
            opt_g.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss_g = -d(g(torch.randn(len(real), 4))).mean()
            scaler.scale(loss_g).backward()
            scaler.step(opt_g)
            scaler.update()
        iteration += 1
        return loss_d.item()

    return step, dict(model=[g, d], optimizer=[opt_g, opt_d], batches=reals(), scaler=scaler)


@case(
    "WGAN: critic four times a call, bf16",
    "GAN",
    "The critic's optimizer steps four times a call, with new gradients each time.",
)
def wgan_critic_loop() -> Made:
    g, critic = generator(), discriminator()
    opt_g = torch.optim.AdamW(g.parameters(), lr=1e-3, betas=(0.0, 0.9))
    opt_c = torch.optim.AdamW(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))

    @torch.no_grad()
    def clamp() -> None:
        for p in critic.parameters():
            p.clamp_(-0.2, 0.2)

    def step(real: Tensor) -> float:
        total = 0.0
        for chunk in real.chunk(4):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = critic(g(torch.randn(len(chunk), 4)).detach()).mean() - critic(chunk).mean()
            opt_c.zero_grad()
            loss.backward()
            opt_c.step()
            clamp()
            total += loss.item()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            g_loss = -critic(g(torch.randn(len(real), 4))).mean()
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        return total / 4

    return step, dict(model=[critic, g], optimizer=[opt_c, opt_g], batches=reals())


@case(
    "WGAN-GP: penalty on interpolated inputs, generator every second call",
    "GAN",
    "The penalty is taken of unscaled critics.",
)
def wgan_gp() -> Made:
    g, d, calls = generator(), discriminator(), 0
    opt_g, opt_d = (torch.optim.Adam(net.parameters(), lr=2e-3, betas=(0.0, 0.9)) for net in (g, d))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**11)

    def gradient_penalty(real: Tensor, fake: Tensor) -> Tensor:
        alpha = torch.rand(len(real), 1)
        mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
        with torch.autocast("cpu", enabled=False):
            scores = d(mixed)
        (gradient,) = torch.autograd.grad(scores, mixed, torch.ones_like(scores), create_graph=True)
        return ((gradient.norm(2, dim=1) - 1) ** 2).mean()

    def step(real: Tensor) -> float:
        nonlocal calls
        calls += 1
        opt_d.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            fake = g(torch.randn(len(real), 4)).detach()
            loss_d = d(fake).mean() - d(real).mean() + 10.0 * gradient_penalty(real, fake.float())
        scaler.scale(loss_d).backward()
        scaler.step(opt_d)
        if calls % 2 == 0:
            opt_g.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss_g = -d(g(torch.randn(len(real), 4))).mean()
            scaler.scale(loss_g).backward()
            scaler.step(opt_g)
        scaler.update()
        return loss_d.item()

    return step, dict(model=[g, d], optimizer=[opt_g, opt_d], batches=reals(), scaler=scaler)


@case(
    "StyleGAN2: lazy R1 in a step of its own, EMA of the generator",
    "GAN",
    "Every fourth call the discriminator steps twice.",
)
def stylegan2() -> Made:
    g, d, i = generator(), discriminator(), 0
    g_ema = copy.deepcopy(g).eval()
    g_optim, d_optim = torch.optim.Adam(g.parameters(), lr=2e-3), torch.optim.Adam(d.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def apply(loss: Tensor, optim: torch.optim.Optimizer) -> None:
        optim.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optim)
        scaler.update()

    def step(real: Tensor) -> float:
        nonlocal i
        d.requires_grad_(True)
        with torch.autocast("cpu", dtype=torch.float16):
            fake = g(torch.randn(len(real), 4)).detach()
            d_loss = F.softplus(-d(real)).mean() + F.softplus(d(fake)).mean()
        apply(d_loss, d_optim)
        if i % 4 == 0:
            leaf = real.detach().clone().requires_grad_(True)
            scores = d(leaf)  # in fp32
            (gradient,) = torch.autograd.grad(scores.sum(), leaf, create_graph=True)
            apply(10 / 2 * gradient.pow(2).sum(1).mean() * 4 + 0 * scores[0, 0], d_optim)
        d.requires_grad_(False)
        with torch.autocast("cpu", dtype=torch.float16):
            g_loss = F.softplus(-d(g(torch.randn(len(real), 4)))).mean()
        apply(g_loss, g_optim)
        with torch.no_grad():
            for averaged, p in zip(g_ema.parameters(), g.parameters(), strict=True):
                averaged.lerp_(p, 0.1)
        i += 1
        return d_loss.item()

    return step, dict(model=[g, d], optimizer=[g_optim, d_optim], batches=reals(), scaler=scaler)


class ManualGAN(nn.Module):
    """A module with Lightning's manual optimization: toggle_optimizer, manual_backward, optimizers that step and update."""

    class Wrapped:
        def __init__(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
            self.optimizer, self.scaler = optimizer, scaler

        def step(self) -> None:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = generator(), discriminator()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
        nets = (self.generator, self.discriminator)
        self.wrapped = [self.Wrapped(torch.optim.Adam(net.parameters(), lr=2e-3), self.scaler) for net in nets]

    @contextmanager
    def toggled(self, wrapped: Wrapped) -> Iterator[None]:
        before = {p: p.requires_grad for p in self.parameters()}
        owned = {p for group in wrapped.optimizer.param_groups for p in group["params"]}
        for p in before:
            p.requires_grad_(p in owned)
        yield
        for p, value in before.items():
            p.requires_grad_(value)

    def manual_backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    def training_step(self, real: Tensor) -> float:
        opt_g, opt_d = self.wrapped
        with self.toggled(opt_g):
            with torch.autocast("cpu", dtype=torch.float16):
                g_loss = bce(self.discriminator(self.generator(torch.randn(len(real), 4))), torch.ones(len(real), 1))
            self.manual_backward(g_loss)
            opt_g.step()
            opt_g.optimizer.zero_grad()
        with self.toggled(opt_d):
            with torch.autocast("cpu", dtype=torch.float16):
                fake = self.generator(torch.randn(len(real), 4)).detach()
                d_real = bce(self.discriminator(real), torch.ones(len(real), 1))
                d_loss = (d_real + bce(self.discriminator(fake), torch.zeros(len(real), 1))) / 2
            self.manual_backward(d_loss)
            opt_d.step()
            opt_d.optimizer.zero_grad()
        return d_loss.item()


@case(
    "Lightning-like manual optimization",
    "manual optimization",
    "A method of the trained module; a batch is one tensor.",
)
def manual_optimization() -> Made:
    gan = ManualGAN()
    optimizers = [wrapped.optimizer for wrapped in gan.wrapped]
    batches = [real for (real,) in reals()]
    return gan.training_step, dict(model=gan, optimizer=optimizers, batches=batches, scaler=gan.scaler)
