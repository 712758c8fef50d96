"""Steps that change more than weights. `audit` runs them a dozen times, and has to leave everything as it was.

    step, arguments, probes = stress.make()

`probes` are functions without arguments; each returns a fingerprint of something that `audit(step, **arguments)` may not
change. The recipe for a test is in `fingerprints`. `make()` sets everything that it uses anew, module globals and the process's
generators too, and may change the process's switches: call it within `globals_kept()`.

What no auditor can put back is not among these steps: a generator moved on, a file written, a line printed.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import random
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler

from tests.audit.fingerprints import Place, Probes, Same, look, standard

Stressed = tuple[
    Callable[..., Any], dict[str, Any], Probes
]  # the step, the other arguments of `audit`, what has to stay


@dataclass(frozen=True)
class Stress:
    """One step, made anew by `make()`.

    sound: nothing is wrong with the step: a finding would be a false alarm. Where False, it has a fault, or nobody need judge it;
           `audit` may even refuse it by an error, if only everything stays as it was
    note:  what is subtle
    """

    name: str
    make: Callable[[], Stressed]
    sound: bool = True
    note: str = ""


STRESSES: list[Stress] = []


def stress(name: str, sound: bool = True, note: str = "") -> Callable[[Callable[[], Stressed]], Callable[[], Stressed]]:
    def put(make: Callable[[], Stressed]) -> Callable[[], Stressed]:
        STRESSES.append(Stress(name, make, sound, note))
        return make

    return put


# ------------------------------------------------------------------------------------------------------ shared pieces


def seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def net(hidden: int = 12) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 3))


def some_batches(number: int = 6, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    to_class = torch.randn(6, 3, generator=generator)
    inputs = [torch.randn(size, 6, generator=generator) for _ in range(number)]
    return [(x, (x @ to_class).argmax(1)) for x in inputs]


def new_scaler(**settings: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **{"init_scale": 2.0**12, "growth_interval": 3} | settings)


def half() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.float16)


def bf16() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


# ------------------------------------------------------------------------------------------------------ parameters


@stress("p.data = p.data.clamp(...)")
def weights_clamped() -> Stressed:
    """The critic of a Wasserstein GAN, as often written: after each update the weights lie elsewhere in memory."""
    seed()
    model = net()
    optimizer, scaler = torch.optim.RMSprop(model.parameters(), lr=5e-3), new_scaler()
    aliases = [p.detach() for p in model.parameters()]  # as another process may hold them

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        for p in model.parameters():
            p.data = p.data.clamp(-0.5, 0.5)
        return loss.item()

    arguments = {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "batches": some_batches(),
        "loss": cross_entropy,
    }
    return step, arguments, standard(arguments) | {"aliases": lambda: look(aliases)}


@stress("weights are views into one flat tensor")
def flat_weights() -> Stressed:
    """The average is taken of the flat tensor: a parameter that lies elsewhere after the audit would never reach it again."""
    seed()
    model = net()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    start = 0
    for p in model.parameters():
        p.data = flat[start : start + p.numel()].view_as(p)
        start += p.numel()
    optimizer, scaler, average = torch.optim.AdamW(model.parameters(), lr=1e-2), new_scaler(), flat.clone()

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad(set_to_none=True)
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        average.lerp_(flat, 0.1)
        return loss.item()

    arguments = {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "batches": some_batches(),
        "loss": cross_entropy,
    }
    return step, arguments, standard(arguments) | {"flat tensor": lambda: look(flat), "average": lambda: look(average)}


class LanguageModel(nn.Module):
    """An LSTM keeps its parameters in a list of its own too; the head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 9)
        self.head.weight = self.embed.weight
        self.state: tuple[Tensor, Tensor] | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):  # a CPU without avx512 has no LSTM in 16 bits
            out, (h, c) = self.rnn(self.embed(tokens), self.state)
        self.state = h.detach(), c.detach()
        return self.head(out)


@stress("tied weights, LSTM, its state carried over")
def language_model() -> Stressed:
    """Truncated backpropagation through time, bf16 without a scaler: the state of one batch begins the next."""
    seed()
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    text = (torch.arange(4 * 41) * 2 % 9).view(4, 41)
    batches = [(text[:, i : i + 5], text[:, i + 1 : i + 6]) for i in range(0, 35, 5)]

    def step(tokens: Tensor, following: Tensor) -> float:
        with bf16():
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss.item()

    arguments = {"model": model, "optimizer": optimizer, "batches": batches, "max_norm": 0.5}
    ties = {
        "tied": lambda: model.head.weight is model.embed.weight,
        "the LSTM's own list": lambda: [
            a is b for a, b in zip(model.rnn._flat_weights, model.rnn.parameters(), strict=True)
        ],
        "carried state": lambda: look(model.state),
    }
    return step, arguments, standard(arguments) | ties


@stress("attributes on the parameters")
def parameter_attributes() -> Stressed:
    """Each parameter remembers where it was, and how far it moved: who moves too far gets half the learning rate."""
    seed()
    model = net()
    for name, p in model.named_parameters():
        p.no_decay = name.endswith("bias")
    groups = [{"params": [p], "weight_decay": 0.0 if p.no_decay else 0.01} for p in model.parameters()]
    optimizer, scaler = torch.optim.AdamW(groups, lr=2e-2), new_scaler()

    def step(x: Tensor, y: Tensor) -> float:
        for p in model.parameters():
            p.previous = p.detach().clone()
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        for group in optimizer.param_groups:
            (p,) = group["params"]
            p.moved = getattr(p, "moved", 0.0) + (p.detach() - p.previous).norm().item()
            group["lr"] = 2e-2 if p.moved < 1 else 1e-2
        return loss.item()

    arguments = {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "batches": some_batches(),
        "loss": cross_entropy,
    }
    return step, arguments, standard(arguments)  # the attributes are part of "parameters"


# ------------------------------------------------------------------------------------------------------ buffers


class Whitening(nn.Module):
    """A layer as people write it: a buffer assigned anew, one changed in place, one made by the first pass, one not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("passes", torch.tensor(0))
        self.register_buffer("spread", None)
        self.register_buffer("latest", torch.zeros(6), persistent=False)
        self.examples = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            self.passes += 1
            self.spread = x.detach().std(0) if self.spread is None else self.spread.lerp(x.detach().std(0), 0.1)
            self.latest.copy_(x.detach()[-1])
            self.examples += len(x)
        return (x - self.mean) / self.spread


@stress("buffers assigned anew, made late, not saved")
def own_normalisation() -> Stressed:
    seed()
    model = nn.Sequential(Whitening(), *net())
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), new_scaler()
    white = model[0]

    def step(x: Tensor, y: Tensor) -> float:
        model.train()
        with half():
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    arguments = {"model": model, "optimizer": optimizer, "scaler": scaler, "batches": some_batches()}
    mine = {
        "mean": lambda: look(white.mean),
        "passes": lambda: look(white.passes),
        "no spread yet": lambda: look(white._buffers["spread"]),
        "not saved": lambda: look(white.latest),
        "examples": lambda: white.examples,
    }
    return step, arguments, standard(arguments) | mine


@stress("batch norm: counters, momentum annealed by the step")
def batch_norm() -> Stressed:
    seed()
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12, momentum=0.3), nn.ReLU(), nn.Linear(12, 3))
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), new_scaler()
    norm = model[1]
    for x, _ in some_batches(2):
        model(x)  # it has counted before

    def step(x: Tensor, y: Tensor) -> float:
        norm.momentum = max(0.01, norm.momentum * 0.9)
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    arguments = {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "batches": some_batches(),
        "loss": cross_entropy,
    }
    mine = {
        "momentum": lambda: norm.momentum,
        "running": lambda: look((norm.running_mean, norm.running_var)),
        "batches tracked": lambda: norm.num_batches_tracked.item(),
    }
    return step, arguments, standard(arguments) | mine


# ------------------------------------------------------------------------------------------------------ gradients


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.unused = nn.Linear(6, 12), nn.Linear(12, 3), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.body(x)))


@stress("no gradients yet, a head without any, zero_grad(set_to_none=False)")
def gradients_none() -> Stressed:
    """A zero gradient left on the unused head instead of None: from then on weight decay shrinks it."""
    seed()
    model = TwoHeads()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1), new_scaler()

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad(set_to_none=False)
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    arguments = {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "batches": some_batches(),
        "loss": cross_entropy,
    }
    return step, arguments, standard(arguments) | {"None": lambda: [p.grad is None for p in model.parameters()]}


@stress("gradients of an earlier look, cleared by the step")
def gradients_left() -> Stressed:
    """Someone called backward() before, in fp32, to see whether it works; one gradient has been made inf, one set by hand."""
    seed()
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), new_scaler()
    x, y = some_batches(1)[0]
    F.cross_entropy(model(x), y).backward()
    model[0].bias.grad[0] = math.inf
    model[2].bias.grad = None

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    arguments = {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "batches": some_batches(),
        "loss": cross_entropy,
    }
    return step, arguments, standard(arguments)


@stress(
    "audited in the middle of an accumulation", sound=False, note="the group that audit begins ends one call too early"
)
def in_the_middle_of_a_group() -> Stressed:
    """One of two micro-batches is in the gradients, scaled. What is in them must be there for the second."""
    seed()
    model = net()
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-2), new_scaler()
    batches = some_batches()
    calls = 0

    def step(x: Tensor, y: Tensor) -> float:
        nonlocal calls
        calls += 1
        with half():
            loss = F.cross_entropy(model(x), y) / 2
        scaler.scale(loss).backward()
        if calls % 2 == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)
        return loss.item()

    step(*batches[0])
    arguments = {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "batches": batches,
        "accumulate": 2,
        "max_norm": 1.0,
    }
    return step, arguments, standard(arguments) | {"calls": lambda: calls}


# ------------------------------------------------------------------------------------------------------ optimizer


@stress("optimizer in the middle, the step holds its moments and its group")
def moments_held() -> Stressed:
    """Were the state or the group replaced by copies, what the step holds would no longer be the optimizer's."""
    seed()
    model = net()
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=2e-2, amsgrad=True), new_scaler()
    watched: list[Tensor] = []
    group = optimizer.param_groups[0]

    def step(x: Tensor, y: Tensor) -> float:
        if watched:
            group["lr"] = 2e-2 / (1 + sum(m.norm().item() for m in watched))
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    for batch in some_batches(3):
        step(*batch)
    watched += [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    arguments = {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "batches": some_batches(),
        "loss": cross_entropy,
    }
    mine = {
        "watched": lambda: look(watched),
        "still the optimizer's": lambda: [Same(state["exp_avg"]) for state in optimizer.state.values()],
        "the group": lambda: (Same(group), optimizer.param_groups[0] is group),
        "updates made": lambda: [state["step"].item() for state in optimizer.state.values()],
    }
    return step, arguments, standard(arguments) | mine


@stress("layers thawed one by one, add_param_group")
def thawing() -> Stressed:
    """Gradual unfreezing as in ULMFiT: every second call the next layer from the top is trained too."""
    seed()
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))
    frozen = [model[0], model[2]]
    for layer in frozen:
        layer.requires_grad_(False)
    optimizer, scaler = torch.optim.Adam(model[4].parameters(), lr=2e-2), new_scaler()
    calls = 0

    def step(x: Tensor, y: Tensor) -> float:
        nonlocal calls
        calls += 1
        if frozen and calls % 2 == 0:
            layer = frozen.pop().requires_grad_(True)
            optimizer.add_param_group({"params": layer.parameters(), "lr": optimizer.param_groups[-1]["lr"] / 2.6})
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    arguments = {"model": model, "optimizer": optimizer, "scaler": scaler, "batches": some_batches()}
    mine = {
        "groups": lambda: len(optimizer.param_groups),
        "frozen": lambda: list(map(Same, frozen)),
        "calls": lambda: calls,
    }
    return step, arguments, standard(arguments) | mine


@stress("LBFGS, its history")
def lbfgs() -> Stressed:
    """bf16 without a scaler: a closure cannot be used with one."""
    seed()
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3, history_size=4)
    evaluations = Counter()

    def step(x: Tensor, y: Tensor) -> float:
        def closure() -> Tensor:
            optimizer.zero_grad()
            with bf16():
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            evaluations["closure"] += 1
            return loss

        return optimizer.step(closure).item()

    batches = some_batches(3, size=24)
    step(*batches[0])
    arguments = {"model": model, "optimizer": optimizer, "batches": batches}
    state = optimizer.state[next(model.parameters())]
    mine = {"history": lambda: look(state), "evaluations": lambda: look(evaluations)}
    return step, arguments, standard(arguments) | mine


# ------------------------------------------------------------------------------------------------------ scaler


@stress("a scaler never used, two optimizers, it grows soon")
def fresh_scaler() -> Stressed:
    """Before its first use the scaler has no scale tensor at all."""
    seed()
    body, head = nn.Linear(6, 12), nn.Linear(12, 3)
    for_body, for_head = (
        torch.optim.SGD(body.parameters(), lr=0.1, momentum=0.9),
        torch.optim.Adam(head.parameters(), lr=1e-2),
    )
    scaler = new_scaler(growth_interval=2, growth_factor=4.0, init_scale=2.0**10)

    def step(x: Tensor, y: Tensor) -> float:
        for_body.zero_grad()
        for_head.zero_grad()
        with half():
            loss = F.cross_entropy(head(F.relu(body(x))), y)
        scaler.scale(loss).backward()
        scaler.step(for_body)
        scaler.step(for_head)
        scaler.update()
        return loss.item()

    def loss(models: list[nn.Module], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(models[1](F.relu(models[0](x))), y)

    arguments = {"model": [body, head], "optimizer": [for_body, for_head], "scaler": scaler, "batches": some_batches()}
    arguments["loss"] = loss
    mine = {
        "no scale yet": lambda: scaler._scale is None,
        "no tracker yet": lambda: scaler._growth_tracker is None,
        "get_scale()": lambda: scaler.get_scale(),
        "state_dict()": lambda: look(scaler.state_dict())["items"],
    }
    return step, arguments, standard(arguments) | mine


@stress("a scaler in use, its settings changed by the step")
def used_scaler() -> Stressed:
    """Two good updates are counted; after an overflow the step lets the scale grow more slowly."""
    seed()
    model = net()
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-2), new_scaler(growth_interval=4)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() < scale:
            scaler.set_growth_interval(scaler.get_growth_interval() * 2)
        elif scaler.get_scale() > scale:
            scaler.set_growth_factor(1 + (scaler.get_growth_factor() - 1) / 2)
        return loss.item()

    for batch in some_batches(6):
        step(*batch)
    arguments = {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "batches": some_batches(),
        "loss": cross_entropy,
    }
    mine = {
        "scale": lambda: look(scaler._scale),
        "tracker": lambda: look(scaler._growth_tracker),
        "settings": lambda: (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()),
    }
    return step, arguments, standard(arguments) | mine


# ------------------------------------------------------------------------------------------------------ schedulers


@stress("OneCycleLR near its end", note="eight moves are left, then it raises ValueError")
def one_cycle() -> Stressed:
    seed()
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), new_scaler()
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=21)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        if not scaler.get_scale() < scale:
            scheduler.step()
        return loss.item()

    for batch in some_batches() * 2:
        step(*batch)
    arguments = {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "scheduler": scheduler,
        "batches": some_batches(),
    }
    mine = {"momentum": lambda: optimizer.param_groups[0]["momentum"], "last_lr": lambda: look(scheduler.get_last_lr())}
    return step, arguments, standard(arguments) | mine


# ------------------------------------------------------------------------------------------------------ hooks


@stress("module hooks put on at each call, never taken off")
def module_hooks() -> Stressed:
    """The usual leak: features are collected by hooks, and one more collects them at each call."""
    seed()
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), new_scaler()
    features: list[Tensor] = []
    handles = []
    fired = Counter()
    model[0].register_forward_hook(lambda module, args, out: fired.update(forward=1))  # the reader's, from before

    def step(x: Tensor, y: Tensor) -> float:
        features.clear()
        handles.append(model[1].register_forward_hook(lambda module, args, out: features.append(out.detach())))
        handles.append(model[2].register_forward_pre_hook(lambda module, args: fired.update(before=1)))
        handles.append(model[2].register_full_backward_hook(lambda module, gin, gout: fired.update(backward=1)))
        handles.append(
            model.register_forward_hook(lambda module, args, kwargs, out: None, with_kwargs=True, always_call=True)
        )
        handles.append(model[2].register_full_backward_pre_hook(lambda module, gout: fired.update(backward_first=1)))
        model.register_state_dict_pre_hook(lambda module, prefix, keep: None)
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    arguments = {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "batches": some_batches(),
        "loss": cross_entropy,
    }
    mine = {
        "handles": lambda: look(handles),
        "features": lambda: look(features),
        "fired": lambda: look(fired),
        "numbers of hooks": lambda: [len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules()],
    }
    return step, arguments, standard(arguments) | mine


@stress("hooks on parameters put on at each call")
def parameter_hooks() -> Stressed:
    """They watch the gradients as they come; a hook from before does too."""
    seed()
    model = net()
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-2), new_scaler()
    fired = Counter()
    first = model[0].weight.register_hook(lambda grad: fired.update(first=1))

    def step(x: Tensor, y: Tensor) -> float:
        for name, p in model.named_parameters():
            p.register_hook(lambda grad, name=name: fired.update([name]))
        model[2].weight.register_post_accumulate_grad_hook(lambda p: fired.update(accumulated=1))
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    def fired_by_one_pass() -> Counter:
        """Hooks show in what they do: C++ might keep one that the dictionary lacks."""
        kept, grads = Counter(fired), [p.grad for p in model.parameters()]
        for p in model.parameters():
            p.grad = None
        with torch.enable_grad():
            model(torch.ones(1, 6)).sum().backward()
        for p, grad in zip(model.parameters(), grads, strict=True):
            p.grad = grad
        told = fired - kept
        fired.clear()
        fired.update(kept)
        return told

    arguments = {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "batches": some_batches(),
        "loss": cross_entropy,
    }
    mine = {
        "fired": lambda: look(fired),
        "fired by one pass": lambda: sorted(fired_by_one_pass().items()),
        "the first handle": lambda: Same(first),
    }
    return step, arguments, standard(arguments) | mine


# ------------------------------------------------------------------------------------------------------ modes and structure


@stress("training and eval modes mixed")
def mixed_modes() -> Stressed:
    """Before the audit the root is in eval, some children are not. The step sets train, then the frozen part to eval."""
    seed()
    body = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU())
    model = nn.Sequential(OrderedDict(body=body, drop=nn.Dropout(0.2), norm=nn.BatchNorm1d(12), head=nn.Linear(12, 3)))
    model.eval()
    model.body[1].train()
    model.head.training = True
    model.body.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, scaler = torch.optim.Adam(trained, lr=2e-2), new_scaler()

    def step(x: Tensor, y: Tensor) -> float:
        model.train()
        model.body.eval()
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    arguments = {"model": model, "optimizer": optimizer, "scaler": scaler, "batches": some_batches()}
    return step, arguments, standard(arguments) | {"modes": lambda: [m.training for m in model.modules()]}


@stress("attributes made, replaced and deleted on the model")
def model_attributes() -> Stressed:
    seed()
    model = net()
    model.cache = {"features": None, "calls": 0}
    model.note = "not trained yet"
    model.temperature = torch.tensor(1.0)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.2), new_scaler()
    cache, temperature = model.cache, model.temperature

    def step(x: Tensor, y: Tensor) -> float:
        if hasattr(model, "note"):
            del model.note
        model.cache["calls"] += 1
        model.temperature = model.temperature * 0.99 + 0.01
        optimizer.zero_grad()
        with half():
            model.cache["features"] = model[:2](x)
            model.last_logits = model[2](model.cache["features"])
            loss = F.cross_entropy(model.last_logits / model.temperature, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        model.best_loss = min(getattr(model, "best_loss", math.inf), loss.item())
        return loss.item()

    arguments = {"model": model, "optimizer": optimizer, "scaler": scaler, "batches": some_batches()}
    mine = {
        "names": lambda: sorted(set(vars(model)) - set(vars(nn.Sequential()))),
        "cache": lambda: look(cache),
        "temperature": lambda: (look(temperature), model.temperature is temperature),
    }
    return step, arguments, standard(arguments) | mine


# ------------------------------------------------------------------------------------------------------ random numbers


@stress("generators of its own: torch, numpy (old, new), random")
def own_generators() -> Stressed:
    seed()
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.2), new_scaler()
    for_noise = torch.Generator().manual_seed(1)
    rng, old, dice = np.random.default_rng(2), np.random.RandomState(3), random.Random(4)
    old.normal()  # a second normal number waits in it

    def step(x: Tensor, y: Tensor) -> float:
        x = x + 0.05 * torch.randn(x.shape, generator=for_noise)
        keep = torch.from_numpy(rng.random(6) > 0.1)
        x = x * keep + float(old.normal()) * 0.01
        part = sorted(dice.sample(range(len(x)), len(x) - 2))
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x[part]), y[part])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    arguments = {"model": model, "optimizer": optimizer, "scaler": scaler, "batches": some_batches()}
    mine = {
        "torch.Generator": lambda: look(for_noise),
        "numpy Generator": lambda: look(rng),
        "RandomState": lambda: look(old),
        "Random": lambda: look(dice),
    }
    return step, arguments, standard(arguments) | mine


# ------------------------------------------------------------------------------------------------------ batches


@stress("batches changed in place")
def batches_changed() -> Stressed:
    """Normalised where they lie, labels overwritten: the second time, the same batch is another."""
    seed()
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.2), new_scaler()

    def step(x: Tensor, y: Tensor) -> float:
        x.sub_(x.mean(0)).div_(x.std(0) + 1e-5)
        x[0].mul_(0.5)
        y[-1] = y[0]
        y.resize_(len(y))
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        x.requires_grad_(True)
        return loss.item()

    first = some_batches()
    batches = [(x, y) for x, y in first]
    arguments = {"model": model, "optimizer": optimizer, "scaler": scaler, "batches": batches}
    return step, arguments, standard(arguments) | {"the reader's tensors": lambda: look(first)}


# ------------------------------------------------------------------------------------------------------ the process


@stress("torch's switches thrown by the step")
def switches() -> Stressed:
    """All that a "set-up" line of a script may do, done at each call and never undone."""
    seed()
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), new_scaler()

    def step(x: Tensor, y: Tensor) -> float:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("cpu")
        torch.set_float32_matmul_precision("high")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.autograd.set_detect_anomaly(True, check_nan=False)
        torch.set_printoptions(precision=2, sci_mode=False)
        torch.set_num_threads(2)
        torch.set_autocast_dtype("cpu", torch.float16)
        torch.set_autocast_cache_enabled(False)
        torch.backends.cudnn.benchmark = True
        torch.set_flush_denormal(True)
        np.set_printoptions(precision=3, suppress=True)
        np.seterr(all="ignore")
        warnings.filterwarnings("ignore", message="a warning of the reader's")
        optimizer.zero_grad()
        with torch.autocast("cpu"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    arguments = {"model": model, "optimizer": optimizer, "scaler": scaler, "batches": some_batches()}
    return step, arguments, standard(arguments)


@stress("autocast and no-grad left on by the step", sound=False, note="autocast-left-open")
def left_open() -> Stressed:
    """Autocast entered by hand and never left; gradients switched off for a look at the end, on again by the next call."""
    seed()
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), new_scaler()
    regions = []

    def step(x: Tensor, y: Tensor) -> float:
        torch.set_grad_enabled(True)
        optimizer.zero_grad()
        region = torch.autocast("cpu", dtype=torch.float16)
        region.__enter__()
        regions.append(region)
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.set_grad_enabled(False)
        return F.cross_entropy(model(x), y).item()

    arguments = {"model": model, "optimizer": optimizer, "scaler": scaler, "batches": some_batches()}
    return step, arguments, standard(arguments) | {"regions": lambda: len(regions)}


# ------------------------------------------------------------------------------------------------------ Python's own things


@stress("counters, lists, dicts, deques, sets in a closure")
def closure_things() -> Stressed:
    """The rate depends on what they hold, so that training goes on otherwise if one is not put back."""
    seed()
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), new_scaler()
    calls, best = 0, math.inf
    losses: list[float] = []
    recent: deque[float] = deque([1.0, 1.0], maxlen=3)
    seen, classes = Counter(), set()
    stats: defaultdict[str, list[float]] = defaultdict(list)
    log = {"epoch": {"losses": [], "lr": None}, "sum": np.zeros(3)}
    total, cursor = torch.zeros(3), bytearray(b"\0")
    table = {y: torch.zeros(3) for y in range(3)}

    def step(x: Tensor, y: Tensor) -> float:
        nonlocal calls, best, total
        calls += 1
        optimizer.param_groups[0]["lr"] = 0.5 / (
            1 + 0.01 * calls + 0.01 * len(losses) + sum(recent) / 3 + log["sum"][0] / 1000
        )
        optimizer.zero_grad()
        with half():
            logits = model(x)
            loss = F.cross_entropy(logits, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        value = loss.item()
        best = min(best, value)
        losses.append(value)
        recent.append(value)
        seen.update(y.tolist())
        classes.add(calls % 5)
        stats["loss"].append(value)
        log["epoch"]["losses"].append(value)
        log["epoch"]["lr"] = optimizer.param_groups[0]["lr"]
        log["sum"] += np.bincount(y.numpy(), minlength=3)
        total = total + logits.detach().float().mean(0)
        cursor[0] = (cursor[0] + 1) % 256
        for label in y.unique().tolist():
            table[label].add_(logits.detach().float()[y == label].mean(0))
        return value

    arguments = {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "batches": some_batches(),
        "loss": cross_entropy,
    }
    mine = {
        "calls, best": lambda: (calls, best),
        "list": lambda: look(losses),
        "deque": lambda: look(recent),
        "Counter": lambda: look(seen),
        "set": lambda: look(classes),
        "defaultdict": lambda: look(stats),
        "nested dict": lambda: look(log),
        "tensor assigned anew": lambda: look(total),
        "bytearray": lambda: (Same(cursor), bytes(cursor)),
        "dict of tensors": lambda: look(table),
    }
    return step, arguments, standard(arguments) | mine


class Meter:
    """An average, with slots."""

    __slots__ = ("count", "sum")

    def __init__(self) -> None:
        self.count, self.sum = 0, 0.0

    def update(self, value: float) -> None:
        self.count, self.sum = self.count + 1, self.sum + value


class Trainer:
    """A class as in most projects: everything is an attribute, some of it deeper down."""

    instances = 0
    updates_of_all: list[float] = []  # noqa: RUF012  the class's own

    def __init__(self) -> None:
        type(self).instances += 1
        self.model = net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-2)
        self.scaler = new_scaler()
        self.scheduler = lr_scheduler.StepLR(self.optimizer, step_size=3, gamma=0.9)
        self.meters = {"loss": Meter(), "correct": Meter()}
        self.state = SimpleNamespace(global_step=0, epoch=0.0, best=math.inf, log_history=[])
        self.args = SimpleNamespace(logging_steps=2, max_norm=1.0)
        self.running: float | None = None

    def training_step(self, x: Tensor, y: Tensor) -> float:
        self.model.train()
        self.optimizer.zero_grad()
        with half():
            logits = self.model(x)
            self.loss = F.cross_entropy(logits, y)
        self.scaler.scale(self.loss).backward()
        self.scaler.unscale_(self.optimizer)
        self.grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_norm)
        self.scaler.step(self.optimizer)
        scale = self.scaler.get_scale()
        self.scaler.update()
        if self.scaler.get_scale() >= scale:
            self.scheduler.step()
        self.log(self.loss.item(), (logits.argmax(1) == y).float().mean().item())
        return self.loss.item()

    def log(self, loss: float, correct: float) -> None:
        self.state.global_step += 1
        self.state.epoch = self.state.global_step / 6
        self.state.best = min(self.state.best, loss)
        self.running = loss if self.running is None else 0.9 * self.running + 0.1 * loss
        self.meters["loss"].update(loss)
        self.meters["correct"].update(correct)
        Trainer.updates_of_all.append(loss)
        type(self).latest = self.state.global_step
        if self.state.global_step % self.args.logging_steps == 0:
            self.state.log_history.append({"loss": self.running, "step": self.state.global_step})


@stress("a method: attributes of the trainer, of its parts and of its class")
def trainer() -> Stressed:
    seed()
    Trainer.instances = 0
    Trainer.updates_of_all = []
    if "latest" in vars(Trainer):
        del Trainer.latest
    it = Trainer()
    it.training_step(*some_batches(1)[0])
    arguments = {
        "model": it.model,
        "optimizer": it.optimizer,
        "scaler": it.scaler,
        "scheduler": it.scheduler,
        "batches": some_batches(),
        "max_norm": 1.0,
    }
    mine = {
        "attributes": lambda: look(vars(it)),
        "meters": lambda: {name: (Same(meter), meter.count, meter.sum) for name, meter in it.meters.items()},
        "class": lambda: (Trainer.instances, look(Trainer.updates_of_all), Trainer.latest),
    }
    return it.training_step, arguments, standard(arguments) | mine


_UPDATES = 0
_HISTORY: list[float] = []
_CONFIG = SimpleNamespace(lr=0.2, decay=0.97, seen={"examples": 0})
_AVERAGE: Tensor | None = None
_MODEL: nn.Module | None = None
_OPTIMIZER: torch.optim.Optimizer | None = None
_SCALER: torch.amp.GradScaler | None = None


def step_of_a_script(x: Tensor, y: Tensor, history: list[float] = [], settings: dict[str, int] = {"calls": 0}) -> float:  # noqa: B006
    """A notebook's step: everything is a global, and some of it a default argument or an attribute of this function."""
    global _UPDATES, _AVERAGE
    _OPTIMIZER.param_groups[0]["lr"] = _CONFIG.lr * _CONFIG.decay**_UPDATES
    _OPTIMIZER.zero_grad()
    with half():
        loss = F.cross_entropy(_MODEL(x), y)
    _SCALER.scale(loss).backward()
    _SCALER.step(_OPTIMIZER)
    _SCALER.update()
    _UPDATES += 1
    _HISTORY.append(loss.item())
    _CONFIG.seen["examples"] += len(x)
    _CONFIG.latest = loss.item()
    _AVERAGE = loss.detach() if _AVERAGE is None else 0.9 * _AVERAGE + 0.1 * loss.detach()
    history.append(loss.item())
    settings["calls"] += 1
    step_of_a_script.calls = getattr(step_of_a_script, "calls", 0) + 1
    return loss.item()


@stress("globals of the module, default arguments, attributes of the function")
def module_globals() -> Stressed:
    global _UPDATES, _CONFIG, _AVERAGE, _MODEL, _OPTIMIZER, _SCALER
    seed()
    _UPDATES, _AVERAGE = 0, None
    _HISTORY.clear()
    _CONFIG = SimpleNamespace(lr=0.2, decay=0.97, seen={"examples": 0})
    _MODEL = net()
    _OPTIMIZER, _SCALER = torch.optim.SGD(_MODEL.parameters(), lr=0.2), new_scaler()
    history, settings = step_of_a_script.__defaults__
    history.clear()
    settings["calls"] = 0
    vars(step_of_a_script).clear()
    arguments = {
        "model": _MODEL,
        "optimizer": _OPTIMIZER,
        "scaler": _SCALER,
        "batches": some_batches(),
        "loss": cross_entropy,
    }
    mine = {
        "integer": lambda: _UPDATES,
        "list": lambda: look(_HISTORY),
        "namespace": lambda: look(_CONFIG),
        "tensor or None": lambda: look(_AVERAGE),
        "default arguments": lambda: look(step_of_a_script.__defaults__),
        "the function's attributes": lambda: look(vars(step_of_a_script)),
    }
    return step_of_a_script, arguments, standard(arguments) | mine


@stress("a callable object in a partial, a decorated call, counters that are iterators")
def callable_object() -> Stressed:
    """`itertools.count` as the step number, and unlabelled batches from a list's iterator: both can be put back (`copy.copy`)."""
    seed()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            wrapper.calls += 1
            return function(*args, **kwargs)

        wrapper.calls = 0
        return wrapper

    class Step:
        def __init__(self) -> None:
            self.model = net()
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-2)
            self.scaler = new_scaler()
            self.number = itertools.count()
            self.unlabelled = iter([x + 0.1 for x, _ in some_batches() * 30])
            self.latest: int | None = None

        def __call__(self, options: dict[str, Any], x: Tensor, y: Tensor) -> float:
            self.latest = next(self.number)
            options["used"] += 1
            other = next(self.unlabelled)
            self.optimizer.param_groups[0]["lr"] = 2e-2 * options["decay"] ** self.latest
            self.optimizer.zero_grad()
            with half():
                loss = self.loss(x, y) + options["weight"] * self.consistency(other)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            return loss.item()

        @counted
        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self.model(x), y)

        def consistency(self, x: Tensor) -> Tensor:
            return F.mse_loss(self.model(x).softmax(1), self.model(1.01 * x).softmax(1).detach())

    it = Step()
    options = {"decay": 0.98, "weight": 0.1, "used": 0}
    arguments = {"model": it.model, "optimizer": it.optimizer, "scaler": it.scaler, "batches": some_batches()}
    mine = {
        "step number": lambda: (repr(it.number), it.latest),
        "unlabelled": lambda: it.unlabelled.__length_hint__(),
        "options": lambda: look(options),
        "calls": lambda: Step.loss.calls,
        "attributes": lambda: [Same(thing) for thing in (it.model, it.optimizer, it.scaler)],
    }
    return functools.partial(it, options), arguments, standard(arguments) | mine


# ------------------------------------------------------------------------------------------------------ second models, memories


@stress("EMA: a copy of the model, shadow weights, weights swapped for a look")
def ema() -> Stressed:
    """Three averages as people keep them: a model, a dict assigned anew, one whose memory changes places with the weights'."""
    seed()
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=2e-2), new_scaler()
    average = copy.deepcopy(model).eval().requires_grad_(False)
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
    swapped = [p.detach().clone() for p in model.parameters()]
    best: dict[str, Any] = {"loss": math.inf, "weights": None}

    def swap() -> None:
        for i, p in enumerate(model.parameters()):
            p.data, swapped[i] = swapped[i], p.data

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for ours, theirs in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
                ours.copy_(0.9 * ours + 0.1 * theirs if ours.is_floating_point() else theirs)
            for name, p in model.named_parameters():
                shadow[name] = 0.9 * shadow[name] + 0.1 * p
            for kept, p in zip(swapped, model.parameters(), strict=True):
                kept.lerp_(p, 0.1)
            swap()
            value = F.cross_entropy(model.eval()(x), y).item()
            model.train()
            swap()
        if value < best["loss"]:
            best.update(loss=value, weights=copy.deepcopy(model.state_dict()))
        return loss.item()

    arguments = {"model": model, "optimizer": optimizer, "scaler": scaler, "batches": some_batches()}
    mine = {
        "copy": lambda: look(dict(average.state_dict(keep_vars=True)))["items"],
        "shadow": lambda: look(shadow),
        "swapped": lambda: look(swapped),
        "best": lambda: (best["loss"], best["weights"] is None),
        "the weights' memory": lambda: [Place(p) for p in model.parameters()],
    }
    return step, arguments, standard(arguments) | mine


# ------------------------------------------------------------------------------------------------------ steps that raise


@stress("SAM that raises while the weights are moved", sound=False, note="raises when a gradient is not finite")
def sam_raises() -> Stressed:
    """The weights are away from their place, a hook is on, batch norm is stopped: then comes the error, and nobody tidies up."""
    seed()
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), new_scaler()
    norm, moved, seen = model[1], {}, []
    calls = 0

    def step(x: Tensor, y: Tensor) -> float:
        nonlocal calls
        calls += 1
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        grads = [p.grad for p in model.parameters()]
        length = torch.stack([g.norm() for g in grads]).norm()
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                moved[p] = 0.05 * g / (length + 1e-12)
                p.add_(moved[p])
        norm.momentum = 0.0
        handle = norm.register_forward_hook(lambda module, args, out: seen.append(out.detach().float().mean().item()))
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if calls == 3 or not all(torch.isfinite(p.grad).all() for p in model.parameters()):
            raise FloatingPointError(f"a gradient is not finite in call {calls}")
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(moved.pop(p))
        handle.remove()
        norm.momentum = 0.1
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.item()

    arguments = {"model": model, "optimizer": optimizer, "scaler": scaler, "batches": some_batches()}
    mine = {
        "moved": lambda: look(moved),
        "momentum": lambda: norm.momentum,
        "seen": lambda: look(seen),
        "hooks": lambda: len(norm._forward_hooks),
        "calls": lambda: calls,
    }
    return step, arguments, standard(arguments) | mine
