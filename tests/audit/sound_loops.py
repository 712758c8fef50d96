"""Sound steps that train one model: PyTorch's own recipes, who holds the step, what a batch is, accumulation.

The rest: `sound_updates` (clipping, schedulers, models, chance), `sound_styles` (several passes,
losses or models), `sound_gans`, `sound_precision` (16 bits and loss scales by hand).
"""

from __future__ import annotations

import functools
import math
import sys
import time
from collections import defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import grad
from torch.utils.data import DataLoader, TensorDataset

from tests.audit.case import Case, Made

CASES: list[Case] = []
Register = Callable[[Callable[[], Made]], Callable[[], Made]]


def register(cases: list[Case]) -> Callable[..., Register]:
    """Return a decorator, case(name, style, why), that adds a function's sound case to `cases` and seeds torch before it."""

    def case(name: str, style: str, why: str = "") -> Register:
        def add(make: Callable[[], Made]) -> Callable[[], Made]:
            def seeded() -> Made:
                torch.manual_seed(0)
                return make()

            cases.append(Case(name, style, seeded, (), why))
            return seeded

        return add

    return case


case = register(CASES)


def mlp(*, width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3))


def classes(count: int = 6, sizes: tuple[int, ...] = (8,)) -> list[tuple[Tensor, Tensor]]:
    """Return batches of inputs and the classes that a fixed matrix gives them; the sizes take turns."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(8, 3, generator=generator)
    inputs = [torch.randn(sizes[i % len(sizes)], 8, generator=generator) for i in range(count)]
    return [(x, (x @ weight).argmax(dim=1)) for x in inputs]


def images(count: int = 4) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    labels = [torch.arange(4) % 2 for _ in range(count)]
    return [(torch.rand(4, 3, 8, 8, generator=generator) + y.view(-1, 1, 1, 1).float(), y) for y in labels]


def texts(count: int = 6, length: int = 7) -> list[Tensor]:
    """Return token ids (4, length) in which each token follows from the one before, from a random start."""
    generator = torch.Generator().manual_seed(3)
    start = [torch.randint(12, (4, 1), generator=generator) for _ in range(count)]
    return [(first + 5 * torch.arange(length)) % 12 for first in start]


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


# ---- PyTorch's own recipes -------------------------------------------------------------------------------------------------


@case("docs: typical mixed precision training", "function", "The batches of a DataLoader are lists.")
def docs_typical() -> Made:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    def step(input: Tensor, target: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            output = model(input)
            loss = F.cross_entropy(output, target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    data = TensorDataset(*(torch.cat(parts) for parts in zip(*classes(), strict=True)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    return step, dict(model=model, optimizer=optimizer, batches=loader, scaler=scaler, loss=plain)


@case("docs: gradient clipping", "function")
def docs_clipping() -> Made:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)

    def step(input: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(input), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.4)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=plain, max_norm=0.4)


@case("docs: gradient accumulation", "closure")
def docs_accumulation() -> Made:
    model, iters_to_accumulate, i = mlp(), 4, 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(input: Tensor, target: Tensor) -> None:
        nonlocal i
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(input), target)
            loss = loss / iters_to_accumulate
        scaler.scale(loss).backward()
        if (i + 1) % iters_to_accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        i += 1

    parts = dict(model=model, optimizer=optimizer, scaler=scaler, loss=plain)
    return step, dict(batches=classes(8), accumulate=4, **parts)


@case(
    "docs: gradient penalty", "gradient penalty", "The penalty's gradients are unscaled by hand before it is computed."
)
def docs_penalty() -> Made:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step(input: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(input), target)
        scaled_grad_params = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
        inv_scale = 1.0 / scaler.get_scale()
        grad_params = [p * inv_scale for p in scaled_grad_params]
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            grad_norm = torch.stack([grad.pow(2).sum() for grad in grad_params]).sum().sqrt()
            loss = loss + grad_norm
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    def with_penalty(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        return loss + torch.stack([gradient.pow(2).sum() for gradient in gradients]).sum().sqrt()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=with_penalty)


@case(
    "penalty outside the region",
    "gradient penalty",
    "Sums that the first pass takes in fp16, for biases, are not the loss.",
)
def penalty_outside() -> Made:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step(x: Tensor, y: Tensor) -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaled = grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
        penalty = torch.cat([(one / scaler.get_scale()).flatten() for one in scaled]).norm()
        scaler.scale(loss + penalty).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    def with_penalty(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        return (
            loss + torch.cat([one.flatten() for one in grad(loss, list(model.parameters()), create_graph=True)]).norm()
        )

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=with_penalty)


@case("docs: use_amp = False", "function", "A disabled scaler and a disabled region: plain fp32 training.")
def docs_use_amp() -> Made:
    use_amp, model = False, mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=use_amp)

    def step(input: Tensor, target: Tensor) -> None:
        with torch.autocast(device_type="cpu", dtype=torch.float16, enabled=use_amp):
            loss = F.cross_entropy(model(input), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler, loss=plain, max_norm=0.5)


# ---- who holds the step ----------------------------------------------------------------------------------------------------


class Meter:
    def __init__(self, window: int = 20) -> None:
        self.values: deque[float] = deque(maxlen=window)

    def update(self, value: float) -> None:
        self.values.append(value)

    @property
    def average(self) -> float:
        return sum(self.values) / max(len(self.values), 1)


class Trainer:
    """A trainer with a step counter, meters and a log, as projects have it; clips without telling the auditor to what."""

    def __init__(self, model: nn.Module, config: dict[str, Any]) -> None:
        self.model, self.config = model, config
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"], betas=(0.9, 0.98))
        self.scaler = torch.amp.GradScaler("cpu", enabled=config["fp16"], init_scale=2.0**13)
        self.criterion = nn.CrossEntropyLoss()
        self.meters: dict[str, Meter] = defaultdict(Meter)
        self.global_step, self.log = 0, []  # type: ignore[var-annotated]

    def train_step(self, inputs: Tensor, labels: Tensor) -> dict[str, float]:
        started = time.perf_counter()
        self.model.train()
        with torch.autocast("cpu", dtype=torch.float16, enabled=self.config["fp16"]):
            logits = self.model(inputs)
            loss = self.criterion(logits, labels)
        self.scaler.scale(loss).backward()
        if self.config["clip"] > 0:
            self.scaler.unscale_(self.optimizer)
            grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config["clip"])
            self.meters["grad_norm"].update(grad_norm.item())
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.model.zero_grad(set_to_none=True)
        self.global_step += 1
        self.meters["loss"].update(loss.item())
        self.meters["accuracy"].update((logits.argmax(-1) == labels).float().mean().item())
        self.meters["ms"].update(1000 * (time.perf_counter() - started))
        if self.global_step % self.config["log_every"] == 0:
            self.log.append({name: meter.average for name, meter in self.meters.items()})
        return {"loss": loss.item(), "scale": self.scaler.get_scale()}


@case("trainer class with meters and a log", "method")
def trainer_class() -> Made:
    trainer = Trainer(mlp(), {"lr": 1e-2, "fp16": True, "clip": 0.25, "log_every": 5})
    parts = dict(model=trainer.model, optimizer=trainer.optimizer, scaler=trainer.scaler)
    return trainer.train_step, dict(batches=classes(), loss=plain, **parts)


@case("trainer class, fp16 switched off", "method", "The same trainer in fp32: its scaler and its region are disabled.")
def trainer_fp32() -> Made:
    trainer = Trainer(mlp(), {"lr": 1e-2, "fp16": False, "clip": 0.0, "log_every": 2})
    parts = dict(model=trainer.model, optimizer=trainer.optimizer, scaler=trainer.scaler)
    return trainer.train_step, dict(batches=classes(), **parts)


class NativeScalerWithGradNormCount:
    """As in MAE, BEiT, Swin and their many descendants."""

    def __init__(self) -> None:
        self._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15)

    def __call__(
        self, loss: Tensor, optimizer: Any, parameters: Iterable[Tensor], clip_grad: float | None, update_grad: bool
    ) -> Tensor | None:
        self._scaler.scale(loss).backward()
        if not update_grad:
            return None
        parameters = list(parameters)
        self._scaler.unscale_(optimizer)
        if clip_grad is not None:
            norm = torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
        else:
            norm = torch.norm(torch.stack([torch.norm(p.grad.detach()) for p in parameters if p.grad is not None]))
        self._scaler.step(optimizer)
        self._scaler.update()
        return norm


@case("MAE's engine: scaler object, lr by iteration", "callable object", "The learning rate starts at 0 on purpose.")
def mae_engine() -> Made:
    model, accum_iter, data_iter_step = mlp(), 2, -1
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2, betas=(0.9, 0.95))
    loss_scaler = NativeScalerWithGradNormCount()

    def train_one_iteration(samples: Tensor, targets: Tensor) -> float:
        nonlocal data_iter_step
        data_iter_step += 1
        if data_iter_step % accum_iter == 0:
            for group in optimizer.param_groups:
                group["lr"] = 2e-2 * min(1.0, data_iter_step / 8)
        with torch.amp.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(samples), targets)
        loss_value = loss.item()
        if not math.isfinite(loss_value):
            print(f"Loss is {loss_value}, stopping training")
            sys.exit(1)
        loss = loss / accum_iter
        update_grad = (data_iter_step + 1) % accum_iter == 0
        loss_scaler(loss, optimizer, model.parameters(), clip_grad=None, update_grad=update_grad)
        if update_grad:
            optimizer.zero_grad()
        return loss_value

    parts = dict(model=model, optimizer=optimizer, scaler=loss_scaler._scaler, loss=plain)
    return train_one_iteration, dict(batches=classes(), accumulate=2, **parts)


class TiedLM(nn.Module):
    """Embedding, a block, and an output layer that is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(12, 16)
        self.block = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.lm_head = nn.Linear(16, 12, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.wte(ids)
        logits = self.lm_head(hidden + self.block(hidden))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@case("nanoGPT: micro-steps inside the call, tied weights", "accumulation", "x.chunk: one call is one whole update.")
def nanogpt() -> Made:
    model, dtype, grad_clip, iter_num, micro_steps = TiedLM(), "float16", 1.0, 0, 4
    decay = [p for p in model.parameters() if p.dim() >= 2]
    no_decay = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}])
    scaler = torch.amp.GradScaler("cpu", enabled=(dtype == "float16"), init_scale=2.0**12)
    ctx = torch.autocast("cpu", dtype={"float16": torch.float16, "bfloat16": torch.bfloat16}[dtype])

    def step(ids: Tensor, targets: Tensor) -> float:
        nonlocal iter_num
        lr = 1e-2 * (iter_num + 1) / 5 if iter_num < 5 else 1e-2
        for param_group in optimizer.param_groups:
            param_group["lr"] = lr
        lossf = 0.0
        for x, y in zip(ids.chunk(micro_steps), targets.chunk(micro_steps), strict=True):
            with ctx:
                _, loss = model(x, y)
                loss = loss / micro_steps
            lossf += loss.item()
            scaler.scale(loss).backward()
        if grad_clip != 0.0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        iter_num += 1
        return lossf

    batches = [(ids[:, :-1], ids[:, 1:]) for ids in texts()]
    parts = dict(model=model, optimizer=optimizer, scaler=scaler, loss=lambda model, x, y: model(x, y)[1])
    return step, dict(batches=batches, max_norm=1.0, **parts)


@case("functools.partial over a general train_step", "partial")
def partial_step() -> Made:
    def train_step(
        model: nn.Module, optimizer: Any, scaler: Any, criterion: Any, dtype: Any, images: Tensor, labels: Tensor
    ) -> float:
        model.train()
        for param in model.parameters():
            param.grad = None
        with torch.autocast("cpu", dtype=dtype):
            loss = criterion(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.SiLU(), nn.Linear(16, 2))
    optimizer = torch.optim.NAdam(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**11, growth_interval=100)
    step = functools.partial(train_step, model, optimizer, scaler, nn.CrossEntropyLoss(), torch.float16)
    return step, dict(model=model, optimizer=optimizer, batches=images(), scaler=scaler, loss=plain)


@case("a decorator that does backward and update", "decorated")
def decorated_update() -> Made:
    def amp_update(optimizer: Any, scaler: Any) -> Callable[..., Any]:
        def decorate(compute_loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
            @functools.wraps(compute_loss)
            def wrapper(*batch: Any) -> Tensor:
                optimizer.zero_grad()
                loss = compute_loss(*batch)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                return loss.detach()

            return wrapper

        return decorate

    model = mlp()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    @amp_update(optimizer, scaler)
    @torch.autocast("cpu", dtype=torch.float16)
    def step(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, label_smoothing=0.1)

    return step, dict(model=model, optimizer=optimizer, batches=classes(), scaler=scaler)


@case(
    "callable object, clipping by the largest entry",
    "callable object",
    "The inf-norm is no Euclidean norm: no max_norm.",
)
def callable_inf_norm() -> Made:
    class Stepper:
        def __init__(self, net: nn.Module) -> None:
            self.net, self.history = net, []  # type: ignore[var-annotated]
            self.opt = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.5)
            self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

        def __call__(self, x: Tensor, y: Tensor) -> float:
            self.opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(self.net(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.opt)
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.05, norm_type=float("inf"))
            self.scaler.step(self.opt)
            self.scaler.update()
            self.history.append(loss.item())
            return self.history[-1]

    stepper = Stepper(mlp())
    return stepper, dict(model=stepper.net, optimizer=stepper.opt, batches=classes(), scaler=stepper.scaler)


# ---- what a batch is -------------------------------------------------------------------------------------------------------


@case("dict batch, the model returns its loss", "dict batch")
def dict_batch() -> Made:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embeddings, self.classifier = nn.Embedding(12, 16, padding_idx=0), nn.Linear(16, 3)

        def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
            mask = attention_mask.unsqueeze(-1)
            pooled = (self.embeddings(input_ids) * mask).sum(1) / mask.sum(1)
            logits = self.classifier(torch.tanh(pooled))
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def training_step(batch: dict[str, Tensor]) -> float:
        batch = {key: value.to("cpu") for key, value in batch.items()}
        with torch.autocast("cpu", dtype=torch.float16):
            outputs = model(**batch)
        scaler.scale(outputs["loss"]).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad()
        return outputs["loss"].item()

    ids = texts()
    batches = [{"input_ids": i, "attention_mask": (i != 0).float(), "labels": i[:, 0] % 3} for i in ids]
    loss = lambda model, batch: model(**batch)["loss"]  # noqa: E731
    return training_step, dict(model=model, optimizer=optimizer, batches=batches, scaler=scaler, loss=loss)


@case("namedtuple batch, weighted examples", "namedtuple batch")
def namedtuple_batch() -> Made:
    Sample = namedtuple("Sample", "x y weight")
    model = mlp()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def weighted(model: nn.Module, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return (F.cross_entropy(model(x), y, reduction="none") * weight).mean()

    def step(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            loss = weighted(model, x, y, weight)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    batches = [Sample(x, y, 0.5 + y.float() / 2) for x, y in classes()]
    return step, dict(model=model, optimizer=optimizer, batches=batches, scaler=scaler, loss=weighted)


@case("one argument: a namedtuple used by its names", "namedtuple batch")
def namedtuple_one_argument() -> Made:
    Transition = namedtuple("Transition", ["state", "action", "target"])
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def update(batch: Any) -> dict[str, float]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            chosen = model(batch.state).gather(1, batch.action.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(chosen.float(), batch.target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.item(), "q": chosen.mean().item()}

    batches = [Transition(x, y, x.sum(1)) for x, y in classes()]
    return update, dict(model=model, optimizer=optimizer, batches=batches)


@case("one argument that is unpacked", "one argument")
def unpacked() -> Made:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, nesterov=True, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def training_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = (tensor.to("cpu", non_blocking=True) for tensor in batch)
        with torch.autocast("cpu", dtype=torch.float16):
            y_hat = model(x)
        loss = F.cross_entropy(y_hat.float(), y)  # in fp32, outside of the region
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    batches = (batch for batch in classes(12))  # a generator, as of a stream
    return training_step, dict(model=model, optimizer=optimizer, batches=batches, scaler=scaler, loss=plain)


@dataclass
class Graph:
    features: Tensor
    adjacency: Tensor
    labels: Tensor


@case("one argument: an object (a graph)", "one argument")
def graph_object() -> Made:
    class GCN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, graph: Graph) -> Tensor:
            hidden = F.relu(self.first(graph.adjacency @ graph.features))
            return self.second(graph.adjacency @ hidden)

    model = GCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2, weight_decay=5e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(graph: Graph) -> float:
        model.train()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(graph)
            loss = F.nll_loss(F.log_softmax(out, dim=1), graph.labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    adjacency = 0.7 * torch.eye(8) + 0.3 * torch.eye(8).roll(1, 0)
    batches = [Graph(x, adjacency, y) for x, y in classes()]
    loss = lambda model, graph: F.cross_entropy(model(graph), graph.labels)  # noqa: E731
    return step, dict(model=model, optimizer=optimizer, batches=batches, scaler=scaler, loss=loss)


# ---- accumulation ----------------------------------------------------------------------------------------------------------


@case("accumulation by `last`, zero_grad before a group", "accumulation")
def accumulate_last() -> Made:
    model, fresh = mlp(), True
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor, last: bool = False) -> None:
        nonlocal fresh
        if fresh:
            optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) / 3
        scaler.scale(loss).backward()
        fresh = last
        if last:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            scaler.step(optimizer)
            scaler.update()

    parts = dict(model=model, optimizer=optimizer, scaler=scaler, loss=plain, max_norm=0.3)
    loader = torch.utils.data.DataLoader(classes(), batch_size=None)  # of whole groups
    return step, dict(batches=loader, accumulate=3, **parts)


@case(
    "running mean over the examples, unequal micro-batches",
    "accumulation",
    "What is there is weighted down for the new.",
)
def running_mean() -> Made:
    model, seen, calls = mlp(), 0, 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def step(x: Tensor, y: Tensor) -> Tensor:
        nonlocal seen, calls
        seen, calls = seen + len(x), calls + 1
        weight = len(x) / seen
        for p in model.parameters():
            if p.grad is not None:
                p.grad *= 1 - weight
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss * weight).backward()
        if calls % 3 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            seen = 0
        return loss.detach()

    parts = dict(model=model, optimizer=optimizer, scaler=scaler, loss=plain)
    return step, dict(batches=classes(6, sizes=(10, 2, 4)), accumulate=3, **parts)


@case("sum-reduction, divided by the examples at the end", "accumulation")
def accumulate_sums() -> Made:
    model, count = mlp(), 0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step(x: Tensor, y: Tensor, last: bool) -> None:
        nonlocal count
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y, reduction="sum")
        scaler.scale(loss).backward()
        count += y.numel()
        if last:
            scaler.unscale_(optimizer)
            for p in model.parameters():
                p.grad.div_(count)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            count = 0

    parts = dict(model=model, optimizer=optimizer, scaler=scaler, loss=plain)
    return step, dict(batches=classes(4, sizes=(9, 5)), accumulate=2, **parts)


@case(
    "fairseq: gradients multiplied by 1/tokens, then clipped",
    "accumulation",
    "Each group is divided by its own tokens.",
)
def accumulate_tokens() -> Made:
    model, sample_size, micro = TiedLM(), 0, 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def train_step(sample: dict[str, Tensor]) -> float:
        nonlocal sample_size, micro
        with torch.autocast("cpu", dtype=torch.float16):
            logits, _ = model(sample["net_input"], sample["target"].clamp(min=0))
            loss = F.cross_entropy(logits.flatten(0, 1), sample["target"].flatten(), ignore_index=-100, reduction="sum")
        scaler.scale(loss).backward()
        sample_size += int((sample["target"] != -100).sum())
        micro += 1
        if micro % 2 == 0:
            scaler.unscale_(optimizer)
            torch._foreach_mul_([p.grad for p in model.parameters()], 1.0 / sample_size)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            sample_size = 0
        return loss.item() / int((sample["target"] != -100).sum())

    batches = []
    for i, ids in enumerate(texts()):
        target = ids[:, 1:].clone()
        target[:, 6 - i % 3 :] = -100  # padding
        batches.append({"net_input": ids[:, :-1], "target": target})
    parts = dict(model=model, optimizer=optimizer, scaler=scaler, max_norm=0.5)
    return train_step, dict(batches=batches, accumulate=2, **parts)


@case(
    "own sums of gradients",
    "accumulation",
    "The scale cannot change within a group, so sums of scaled gradients may be kept.",
)
def own_sums() -> Made:
    model = mlp()
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=0.2, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    sums, calls = [torch.zeros_like(p) for p in params], 0

    def step(x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        for total, gradient in zip(sums, torch.autograd.grad(scaler.scale(loss), params), strict=True):
            total += gradient
        calls += 1
        if calls == 4:
            for p, total in zip(params, sums, strict=True):
                p.grad = total / calls
                total.zero_()
            scaler.step(optimizer)
            scaler.update()
            calls = 0
        return loss.detach()

    parts = dict(model=model, optimizer=optimizer, scaler=scaler, loss=plain)
    return step, dict(batches=classes(8), accumulate=4, **parts)
