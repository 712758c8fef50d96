"""Train with Lightning Fabric and the Lightning Trainer on a CPU, in each way that the trainers'
table speaks of; return what was seen, fact by fact, in the table's words.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from phrasebook_trainer_parts import LIMIT, OVERFLOW, Facts, Parts, batches, net, raised
from torch import Tensor


def fabric_run(
    precision: str,
    *,
    clip: bool = True,
    error: bool | None = False,
    list_all: bool = False,
    given: bool = True,
    **options: Any,
) -> Parts:
    """Train with Fabric. error: what clipping is told of an overflow; list_all: save the scaler."""
    from lightning_fabric import Fabric
    from lightning_fabric.plugins import MixedPrecision

    parts, scaled = net(**options), precision == "16-mixed" and given
    plugin = MixedPrecision("16-mixed", "cpu", parts.scaler)
    setting: dict[str, Any] = {"plugins": plugin} if scaled else {"precision": precision}
    fabric = Fabric(accelerator="cpu", devices=1, **setting)
    model, optimizer = fabric.setup(parts.model, parts.optimizer)
    error_if = {} if error is None else {"error_if_nonfinite": error}
    with tempfile.TemporaryDirectory() as folder, parts.watched(scaled=scaled):
        for number, (inputs, targets) in enumerate(batches()):
            last = number % 2 == 1
            with fabric.no_backward_sync(model, enabled=not last):
                fabric.backward(parts.loss(model(inputs), targets))
            if last:
                if clip:
                    fabric.clip_gradients(model, optimizer, max_norm=LIMIT, **error_if)
                optimizer.step()
                parts.schedule.step()
                optimizer.zero_grad()
        state = {"model": model, "optimizer": optimizer}
        more = {"precision": fabric.strategy.precision.state_dict()} if list_all else {}
        fabric.save(f"{folder}/saved.ckpt", state | more)
    return parts


def fabric() -> Facts:
    """Run Fabric in each way that the table speaks of."""
    from lightning_fabric.plugins import MixedPrecision

    run, bf16 = fabric_run("16-mixed"), fabric_run("bf16-mixed")
    made = MixedPrecision("16-mixed", "cpu").scaler
    return {
        "layer, bf16": bf16.at("layer's dtype"),
        "layer, fp16 asked of a CPU": fabric_run("16-mixed", given=False).at("layer's dtype"),
        "in the forward": run.at("layer"),
        "in your loss": run.at("loss"),
        "outputs": run.at("loss's dtype"),
        "first scale": f"{made.get_scale():.0f}",
        "the loss": run.scaled(),
        "unscaled if nothing is clipped": fabric_run("16-mixed", clip=False).unscaled(),
        "clipped gradients": run.clipped(),
        "clipping an overflow, by default": raised(
            "non-finite", fabric_run, precision="16-mixed", error=None
        ),
        "clipping with fused Adam": raised(
            "unscaling", fabric_run, precision="16-mixed", fused=True
        ),
        "scheduler": run.scheduler(),
        "scale": run.scale(),
        "loss divided by": run.divided(),
        "saved, of model and optimizer": run.kept(),
        "saved, with the precision's state": fabric_run("16-mixed", list_all=True).kept(),
        "bf16-mixed, from fp32": bf16.dtypes(),
        "bf16-mixed, from bf16": fabric_run("bf16-mixed", half=True).dtypes(),
        "bf16-true, from fp32": fabric_run("bf16-true").dtypes(),
    }


def lightning_run(
    precision: str,
    *,
    clip: float | None = LIMIT,
    interval: str = "",
    given: bool = True,
    **options: Any,
) -> Parts:
    """Train with Lightning. clip: None leaves it at its default, and so does interval=""."""
    import pytorch_lightning as pl
    from pytorch_lightning.plugins import MixedPrecision

    parts, scaled = net(**options), precision == "16-mixed" and given

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = parts.model

        def training_step(self, batch: Any, number: int) -> Tensor:
            inputs, targets = batch
            return parts.loss(self.net(inputs), targets)

        def configure_optimizers(self) -> Any:
            schedule = {"scheduler": parts.schedule} | ({"interval": interval} if interval else {})
            return {"optimizer": parts.optimizer, "lr_scheduler": schedule}

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            parts.flags["hook"].append("unscaled" if parts.now().called("unscale") else "scaled")

        def on_train_batch_end(self, *args: Any) -> None:
            parts.flags["global_step"].append(self.trainer.global_step)

    plugin = MixedPrecision("16-mixed", "cpu", parts.scaler)
    setting: dict[str, Any] = {"plugins": plugin} if scaled else {"precision": precision}
    more = {} if clip is None else {"gradient_clip_val": clip}
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            accumulate_grad_batches=2,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            **setting,
            **more,
        )
        loader = torch.utils.data.DataLoader(batches(), batch_size=None)  # type: ignore[arg-type]
        with parts.watched(scaled=scaled):
            trainer.fit(Module(), loader)
        (path,) = Path(folder).rglob("*.ckpt")
        saved = torch.load(path, weights_only=False)
        states = {key: one for key, one in saved.items() if isinstance(one, dict)}
        parts.flags["keys"] = [key for key, one in states.items() if "scale" in one]
    return parts


def lightning() -> Facts:
    """Run Lightning in each way that the table speaks of."""
    from pytorch_lightning.plugins import MixedPrecision

    run, bare = lightning_run("16-mixed", interval="step"), lightning_run("16-mixed", clip=None)
    fused, bf16 = lightning_run("16-mixed", clip=None, fused=True), lightning_run("bf16-mixed")
    made = MixedPrecision("16-mixed", "cpu").scaler
    counted = run.flags["global_step"][2 * OVERFLOW + 1] == OVERFLOW + 1
    return {
        "layer, bf16": bf16.at("layer's dtype"),
        "layer, fp16 asked of a CPU": lightning_run("16-mixed", given=False).at("layer's dtype"),
        "in the forward": run.at("layer"),
        "in your loss": run.at("loss"),
        "outputs": run.at("loss's dtype"),
        "first scale": f"{made.get_scale():.0f}",
        "the loss": run.scaled(),
        "unscaled if nothing is clipped": bare.unscaled(),
        "at on_before_optimizer_step": " and ".join(sorted(set(bare.flags["hook"]))),
        "at on_before_optimizer_step, fused": " and ".join(sorted(set(fused.flags["hook"]))),
        "clipped gradients": run.clipped(),
        "clipped to, by default": bare.limit(),
        "clipping with fused Adam": raised(
            "unscaling", lightning_run, precision="16-mixed", fused=True
        ),
        "scheduler": run.scheduler(),
        "global_step": "counts it" if counted else "leaves it out",
        "scale": run.scale(),
        "loss divided by": run.divided(),
        "scheduler steps in an epoch": str(sum(one.moves for one in bare.script.summaries)),
        'scheduler steps in an update, interval="step"': run.moves(),
        "saved": run.kept(),
        "the scaler's key": " and ".join(run.flags["keys"]),
        "bf16-mixed, from fp32": bf16.dtypes(),
        "bf16-mixed, from bf16": lightning_run("bf16-mixed", half=True).dtypes(),
        "bf16-true, from fp32": lightning_run("bf16-true").dtypes(),
    }
