"""Broken steps: wrong things given to audit, passes that fail, autocast in the wrong place, half weights."""

from __future__ import annotations

import copy
import warnings
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

from tests.audit.broken_parts import Trainer, collector, dicts, given, mse, mse_of_dict, net, parts, rows
from tests.audit.case import Case, Made

CASES: list[Case] = []
case = collector(CASES)


# ---- what was given


@case("function", "no-batches")
def loader_that_drops_its_only_batch() -> Made:
    """drop_last leaves nothing of a data set that is smaller than one batch: the loop's body never runs."""
    model, optimizer, scaler = parts()
    few = DataLoader(TensorDataset(*rows(1, 6)[0]), batch_size=8, drop_last=True)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler, batches=few)


@case("accumulation", "accumulate-below-one")
def accumulation_worked_out_as_zero() -> Made:
    """The wanted batch is smaller than the loader's, and 16 // 32 is no number of micro-batches."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3)
    accumulate = 16 // 32

    def train_step(x, y, last=True):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss / max(accumulate, 1)).backward()
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return train_step, given(model, optimizer, scaler, batches=rows(8, 32), accumulate=accumulate)


@case("method of the model", "two-devices")
def projector_left_on_the_meta_device() -> Made:
    """The distillation head was made on the meta device and never loaded: the model is on two devices."""

    class Student(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net()
            self.projector = nn.Linear(1, 64, device="meta")
            self.optimizer = torch.optim.SGD(self.body.parameters(), lr=0.1)

        def training_step(self, x, y):
            self.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(self.body(x), y)
            loss.backward()
            self.optimizer.step()

    student = Student()
    return student.training_step, given(student, student.optimizer)


@case("function", "weights-not-finite", "not-finite")
def checkpoint_saved_in_half() -> Made:
    """A bias of 250000 (a mean price) came back from a checkpoint in half as inf: loss and gradients are never finite."""
    model, optimizer, scaler = parts(torch.optim.Adam, 1e-3)
    nn.init.constant_(model[2].bias, 250_000.0)
    model.load_state_dict({name: weight.half() for name, weight in model.state_dict().items()})

    def train_step(x, y):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x).float() / 250_000.0, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler)


@case("fine-tuning", "foreign-parameters")
def head_replaced_after_the_optimizer() -> Made:
    """The head was replaced after the optimizer was made: the old head is "trained", the new one never learns."""
    model, optimizer, scaler = parts(momentum=0.9)
    model[2] = nn.Linear(16, 1)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler)


@case("closure", "foreign-parameters", "frozen-optimizer")
def model_copied_after_the_optimizer() -> Made:
    """The model was copied after the optimizer was made from the first one; with bf16 nothing raises, and nothing learns."""

    def build(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model = copy.deepcopy(model).train()

        def train_step(x, y):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.smooth_l1_loss(model(x), y)
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            model.zero_grad()

        return train_step, given(model, optimizer, max_norm=1.0)

    return build(net())


@case("two optimizers", "frozen-optimizer")
def encoder_still_under_no_grad() -> Made:
    """The encoder runs under no_grad, left from the linear probe: its optimizer never gets a gradient."""
    model = nn.ModuleDict({"encoder": net()[:2], "head": nn.Linear(16, 1)})
    optimizers = [torch.optim.SGD(model[name].parameters(), lr=0.05) for name in ("encoder", "head")]

    def train_step(x, y):
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                features = model["encoder"](x)
            loss = F.mse_loss(model["head"](features), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()

    return train_step, given(model, optimizers)


@case("method", "foreign-model", "foreign-parameters", "weights-unchanged")
def trainer_that_copies_its_model() -> Made:
    """The trainer trains a copy of the model that it was given; audit gets the outer model."""

    class CopyingTrainer(Trainer):
        def wrap(self):
            self.model = copy.deepcopy(self.model)
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

        def step(self, x, y):
            self.optimizer.zero_grad()
            self.scaler.scale(self.loss(x, y)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    trainer = CopyingTrainer()
    model = trainer.model
    trainer.wrap()
    return trainer.step, given(model, trainer.optimizer, trainer.scaler, loss=mse)


def _step_with_everything(x, y, *, model, optimizer, scaler):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


@case("partial", "foreign-optimizer", "never-stepped")
def partial_bound_to_the_old_optimizer() -> Made:
    """The optimizer was made anew (another rate) after the step had been bound to the first one: the second has no effect."""
    model, optimizer, scaler = parts()
    step = partial(_step_with_everything, model=model, optimizer=optimizer, scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return step, given(model, optimizer, scaler)


@case("callable object", "foreign-scaler")
def engine_with_its_own_scaler() -> Made:
    """The engine keeps a scaler of its own; the one that is given (and saved in checkpoints) is never used."""

    class Engine:
        def __init__(self, model, optimizer):
            self.model, self.optimizer = model, optimizer
            self.loss_scaler = GradScaler("cpu", init_scale=2.0**12)

        def __call__(self, batch):
            self.optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(self.model(batch["x"]), batch["y"])
            self.loss_scaler.scale(loss).backward()
            self.loss_scaler.step(self.optimizer)
            self.loss_scaler.update()

    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3, foreach=True)
    return Engine(model, optimizer), given(model, optimizer, scaler, batches=dicts())


# ---- the passes


@case("LBFGS", "step-raises")
def lbfgs_closure_through_the_scaler() -> Made:
    """GradScaler.step takes no closure, and LBFGS needs one: it raises."""
    model, optimizer, scaler = parts(torch.optim.LBFGS, 0.5, max_iter=4)

    def train_step(x, y):
        def closure():
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            return loss

        scaler.step(optimizer, closure=closure)
        scaler.update()

    return train_step, given(model, optimizer, scaler, loss=mse)


@case("function", "step-raises")
def attention_mask_of_minus_1e9() -> Made:
    """masked_fill with -1e9: the scores are fp16 in autocast, whose smallest number is -65504; it raises."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"qkv": nn.Linear(8, 24), "out": nn.Linear(8, 8)})
    optimizer, scaler = torch.optim.Adam(model.parameters(), lr=1e-3), GradScaler("cpu", init_scale=2.0**12)

    def train_step(x):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            q, k, v = model["qkv"](x).chunk(3, -1)
            scores = q @ k.transpose(-1, -2) / 8**0.5
            scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -1e9)
            loss = F.mse_loss(model["out"](scores.softmax(-1) @ v)[:, :-1], x[:, 1:])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler, batches=[(x,) for x in torch.randn(4, 2, 5, 8)])


@case("function", "no-backward", "step-raises")
def backward_without_parentheses() -> Made:
    """backward lacks its parentheses: nothing is called, and scaler.step finds no gradients and raises."""
    model, optimizer, scaler = parts(init_scale=2.0**16)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward  # noqa: B018
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler)


@case("callback", "no-backward", "weights-unchanged", "frozen-optimizer")
def backward_in_a_hook_that_is_never_called() -> Made:
    """The hook that should run backward has a name that nobody calls; bf16 has no scaler that would notice."""

    class Runner(Trainer):
        hooks = {"after_train_iter": lambda loss: loss.backward()}  # noqa: RUF012

        def run_iter(self, x, y):
            self.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(self.model(x), y)
            if "after_iter" in self.hooks:
                self.hooks["after_iter"](loss)
            self.optimizer.step()

    runner = Runner(torch.optim.SGD, 0.05)
    return runner.run_iter, given(runner.model, runner.optimizer, loss=mse)


@case("function", "scaler-inside-step")
def scaler_made_in_the_function() -> Made:
    """A scaler made anew in each call always starts from its first scale: if that overflows once it always does."""
    model, optimizer, _ = parts(torch.optim.Adam, 1e-3)

    def train_step(x, y):
        scaler = GradScaler("cpu", init_scale=2.0**14)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, loss=mse, max_norm=0.5)


@case("method", "scaler-inside-step", "step-raises")
def scaler_as_a_property() -> Made:
    """The property makes a scaler at each access: the one that steps never scaled anything, and raises."""

    class PropertyTrainer:
        def __init__(self):
            self.model, self.optimizer, _ = parts()

        @property
        def scaler(self):
            return GradScaler("cpu", init_scale=2.0**12)

        def train_batch(self, x, y):
            self.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    trainer = PropertyTrainer()
    return trainer.train_batch, given(trainer.model, trainer.optimizer)


# ---- where autocast is


@case("function", "backward-in-autocast")
def everything_in_the_with_block() -> Made:
    """backward and the step are in the with block as well: backward's own operations are cast a second time."""
    model, optimizer, scaler = parts()

    def train_step(x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return train_step, given(model, optimizer, scaler, loss=mse)


@case("method", "backward-in-autocast")
def whole_step_decorated_with_autocast() -> Made:
    """autocast as a decorator of the whole training step: its backward runs in the region too."""

    class DecoratedTrainer(Trainer):
        @torch.autocast("cpu", dtype=torch.bfloat16)
        def training_step(self, batch):
            loss = F.mse_loss(self.model(batch["x"]), batch["y"])
            self.optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            return loss.detach()

    t = DecoratedTrainer()
    return t.training_step, given(t.model, t.optimizer, batches=dicts(), loss=mse_of_dict, max_norm=1.0)


@case("notebook", "autocast-left-open", "backward-in-autocast")
def autocast_entered_by_hand() -> Made:
    """The region is entered by hand and never left: backward, validation and all later code run in 16 bits."""
    model, optimizer, scaler = parts(torch.optim.Adam, 1e-3)

    def train_step(x, y):
        torch.autocast("cpu", dtype=torch.float16).__enter__()
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler)


@case("method", "autocast-left-open", "backward-in-autocast")
def autocast_switched_on_for_validation() -> Made:
    """Switched on for a validation and never off: from then on all code runs in 16 bits, the next backward as well."""

    class SwitchingTrainer(Trainer):
        def train_step(self, x, y):
            self.optimizer.zero_grad()
            loss = self.loss(x, y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            torch.set_autocast_enabled("cpu", True)
            with torch.no_grad():
                self.error = (self.model(x) - y).abs().mean().item()

    trainer = SwitchingTrainer()
    return trainer.train_step, trainer.given(loss=mse)


def _cast_when(use_amp, x, y, model, optimizer, scaler):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16, enabled=use_amp is True):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


@case("partial", "no-autocast")
def autocast_switched_off_by_a_setting() -> Made:
    """The setting is the string "fp16", not True: the scaler works, and everything runs in fp32."""
    model, optimizer, scaler = parts(torch.optim.AdamW, 1e-3)
    step = partial(_cast_when, "fp16", model=model, optimizer=optimizer, scaler=scaler)
    return step, given(model, optimizer, scaler, loss=mse)


@case("function", "no-autocast")
def autocast_of_another_device() -> Made:
    """The region is for CUDA, the tensors are on the CPU: a warning, and everything runs in fp32."""
    model, optimizer, scaler = parts()

    def train_step(x, y):
        optimizer.zero_grad()
        with warnings.catch_warnings(action="ignore"), torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler, max_norm=1.0)


@case("method", "no-autocast")
def autocast_made_and_not_entered() -> Made:
    """The context is an attribute that nobody enters: the scaler is on, and the forward pass is in fp32."""

    class ContextTrainer(Trainer):
        ctx = torch.autocast("cpu", dtype=torch.float16)

        def forward_backward(self, x, y):
            loss = F.l1_loss(self.model(x), y)
            self.scaler.scale(loss).backward()

        def train_step(self, x, y):
            self.forward_backward(x, y)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)

    trainer = ContextTrainer(fused=True)
    return trainer.train_step, trainer.given()


@case("function", "no-autocast")
def only_the_loss_in_the_region() -> Made:
    """The forward pass stands before the region, and the loss in it is an fp32 op: nothing runs in 16 bits."""
    model, optimizer, scaler = parts()

    def train_step(x, y):
        optimizer.zero_grad()
        prediction = model(x)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.smooth_l1_loss(prediction, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler)


@case("function", "no-autocast")
def model_that_switches_autocast_off() -> Made:
    """bf16, no scaler: a region inside the model switches autocast off, as it once had to, and everything runs in fp32."""

    class Fp32(nn.Sequential):
        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                return super().forward(x.float())

    torch.manual_seed(0)
    model = Fp32(*net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train_step(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return train_step, given(model, optimizer)


@case("function", "loss-outside-autocast")
def dice_loss_of_half_probabilities() -> Made:
    """The sums of a hand-written loss run in fp16 after the region: 11 bits, and inf at the size of a real image."""
    model, optimizer, scaler = parts()

    def dice_loss(logits, mask):
        p, mask = torch.sigmoid(logits), mask.to(logits.dtype)
        return (1 - (2 * (p * mask).sum(1) + 1) / (p.sum(1) + mask.sum(1) + 1)).mean()

    def train_step(x, y):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x)
        loss = dice_loss(logits, (y > 0).float())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler)


@case("function", "loss-outside-autocast")
def cross_entropy_after_the_region() -> Made:
    """The loss is taken from fp16 logits outside the region, where nothing raises it to fp32."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), GradScaler("cpu", init_scale=2.0**12)
    batches = [(x, y.abs().flatten().long().clamp(max=4)) for x, y in rows()]

    def train_step(x, labels):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x)
        loss = F.cross_entropy(logits, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler, batches=batches)


@case("callable object", "loss-outside-autocast")
def criterion_of_a_half_output() -> Made:
    """forward is decorated, the criterion is not, and the targets were made half "to fit": the mean is taken in fp16."""

    class HalfOutput(nn.Sequential):
        @torch.autocast("cpu", dtype=torch.float16)
        def forward(self, x):
            return super().forward(x)

    class Step:
        def __init__(self):
            self.model, self.criterion = HalfOutput(*net()), nn.MSELoss()
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
            self.scaler = GradScaler("cpu", init_scale=2.0**12)

        def __call__(self, x, y):
            out = self.model(x)
            loss = self.criterion(out, y.to(out.dtype))
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    step = Step()
    return step, given(step.model, step.optimizer, step.scaler)


# ---- gradients that never are finite; fp16 that nobody scales


@case("function", "not-finite")
def distance_of_identical_embeddings() -> Made:
    """sqrt(0) for the pair of a row with itself: its gradient is infinite, times 0 is NaN, at every scale."""
    model, optimizer, scaler = parts(torch.optim.Adam, 1e-3)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            z = model(x).float()
            distances = (z[:, None] - z[None]).pow(2).sum(-1).sqrt()
            loss = F.mse_loss(distances, (y - y.T).abs())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler)


@case("method", "not-finite")
def sensor_values_beyond_fp16() -> Made:
    """Raw 20-bit sensor values are inf in fp16 before any gradient is: lowering the scale does not help."""

    class SensorTrainer(Trainer):
        def train_step(self, x, y):
            self.optimizer.zero_grad()
            self.scaler.scale(self.loss(x, y)).backward()
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()

    trainer = SensorTrainer()
    return trainer.train_step, trainer.given(batches=[(x * 2.0**20, y) for x, y in rows()], max_norm=1.0)


@case("function", "fp16-without-scaler")
def fp16_as_if_it_were_bf16() -> Made:
    """The bf16 loop with another dtype: small gradients become 0 in fp16, for nothing scales the loss."""
    model, optimizer, _ = parts(torch.optim.AdamW, 1e-3)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return train_step, given(model, optimizer, loss=mse, max_norm=1.0)


@case("function", "fp16-without-scaler")
def scaler_disabled_without_cuda() -> Made:
    """The scaler is enabled for CUDA only, the fp16 region always: on the CPU nothing scales the loss."""
    model, optimizer, _ = parts()
    device = model[0].weight.device
    scaler = GradScaler("cpu", enabled=device.type == "cuda")

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler)


@case("method", "fp16-without-scaler")
def scaler_made_and_never_used() -> Made:
    """The trainer has a scaler, and its step neither scales nor steps with it."""

    class UnscaledTrainer(Trainer):
        def train_step(self, x, y, last=False):
            loss = self.loss(x, y) / 2
            loss.backward()
            if last:
                self.optimizer.step()
                self.optimizer.zero_grad()

    trainer = UnscaledTrainer()
    return trainer.train_step, trainer.given(loss=mse, accumulate=2)


# ---- half weights


@case("function", "fp16-parameters", "step-raises")
def half_model_with_a_scaler() -> Made:
    """model.half() and a GradScaler, which refuses to unscale fp16 gradients; there is no fp32 copy of the weights."""
    model = net().half()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), GradScaler("cpu", init_scale=2.0**12)

    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x.half()).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return train_step, given(model, optimizer, scaler)


@case("fine-tuning", "weights-unchanged")
def bf16_gains_with_a_small_rate() -> Made:
    """Only LayerNorm gains near 1 are tuned, in bf16: steps of 1e-4 are less than half its spacing, and all round away."""
    torch.manual_seed(0)
    model = (
        nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 1)).bfloat16().requires_grad_(False)
    )
    model[1].weight.requires_grad_(True)
    optimizer = torch.optim.AdamW([model[1].weight], lr=1e-4)

    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x.bfloat16()).float(), y)
        loss.backward()
        optimizer.step()

    return train_step, given(model, optimizer)


class Masters:
    """A half model, the fp32 copies of its weights that the optimizer holds, and a fixed loss scale."""

    def __init__(self, lr: float):
        self.model = net().half()
        self.masters = [p.detach().float().requires_grad_() for p in self.model.parameters()]
        self.optimizer, self.scale = torch.optim.SGD(self.masters, lr=lr), 1024.0

    def backward(self, x, y):
        self.model.zero_grad()
        (F.mse_loss(self.model(x.half()).float(), y) * self.scale).backward()


@case("masters", "weights-unchanged")
def masters_never_copied_back() -> Made:
    """The fp32 masters are trained, and nobody copies them into the half model that is run and saved."""

    class Fp16Trainer(Masters):
        def train_step(self, x, y):
            self.backward(x, y)
            for master, p in zip(self.masters, self.model.parameters(), strict=True):
                master.grad = p.grad.float() / self.scale
            if all(master.grad.isfinite().all() for master in self.masters):
                self.optimizer.step()

    trainer = Fp16Trainer(lr=0.1)
    return trainer.train_step, given(trainer.model, trainer.optimizer)


@case("masters", "not-clipped")
def masters_whose_models_gradients_are_clipped() -> Made:
    """The half gradients are clipped after they were copied: the masters step with the unclipped ones."""

    class Fp16Trainer(Masters):
        def train_step(self, x, y):
            self.backward(x, y)
            for master, p in zip(self.masters, self.model.parameters(), strict=True):
                master.grad = p.grad.float() / self.scale
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            if all(master.grad.isfinite().all() for master in self.masters):
                self.optimizer.step()
                with torch.no_grad():
                    torch._foreach_copy_(list(self.model.parameters()), self.masters)

    trainer = Fp16Trainer(lr=0.1)
    return trainer.train_step, given(trainer.model, trainer.optimizer, max_norm=1.0)


@case("masters", "clipped-while-scaled")
def masters_clipped_before_the_division() -> Made:
    """The masters' gradients are clipped with the loss scale in them, then divided: they come out 1024 times too short."""

    class Fp16Trainer(Masters):
        def train_step(self, x, y):
            self.backward(x, y)
            for master, p in zip(self.masters, self.model.parameters(), strict=True):
                master.grad = p.grad.float()
            torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
            if all(master.grad.isfinite().all() for master in self.masters):
                for master in self.masters:
                    master.grad /= self.scale
                self.optimizer.step()
                with torch.no_grad():
                    torch._foreach_copy_(list(self.model.parameters()), self.masters)

    trainer = Fp16Trainer(lr=0.1)
    return trainer.train_step, given(trainer.model, trainer.optimizer, max_norm=1.0)


@case("masters", "still-scaled", "wrong-factor", "gradient-differs")
def master_gradients_not_divided() -> Made:
    """The gradients are copied to the masters with the loss scale in them: the rate is 1024 times what was chosen."""

    class Fp16Trainer(Masters):
        def train_step(self, x, y):
            self.backward(x, y)
            for master, p in zip(self.masters, self.model.parameters(), strict=True):
                master.grad = p.grad.float()
            if all(master.grad.isfinite().all() for master in self.masters):
                self.optimizer.step()
                with torch.no_grad():
                    torch._foreach_copy_(list(self.model.parameters()), self.masters)

    trainer = Fp16Trainer(lr=1e-4)

    def loss(model, x, y):
        return F.mse_loss(model(x.to(next(model.parameters()).dtype)).float(), y)

    return trainer.train_step, given(trainer.model, trainer.optimizer, loss=loss)
