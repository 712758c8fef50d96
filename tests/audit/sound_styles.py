"""Sound steps with several passes, losses or models: SAM, closures, averaged and lagging weights, several losses."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from tests.audit.case import Case, Made
from tests.audit.sound_loops import classes, mlp, plain, register

CASES: list[Case] = []
case = register(CASES)


# ---- sharpness-aware minimization -----------------------------------------------------------------------------------------


class SAM(torch.optim.Optimizer):
    """As in davda54/sam: an optimizer with a base optimizer inside."""

    def __init__(self, params: Any, base_optimizer: Any, rho: float = 0.05, **kwargs: Any) -> None:
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.norm(torch.stack([p.grad.norm(p=2) for p in params]), p=2)
        for p in params:
            self.state[p]["old_p"] = p.data.clone()
            p.add_(p.grad * (self.param_groups[0]["rho"] / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def restore(self) -> None:
        for p in self.state:
            p.data = self.state[p]["old_p"]

    @torch.no_grad()
    def second_step(self) -> None:
        self.restore()
        self.base_optimizer.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> None:  # type: ignore[override]
        closure = torch.enable_grad()(closure)
        self.first_step()
        closure()
        self.second_step()


@case("SAM: first_step and second_step, bf16", "SAM", "The gradient that is used is that at the perturbed weights.")
def sam_two_steps() -> Made:
    model = mlp()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.first_step()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            second = F.cross_entropy(model(x), y)
        second.backward()
        optimizer.second_step()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes())


@case("SAM: step(closure), fp32", "SAM", "One call of step() holds a backward pass.")
def sam_closure() -> Made:
    model = mlp()
    optimizer = SAM(model.parameters(), torch.optim.Adam, rho=0.1, lr=1e-2)

    def step(x: Tensor, y: Tensor) -> float:
        def closure() -> Tensor:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step(closure)
        optimizer.zero_grad()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes())


@case(
    "SAM with a scaler, update() after each pass",
    "SAM",
    "Each pass has an unscale_ and an update(); weights come back always.",
)
def sam_two_updates() -> Made:
    model = mlp()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return F.cross_entropy(model(x), y)

    def step(x: Tensor, y: Tensor) -> float:
        loss = loss_of(x, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer.base_optimizer)
        optimizer.first_step()
        scaler.update()
        scaler.scale(loss_of(x, y)).backward()
        optimizer.restore()
        scaler.step(optimizer.base_optimizer)  # unscales; skips if an inf came
        scaler.update()
        optimizer.zero_grad()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer.base_optimizer, batches=classes(), scaler=scaler)


@case(
    "SAM with a scaler, ascent along scaled gradients",
    "SAM",
    "The ascent divides by the norm, so the scale falls out of it.",
)
def sam_scaled_ascent() -> Made:
    model, rho = mlp(), 0.05
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(scaler.scale(loss), list(model.parameters()))
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        with torch.no_grad():
            before = [p.clone() for p in model.parameters()]
            for p, gradient in zip(model.parameters(), gradients, strict=True):
                p.add_(gradient * (rho / (norm + 1e-6)))
        with torch.autocast("cpu", dtype=torch.float16):
            perturbed = F.cross_entropy(model(x), y)
        scaler.scale(perturbed).backward()
        with torch.no_grad():
            for p, old in zip(model.parameters(), before, strict=True):
                p.copy_(old)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, max_norm=1.0)


# ---- closures --------------------------------------------------------------------------------------------------------------


@case(
    "LBFGS with a line search, fp32",
    "LBFGS",
    "Many backward passes a call, at weights that the loss passed does not know.",
)
def lbfgs() -> Made:
    model = nn.Linear(8, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, history_size=5, line_search_fn="strong_wolfe")

    def step(x: Tensor, y: Tensor) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y) + 1e-2 * model.weight.pow(2).sum()
            loss.backward()
            return loss

        return optimizer.step(closure)

    loss = lambda model, x, y: plain(model, x, y) + 1e-2 * model.weight.pow(2).sum()  # noqa: E731
    return step, dict(model=model, optimizer=optimizer, batches=classes(4, sizes=(32,)), loss=loss)


@case("LBFGS under bf16 autocast", "LBFGS")
def lbfgs_bf16() -> Made:
    class Fit:
        def __init__(self, model: nn.Module) -> None:
            self.model, self.optimizer = model, torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=3)

        def closure(self) -> Tensor:
            self.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(self.model(self.batch[0]), self.batch[1])
            loss.backward()
            return loss

        def step(self, *batch: Tensor) -> float:
            self.batch = batch
            return self.optimizer.step(self.closure).item()

    fit = Fit(mlp())
    return fit.step, dict(model=fit.model, optimizer=fit.optimizer, batches=classes(4, sizes=(32,)))


@case(
    "AdamW.step(closure) with clipping in the closure, bf16", "closure", "Lightning's automatic optimization, in small."
)
def adamw_closure() -> Made:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def training_step(x: Tensor, y: Tensor) -> float:
        def closure() -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            return loss

        return optimizer.step(closure=closure).item()

    return training_step, dict(model=model, optimizer=optimizer, batches=classes(), loss=plain, max_norm=0.5)


# ---- averaged and lagging weights -----------------------------------------------------------------------------------------


@case("YOLO: optimizer_step with EMA by deepcopy", "EMA")
def ema_deepcopy() -> Made:
    class Trainer:
        def __init__(self, model: nn.Module) -> None:
            self.model, self.ema, self.updates = model, copy.deepcopy(model).eval().requires_grad_(False), 0
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
            self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

        def optimizer_step(self) -> None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=10.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.updates += 1
            decay = 0.9999 * (1 - math.exp(-self.updates / 10))
            for name, value in self.ema.state_dict().items():
                if value.dtype.is_floating_point:
                    value.mul_(decay).add_(self.model.state_dict()[name].detach(), alpha=1 - decay)

        def train_batch(self, x: Tensor, y: Tensor) -> float:
            with torch.amp.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.optimizer_step()
            return loss.item()

    trainer = Trainer(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)))
    parts = dict(model=trainer.model, optimizer=trainer.optimizer, scaler=trainer.scaler, loss=plain)
    return trainer.train_batch, dict(batches=classes(), max_norm=10.0, **parts)


@case("AveragedModel with EMA, only after real updates", "EMA")
def ema_averaged() -> Made:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        previous = scaler.get_scale()
        scaler.update()
        if not scaler.get_scale() < previous:
            ema.update_parameters(model)
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=plain)


@case("SWA from the tenth call, SWALR", "EMA", "Another scheduler takes over: none is passed.")
def swa() -> Made:
    model, calls = mlp(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    averaged, swalr = AveragedModel(model), SWALR(optimizer, swa_lr=0.05)

    def step(x: Tensor, y: Tensor) -> float:
        nonlocal calls
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        calls += 1
        if calls > 10:
            averaged.update_parameters(model)
            swalr.step()
        else:
            cosine.step()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), loss=plain)


class Lookahead(torch.optim.Optimizer):
    """As in timm: does not call Optimizer.__init__, shares the groups of its base."""

    def __init__(self, base_optimizer: torch.optim.Optimizer, alpha: float = 0.5, k: int = 3) -> None:
        self._optimizer_step_pre_hooks: OrderedDict[int, Any] = OrderedDict()  # type: ignore[assignment]
        self._optimizer_step_post_hooks: OrderedDict[int, Any] = OrderedDict()  # type: ignore[assignment]
        self._base_optimizer, self.param_groups = base_optimizer, base_optimizer.param_groups
        self.defaults, self.state = base_optimizer.defaults, defaultdict(dict)
        for group in self.param_groups:
            group.update(lookahead_alpha=alpha, lookahead_k=k, lookahead_step=0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self._base_optimizer.step(closure)
        for group in self.param_groups:
            group["lookahead_step"] += 1
            if group["lookahead_step"] % group["lookahead_k"] == 0:
                for fast in (p for p in group["params"] if p.grad is not None):
                    slow = self._base_optimizer.state[fast].setdefault("lookahead_slow_buff", fast.clone())
                    slow.add_(fast - slow, alpha=group["lookahead_alpha"])
                    fast.copy_(slow)

    def state_dict(self) -> dict[str, Any]:
        return self._base_optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._base_optimizer.load_state_dict(state_dict)
        self.param_groups = self._base_optimizer.param_groups


@case("Lookahead around RAdam", "wrapped optimizer", "Every third update the weights go halfway back.")
def lookahead() -> Made:
    model = mlp()
    optimizer = Lookahead(torch.optim.RAdam(model.parameters(), lr=5e-2))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=plain)


@case(
    "mean teacher: a lagging copy in the loss, foreach lerp",
    "lagging copy",
    "The loss changes from call to call with the teacher.",
)
def mean_teacher() -> Made:
    student = mlp()
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.2, foreach=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.float16):
            logits = student(x + 0.1 * torch.randn_like(x))
            with torch.no_grad():
                target = teacher(x).softmax(-1)
            supervised = F.cross_entropy(logits, y)
            loss = supervised + 0.5 * F.mse_loss(logits.softmax(-1), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        torch._foreach_lerp_(list(teacher.parameters()), [p.detach() for p in student.parameters()], 0.05)
        return supervised.item()

    return step, dict(model=student, optimizer=optimizer, batches=classes(), scaler=scaler)


@case("DQN: target network copied every fourth call", "lagging copy")
def dqn() -> Made:
    q, target_q, updates = mlp(), mlp(), 0
    target_q.load_state_dict(q.state_dict())
    optimizer = torch.optim.RMSprop(q.parameters(), lr=2e-3)

    def learn(state: Tensor, action: Tensor, reward: Tensor, following: Tensor) -> float:
        nonlocal updates
        with torch.no_grad():
            wanted = reward + 0.5 * target_q(following).amax(1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = q(state).gather(1, action[:, None]).squeeze(1)
        loss = F.huber_loss(found.float(), wanted)
        optimizer.zero_grad()
        loss.backward()
        for p in q.parameters():
            p.grad.data.clamp_(-1, 1)
        optimizer.step()
        updates += 1
        if updates % 4 == 0:
            target_q.load_state_dict(q.state_dict())
        return loss.item()

    batches = [(x, y, (y == 0).float() + x[:, 0], x.roll(1, 0)) for x, y in classes()]
    return learn, dict(model=q, optimizer=optimizer, batches=batches)


# ---- several losses, several updates, what is carried over -----------------------------------------------------------------


@case(
    "docs: two models, two losses, two optimizers",
    "several losses",
    "retain_graph, both losses reach both models; one update().",
)
def docs_multiple() -> Made:
    model0, model1 = mlp(), mlp()
    optimizer0, optimizer1 = (
        torch.optim.SGD(model0.parameters(), lr=0.02),
        torch.optim.SGD(model1.parameters(), lr=0.02),
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(input: Tensor, target: Tensor) -> float:
        optimizer0.zero_grad()
        optimizer1.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            output0, output1 = model0(input), model1(input)
            loss0 = F.cross_entropy(2 * output0 + 3 * output1, target)
            loss1 = F.cross_entropy(3 * output0 - 5 * output1, target)
        scaler.scale(loss0).backward(retain_graph=True)
        scaler.scale(loss1).backward()
        scaler.unscale_(optimizer0)
        scaler.step(optimizer0)
        scaler.step(optimizer1)
        scaler.update()
        return loss0.item() + loss1.item()

    def both(models: list[nn.Module], x: Tensor, y: Tensor) -> Tensor:
        first, second = models[0](x), models[1](x)
        return F.cross_entropy(2 * first + 3 * second, y) + F.cross_entropy(3 * first - 5 * second, y)

    parts = dict(model=[model0, model1], optimizer=[optimizer0, optimizer1], scaler=scaler, loss=both)
    return step, dict(batches=classes(), **parts)


@case(
    "uncertainty weighting, its variances outside the model",
    "several losses",
    "The optimizer owns two numbers more than the model.",
)
def uncertainty() -> Made:
    model = nn.ModuleDict({"trunk": nn.Linear(8, 16), "cls": nn.Linear(16, 3), "reg": nn.Linear(16, 1)})
    log_vars = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam([{"params": model.parameters()}, {"params": [log_vars], "lr": 1e-3}], lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def total(model: Any, x: Tensor, y: Tensor) -> Tensor:
        hidden = torch.relu(model["trunk"](x))
        losses = (
            F.cross_entropy(model["cls"](hidden), y),
            F.mse_loss(model["reg"](hidden).squeeze(1).float(), x.mean(1)),
        )
        return sum(torch.exp(-log_var) * loss + log_var for log_var, loss in zip(log_vars, losses, strict=True))

    def step(x: Tensor, y: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = total(model, x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.item()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=total)


@case(
    "PCGrad: gradients of two tasks projected, both scaled",
    "several losses",
    "A projection keeps the scale; p.grad is assigned.",
)
def pcgrad() -> Made:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step(x: Tensor, y: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
            losses = [F.cross_entropy(out[:, :3], y), F.mse_loss(out[:, 3].float(), -x[:, 0])]
        flat = []
        for loss in losses:
            gradients = torch.autograd.grad(scaler.scale(loss), params, retain_graph=True)
            flat.append(torch.cat([gradient.flatten() for gradient in gradients]))
        projected = [gradient.clone() for gradient in flat]
        for own, other in ((0, 1), (1, 0)):
            dot = projected[own] @ flat[other]
            if dot < 0:
                projected[own] -= dot / flat[other].pow(2).sum() * flat[other]
        for p, gradient in zip(params, sum(projected).split([p.numel() for p in params]), strict=True):  # type: ignore[union-attr]
            p.grad = gradient.view_as(p).clone()
        scaler.step(optimizer)
        scaler.update()
        return sum(loss.item() for loss in losses)

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler)


@case("actor and critic: two losses, two optimizers, clipped each", "several losses")
def actor_critic() -> Made:
    class Agent:
        def __init__(self) -> None:
            self.actor, self.critic = mlp(), nn.Linear(8, 1)
            self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-2)
            self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=3e-2)
            self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

        def update(self, batch: dict[str, Tensor]) -> dict[str, float]:
            with torch.autocast("cpu", dtype=torch.float16):
                value = self.critic(batch["obs"]).squeeze(1).float()
                value_loss = F.mse_loss(value, batch["return"])
                policy = torch.distributions.Categorical(logits=self.actor(batch["obs"]).float())
                advantage = (batch["return"] - value).detach()
                policy_loss = -(policy.log_prob(batch["action"]) * advantage).mean() - 0.01 * policy.entropy().mean()
            for opt, loss in ((self.critic_opt, value_loss), (self.actor_opt, policy_loss)):
                opt.zero_grad()
                self.scaler.scale(loss).backward()
                self.scaler.unscale_(opt)
                nn.utils.clip_grad_norm_([p for group in opt.param_groups for p in group["params"]], 0.5)
                self.scaler.step(opt)
            self.scaler.update()
            return {"value_loss": value_loss.item(), "policy_loss": policy_loss.item()}

    agent = Agent()
    batches = [{"obs": x, "action": y, "return": x[:, 0] + 1} for x, y in classes()]
    parts = dict(model=[agent.actor, agent.critic], optimizer=[agent.actor_opt, agent.critic_opt], scaler=agent.scaler)
    return agent.update, dict(batches=batches, max_norm=0.5, **parts)


@case(
    "PPO: three epochs of two minibatches in one call",
    "several updates",
    "Six whole updates a call, each with its own gradients.",
)
def ppo() -> Made:
    policy = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))  # three logits and a value
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3, eps=1e-5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def update(rollout: dict[str, Tensor]) -> float:
        with torch.no_grad():
            old_logp = (
                torch.log_softmax(policy(rollout["obs"])[:, :3], -1).gather(1, rollout["action"][:, None]).squeeze(1)
            )
        value_losses = []
        for _ in range(3):
            for rows in torch.randperm(len(old_logp)).chunk(2):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    out = policy(rollout["obs"][rows]).float()
                    logp = torch.log_softmax(out[:, :3], -1).gather(1, rollout["action"][rows, None]).squeeze(1)
                    ratio, advantage = (logp - old_logp[rows]).exp(), rollout["advantage"][rows]
                    surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
                    value_loss = F.mse_loss(out[:, 3], rollout["return"][rows])
                    loss = 0.5 * value_loss - surrogate
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                value_losses.append(value_loss.item())
        return sum(value_losses) / len(value_losses)

    batches = [{"obs": x, "action": y, "advantage": x[:, 1], "return": x[:, 0] + 1} for x, y in classes()]
    return update, dict(model=policy, optimizer=optimizer, batches=batches, scaler=scaler, max_norm=0.5)


@case(
    "truncated backpropagation: a hidden state carried over",
    "state carried over",
    "A call's loss depends on the call before it.",
)
def tbptt() -> Made:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = nn.GRU(4, 16, batch_first=True), nn.Linear(16, 4)

        def forward(self, x: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
            out, hidden = self.gru(x, hidden)
            return self.head(out), hidden

    model, hidden = Recurrent(), None
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> float:
        nonlocal hidden
        if hidden is not None:
            hidden = hidden.detach()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out, hidden = model(x, hidden)
            loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    ids = [(start + torch.arange(7).repeat(3, 1)) % 4 for start in range(6)]
    batches = [(F.one_hot(i[:, :-1], 4).float(), i[:, 1:]) for i in ids]
    return step, dict(model=model, optimizer=optimizer, batches=batches, scaler=scaler, max_norm=0.25)


@case("distillation from a teacher in fp16", "several losses")
def distillation() -> Made:
    student, teacher, temperature = mlp(width=8), mlp(width=32).half().eval().requires_grad_(False), 2.0
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def distilled(student: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = F.log_softmax(teacher(x.half()).float() / temperature, -1)
        logits = student(x)
        soft = F.kl_div(F.log_softmax(logits / temperature, -1), wanted, reduction="batchmean", log_target=True)
        return 0.5 * temperature**2 * soft + 0.5 * F.cross_entropy(logits, y)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = distilled(student, x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step, dict(model=student, optimizer=optimizer, batches=classes(), scaler=scaler, loss=distilled)


@case(
    "VAE: KL weight annealed by the number of calls",
    "counter",
    "The same batch has another loss in the next call, as meant.",
)
def vae() -> Made:
    class VAE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder, self.annealing = nn.Linear(8, 8), nn.Linear(4, 8), 0

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            mu, log_var = self.encoder(x).float().chunk(2, dim=-1)
            z = mu + torch.randn_like(mu) * (0.5 * log_var).exp()
            kl = -0.5 * (1 + log_var - mu.pow(2) - log_var.exp()).sum(-1).mean()
            return self.decoder(z), kl

    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step(x: Tensor) -> float:
        model.annealing += 1
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            reconstruction, kl = model(x)
            error = F.mse_loss(reconstruction.float(), x)
            loss = error + min(1.0, model.annealing / 500) * kl
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return error.item()

    return step, dict(model=model, optimizer=optimizer, batches=[(x,) for x, _ in classes()], scaler=scaler)


@case("CLIP: two towers, the logit scale clamped after the step", "several models")
def clip_towers() -> Made:
    towers = nn.ModuleDict({"image": nn.Linear(8, 6), "text": nn.Linear(8, 6)})
    towers.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
    optimizer = torch.optim.AdamW(towers.parameters(), lr=2e-2, betas=(0.9, 0.98), eps=1e-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def contrastive(towers: Any, image: Tensor, text: Tensor) -> Tensor:
        image, text = F.normalize(towers["image"](image), dim=-1), F.normalize(towers["text"](text), dim=-1)
        logits = towers.logit_scale.exp() * image @ text.t()
        labels = torch.arange(len(image))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2

    def step(image: Tensor, text: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = contrastive(towers, image, text)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(towers.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            towers.logit_scale.clamp_(0, math.log(100))
        return loss.item()

    batches = [(x, -x.roll(2, 1)) for x, _ in classes()]
    return step, dict(model=towers, optimizer=optimizer, batches=batches, scaler=scaler, loss=contrastive, max_norm=1.0)


class Accelerator:
    """Accelerate's way in small: backward(), and methods that do nothing while gradients are summed."""

    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: Any, gradient_accumulation_steps: int) -> None:
        self.optimizer, self.scheduler, self.calls = optimizer, scheduler, 0
        self.every, self.sync_gradients, self.skipped = gradient_accumulation_steps, False, False
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        self.calls += 1
        self.sync_gradients = self.calls % self.every == 0
        yield

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss / self.every).backward()

    def clip_grad_norm_(self, parameters: Any, max_norm: float) -> Tensor:
        self.scaler.unscale_(self.optimizer)
        return nn.utils.clip_grad_norm_(parameters, max_norm)

    def step(self) -> None:
        if self.sync_gradients:
            before = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.skipped = self.scaler.get_scale() < before

    def schedule(self) -> None:
        if self.sync_gradients and not self.skipped:
            self.scheduler.step()

    def zero_grad(self) -> None:
        if self.sync_gradients:
            self.optimizer.zero_grad()


@case("Diffusers: Accelerate-like wrappers, noise and times drawn in the step", "manual optimization")
def diffusion() -> Made:
    unet = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(unet.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + 0.01 * n))
    accelerator = Accelerator(optimizer, scheduler, gradient_accumulation_steps=2)
    source = torch.Generator().manual_seed(5)

    def step(clean: Tensor) -> float:
        with accelerator.accumulate():
            noise = torch.randn(clean.shape, generator=source)
            time = torch.randint(1, 10, (len(clean), 1), generator=source) / 10
            noisy = (1 - time).sqrt() * clean + time.sqrt() * noise
            with torch.autocast("cpu", dtype=torch.float16):
                predicted = unet(torch.cat([noisy, time], 1))
            loss = F.mse_loss(predicted.float(), noise)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(unet.parameters(), 1.0)
            accelerator.step()
            accelerator.schedule()
            accelerator.zero_grad()
        return loss.item()

    parts = dict(model=unet, optimizer=optimizer, scheduler=scheduler, scaler=accelerator.scaler)
    return step, dict(batches=[x + 1 for x, _ in classes()], accumulate=2, max_norm=1.0, **parts)
