"""Train with Accelerate and with Hugging Face's Trainer on a CPU, in each way that the trainers'
table speaks of; return what was seen, fact by fact, in the table's words.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from phrasebook_trainer_parts import LIMIT, OVERFLOW, SCALE, Facts, Parts, batches, net, raised
from torch import Tensor, nn

VOCABULARY, IGNORED = 32, -100  # tokens; the label of one that is not to be predicted
NEAR = 0.02  # gradients in fp16 come as close to those in fp32; the next candidate is 0.1 apart


def accelerate_run(kind: str, *, clip: str = "once", given: bool = True, **options: Any) -> Parts:
    """Train with Accelerate. clip: "", "once" an update, "always"; given: a scaler."""
    from accelerate import Accelerator

    reset_accelerate()
    parts, scaled = net(**options), kind == "fp16" and given
    accelerator = Accelerator(mixed_precision=kind, cpu=True, gradient_accumulation_steps=2)
    if scaled:
        accelerator.scaler, accelerator.native_amp = parts.scaler, True
    model, optimizer, schedule = accelerator.prepare(parts.model, parts.optimizer, parts.schedule)
    with tempfile.TemporaryDirectory() as folder, parts.watched(scaled=scaled):
        for inputs, targets in batches():
            with accelerator.accumulate(model):
                accelerator.backward(parts.loss(model(inputs), targets))
                if clip == "always" or (clip and accelerator.sync_gradients):
                    accelerator.clip_grad_norm_(model.parameters(), LIMIT)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                parts.flags["skipped"].append(accelerator.optimizer_step_was_skipped)
        accelerator.save_state(folder)
        parts.list_files(folder)
    return parts


def reset_accelerate() -> None:
    """Forget the precision, which Accelerate keeps for the whole process."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def accelerate() -> Facts:
    """Run Accelerate in each way that the table speaks of."""
    run, fused = accelerate_run("fp16"), accelerate_run("fp16", fused=True)
    bf16 = accelerate_run("bf16")
    return {
        "layer, bf16": bf16.at("layer's dtype"),
        "layer, fp16 asked of a CPU": accelerate_run("fp16", given=False).at("layer's dtype"),
        "in the forward": run.at("layer"),
        "in your loss": run.at("loss"),
        "outputs": run.at("loss's dtype"),
        "the loss": run.scaled(),
        "unscaled if nothing is clipped": accelerate_run("fp16", clip="").unscaled(),
        "clipped gradients": run.clipped(),
        "clipping each micro-batch": raised(
            "unscale_() has already been called", accelerate_run, kind="fp16", clip="always"
        ),
        "scheduler": run.scheduler(),
        "optimizer_step_was_skipped": str(run.flags["skipped"][OVERFLOW]),
        "scheduler, fused": fused.scheduler(),
        "optimizer_step_was_skipped, fused": str(fused.flags["skipped"][OVERFLOW]),
        "loss divided by": run.divided(),
        "scheduler steps in an update": run.moves(),
        "saved": run.kept(),
        "the scaler's file": run.scaler_file(),
        "bf16, from fp32": bf16.dtypes(),
        "bf16, from bf16": accelerate_run("bf16", half=True).dtypes(),
    }


def llama(*, half: bool = False) -> nn.Module:
    """Make a tiny language model from a configuration; if `half`, load one saved in bf16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 32}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes, **heads))
    if half:
        with tempfile.TemporaryDirectory() as folder:
            model.bfloat16().save_pretrained(folder)
            model = LlamaForCausalLM.from_pretrained(folder)
    return model


def texts() -> list[dict[str, Tensor]]:
    """Make eight batches of two texts, with 8 and 3 tokens to predict in turn."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for number in range(8):
        tokens = torch.randint(VOCABULARY, (2, 9), generator=generator)
        labels = tokens.clone()
        labels[:, : (1, 6)[number % 2]] = IGNORED
        found.append({"input_ids": tokens, "labels": labels})
    return found


def hf_run(
    kind: str = "fp16",
    *,
    given: bool = True,
    half: bool = False,
    fused: bool = False,
    counts: bool = True,
    own: bool = False,
    **options: Any,
) -> Parts:
    """Train with the Trainer. counts: the model divides by the tokens of an update; own: the loss
    is a function of ours.
    """
    from transformers import Trainer, TrainerCallback, TrainingArguments

    reset_accelerate()
    model, scaled = llama(half=half), kind == "fp16" and given
    parts = Parts(model, model.lm_head, fused=fused)
    loss_function = model.loss_function

    def models_loss(logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        parts.came_by("model's loss", logits)
        return loss_function(logits, *args, **kwargs)

    def our_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return parts.loss(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    class Texts(Trainer):
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(texts(), batch_size=None)  # type: ignore[arg-type]

    class Flags(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            parts.flags["skipped"].append(trainer.accelerator.optimizer_step_was_skipped)

    model.loss_function, model.accepts_loss_kwargs = models_loss, counts
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            gradient_accumulation_steps=2,
            max_steps=4,
            save_steps=4,
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            **{kind: True},
            **options,
        )
        given_parts = (parts.optimizer, parts.schedule)
        trainer = Texts(
            model,
            arguments,
            train_dataset=texts(),
            callbacks=[Flags()],
            optimizers=given_parts,
            compute_loss_func=our_loss if own else None,
        )
        if scaled:
            trainer.accelerator.scaler, trainer.accelerator.native_amp = parts.scaler, True
        with parts.watched(scaled=scaled):
            trainer.train()
        parts.list_files(folder)
        default = Trainer(model, arguments)
        default.create_optimizer()
        parts.flags["fused by default"].append(default.optimizer.defaults["fused"])
    return parts


def divided(parts: Parts) -> str:
    """Return by what the loss was divided in the first update, by its gradients."""
    means, counts = [], []
    for batch in texts()[:2]:
        model = llama()
        model(**batch).loss.backward()
        means.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        counts.append(int((batch["labels"] != IGNORED).sum()))
    whole = sum(mean * count for mean, count in zip(means, counts, strict=True)) / sum(counts)
    candidates = {"tokens": whole, "micro-batches": sum(means) / 2, "nothing": sum(means)}
    arrived = sum(one.arrived[0].values for one in parts.updates[0].backwards) / SCALE
    apart = {name: float((arrived - one).norm() / one.norm()) for name, one in candidates.items()}
    nearest = min(apart, key=apart.__getitem__)
    return nearest if apart[nearest] < NEAR else f"something else: {apart}"


def hf() -> Facts:
    """Run the Trainer in each way that the table speaks of."""
    run, fused, bf16 = hf_run(), hf_run(fused=True), hf_run("bf16")
    half = llama(half=True)
    return {
        "layer, bf16": bf16.at("layer's dtype"),
        "layer, fp16 asked of a CPU": hf_run(given=False).at("layer's dtype"),
        "in the forward": run.at("layer"),
        "in the model's loss": run.at("model's loss"),
        "in your loss": hf_run(own=True).at("loss"),
        "the loss": run.scaled(),
        "unscaled if nothing is clipped": hf_run(max_grad_norm=0.0).unscaled(),
        "clipped gradients": run.clipped(),
        "clipped to, by default": run.limit(),
        "scheduler": run.scheduler(),
        "optimizer_step_was_skipped": str(run.flags["skipped"][OVERFLOW]),
        "scheduler, fused": fused.scheduler(),
        "optimizer_step_was_skipped, fused": str(fused.flags["skipped"][OVERFLOW]),
        "fused by default": str(run.flags["fused by default"][0]),
        "loss divided by": divided(run),
        "loss divided by, where the model takes no num_items_in_batch": divided(
            hf_run(counts=False)
        ),
        "scheduler steps in an update": run.moves(),
        "saved": run.kept(),
        "the scaler's file": run.scaler_file(),
        "bf16=True, from fp32": bf16.dtypes(),
        "bf16=True, from bf16": hf_run("bf16", half=True).dtypes(),
        "from_pretrained, of bf16": str(half.dtype).removeprefix("torch."),
    }
