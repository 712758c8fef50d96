"""Attach another tool to the script that Python is about to run; `others.py` puts this folder on
its path.

The tool gets the optimizer whose model is called first and the outermost module that owns its
weights, through the call that its README shows, and from then on each update and its loss. After
WARD_STEPS updates, at the script's end or when it is told to stop, what the tool found is written
to WARD_OUT, and the run ends. Without WARD_TOOL nothing is done.
"""

import collections
import gc
import json
import os
import resource
import signal
from multiprocessing import util as processes


class NoTool:
    """Nothing but the counting of updates: what the script costs on its own."""

    def __init__(self, model, optimizer): ...

    def update(self, loss): ...

    def messages(self):
        return []


class TorchAudit:
    """torch-audit's "zero-touch mode", at every step."""

    def __init__(self, model, optimizer):
        from torch_audit import autopatch

        self.auditor = autopatch(
            model, optimizer=optimizer, every_n_steps=1, run_static=True, run_init=True
        )

    def update(self, loss): ...

    def messages(self):
        found = self.auditor.finish().findings
        return [
            (one.rule_id, one.severity.value, one.message, one.module_path or "") for one in found
        ]


class Torchmortem:
    """torchmortem's Autopsy, told each update's loss."""

    def __init__(self, model, optimizer):
        from torchmortem import Autopsy

        self.autopsy = Autopsy(model, optimizer=optimizer)
        self.autopsy.attach()

    def update(self, loss):
        self.autopsy.step(**({} if loss is None else {"loss": loss.item()}))

    def messages(self):
        self.autopsy.detach()
        report = self.autopsy.get_report()
        found = [
            (
                one.title.partition(" in ")[0],
                one.severity.name,
                one.summary,
                " ".join(one.affected_layers),
            )
            for one in report.findings
        ]
        return found + [(one.title, "INSIGHT", one.summary, "") for one in report.insights]


class Attached:
    """The hooks that a script runs under."""

    def __init__(self, tool):
        import torch
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self.torch, self.make, self.tool = torch, tool, None
        self.optimizers, self.optimizer, self.called, self.depth = [], None, None, 0
        self.loss = self.scaled = None
        self.record = {"updates": 0, "messages": []}
        self.call, self.init = torch.nn.Module.__call__, torch.optim.Optimizer.__init__
        self.backward, self.scale, self.scaler_step = (
            torch.Tensor.backward,
            torch.amp.GradScaler.scale,
            torch.amp.GradScaler.step,
        )
        torch.nn.Module.__call__ = lambda module, *args, **kwargs: self.on_call(
            module, *args, **kwargs
        )
        torch.optim.Optimizer.__init__ = lambda optimizer, *args, **kwargs: self.on_init(
            optimizer, *args, **kwargs
        )
        torch.Tensor.backward = lambda tensor, *args, **kwargs: self.on_backward(
            tensor, *args, **kwargs
        )
        torch.amp.GradScaler.scale = lambda scaler, outputs: self.on_scale(scaler, outputs)
        torch.amp.GradScaler.step = lambda scaler, *args, **kwargs: self.on_scaler_step(
            scaler, *args, **kwargs
        )
        register_optimizer_step_pre_hook(self.before_update)
        register_optimizer_step_post_hook(self.after_update)
        for late in (signal.SIGTERM, signal.SIGXCPU):
            signal.signal(late, lambda *_: self.end(late=True))
        resource.setrlimit(
            resource.RLIMIT_CPU, (int(os.environ["WARD_SECONDS"]), resource.RLIM_INFINITY)
        )

    def on_init(self, optimizer, *args, **kwargs):
        self.init(optimizer, *args, **kwargs)
        self.optimizers.append(optimizer)

    def on_call(self, module, *args, **kwargs):
        if not self.depth and self.tool is None and self.torch.is_grad_enabled():
            weights = {id(weight) for weight in module.parameters()}
            self.called = module if weights else self.called
            for optimizer in self.optimizers:
                if weights & held(optimizer):
                    self.attach(optimizer)
                    break
        self.depth += 1
        try:
            return self.call(module, *args, **kwargs)
        finally:
            self.depth -= 1

    def on_scale(self, scaler, outputs):
        scaled = self.scale(scaler, outputs)
        self.scaled = scaled, outputs
        return scaled

    def on_backward(self, tensor, *args, **kwargs):
        if tensor.numel() == 1:
            unscaled = self.scaled is not None and self.scaled[0] is tensor
            self.loss = (self.scaled[1] if unscaled else tensor).detach()
        self.scaled = None
        return self.backward(tensor, *args, **kwargs)

    def on_scaler_step(self, scaler, optimizer, *args, **kwargs):
        before = self.record["updates"]
        result = self.scaler_step(scaler, optimizer, *args, **kwargs)
        if self.record["updates"] == before:  # a skipped step is a step of the script's, too
            self.after_update(optimizer)
        return result

    def before_update(self, optimizer, *_):
        if self.tool is None:
            self.attach(optimizer)
        if self.record["updates"] >= int(os.environ["WARD_STEPS"]):
            self.end()

    def after_update(self, optimizer, *_):
        if optimizer is self.optimizer:
            self.record["updates"] += 1
            self.tool.update(self.loss)

    def attach(self, optimizer):
        self.torch.nn.Module.__call__ = self.call
        self.optimizer = optimizer
        model = owner(optimizer, self.called, self.torch.nn.Module)
        self.record["model"], self.record["optimizer"] = (
            type(model).__name__,
            type(optimizer).__name__,
        )
        processes.Finalize(None, self.finish, exitpriority=100)
        self.tool = self.make(model, optimizer)

    def finish(self):
        """Write what the tool found, once."""
        if self.tool is None:
            return
        tool, self.tool = self.tool, NoTool(None, None)
        if not isinstance(tool, NoTool):
            self.record["messages"] = tool.messages()
        with open(os.path.join(os.environ["WARD_OUT"], f"{os.getpid()}.json"), "w") as file:
            json.dump(self.record, file)

    def end(self, late=False):
        self.record["late"] = late
        try:
            self.finish()
        finally:
            os._exit(0)


def held(optimizer):
    """Return the ids of the weights that an optimizer holds."""
    return {id(weight) for group in optimizer.param_groups for weight in group["params"]}


def owner(optimizer, called, kind):
    """Return the module that the script calls, if it has all of an optimizer's weights;
    else the outermost that has.
    """
    wanted, owning = held(optimizer), []
    for one in gc.get_objects():
        try:
            if issubclass(type(one), kind) and wanted <= {
                id(weight) for weight in one.parameters()
            }:
                owning.append(one)
        except Exception:  # not made in full yet
            continue
    if called is not None and any(one is called for one in owning):
        return called
    inner = {id(part) for one in owning for part in one.modules() if part is not one}
    outer = [one for one in owning if id(one) not in inner]
    return min(outer, key=lambda one: sum(1 for _ in one.parameters()), default=called)


def stop_after(steps):
    """Let the script leave by itself before an update too many:
    TrainCheck writes its traces at the end.
    """
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    counted = collections.Counter()

    def before_update(optimizer, *_):
        counted[id(optimizer)] += 1
        if counted[id(optimizer)] > steps:
            raise SystemExit(0)

    register_optimizer_step_pre_hook(before_update)


TOOLS = {"none": NoTool, "torch-audit": TorchAudit, "torchmortem": Torchmortem}
if os.environ.get("WARD_TOOL") in TOOLS:
    attached = Attached(TOOLS[os.environ["WARD_TOOL"]])
elif os.environ.get("WARD_TOOL") == "traincheck":
    stop_after(int(os.environ["WARD_STEPS"]))
