"""Hold the phrases: what seven libraries call the same thing, a row for each thing. Plain data; `libraries` has its sources."""

from __future__ import annotations

from dataclasses import dataclass

from amp_course.recipes.phrasebook.libraries import LIBRARIES


@dataclass(frozen=True)
class Phrase:
    """A thing, and what each library calls it, by the library's slug; `code` is in backquotes."""

    thing: str
    words: dict[str, str]


def _phrase(thing: str, *words: str) -> Phrase:
    return Phrase(thing, dict(zip((library.slug for library in LIBRARIES), words, strict=True)))


# One row a thing; its words in the order of LIBRARIES.
PHRASES = (
    _phrase(
        "the region",
        "`with torch.autocast(device_type, dtype):`",
        "`with torch.cuda.amp.autocast():`",
        "none: `amp.initialize(model, optimizer, opt_level)` patches torch's functions (O1) or the model (O2, O3)",
        "none: `booster.boost(model, optimizer, loss_fn)` wraps the forward of the model and of the loss",
        "`with paddle.amp.auto_cast(level, dtype):`",
        "none: `accelerator.prepare(model)` wraps its forward and gives its outputs back in fp32; else `accelerator.autocast()`",
        "none: `fabric.setup(model, optimizer)` wraps its forward and gives its outputs back in fp32; else `fabric.autocast()`",
    ),
    _phrase(
        "the scaler",
        "`torch.amp.GradScaler(device_type)`",
        "`torch.cuda.amp.GradScaler()`",
        "inside: `amp.scale_loss(loss, optimizer)`; fixed by `amp.initialize(…, loss_scale=128)`",
        "inside the boosted optimizer; set by `FP16TorchMixedPrecision(init_scale, …)`",
        "`paddle.amp.GradScaler(init_loss_scaling)`",
        "inside, with fp16 alone: `accelerator.scaler`; set by `GradScalerKwargs`",
        "inside, with 16-mixed alone: `MixedPrecision(…, scaler=…)` among `plugins` sets it",
    ),
    # Apex: apex/amp/scaler.py. Colossal-AI: booster/mixed_precision/fp16_torch.py, booster/plugin/low_level_zero_plugin.py and
    # amp/naive_amp/grad_scaler/dynamic_grad_scaler.py. Paddle: python/paddle/amp/grad_scaler.py.
    _phrase(
        "the scaler's defaults",
        "65,536; doubles after 2,000 good steps, halves after 1 bad one",
        "the same",
        "the same, but never above `max_loss_scale=2**24`",
        "`fp16`: the same; naive and `LowLevelZeroPlugin`: doubles after 1,000 good steps, halves from the second bad one on "
        "(`hysteresis=2`)",
        "the same since 2.5; before that, and in many a guide, 32,768 and 1,000 steps",
        "the same",
        "the same",
    ),
    _phrase(
        "backward",
        "`scaler.scale(loss).backward()`",
        "`scaler.scale(loss).backward()`",
        "`with amp.scale_loss(loss, optimizer) as scaled: scaled.backward()`",
        "`booster.backward(loss, optimizer)`",
        "`scaler.scale(loss).backward()`",
        "`accelerator.backward(loss)`",
        "`fabric.backward(loss)`",
    ),
    _phrase(
        "unscale, then clip",
        "`scaler.unscale_(optimizer)`, then `clip_grad_norm_(model.parameters(), …)`",
        "`scaler.unscale_(optimizer)`, then `clip_grad_norm_(model.parameters(), …)`",
        "unscaled when `scale_loss` ends; then `clip_grad_norm_(amp.master_params(optimizer), …)`",
        "`optimizer.clip_grad_by_norm(…)` does both",
        "`grad_clip=ClipGradByGlobalNorm(…)` of the optimizer, which runs after the scaler's unscaling; or `scaler.unscale_`. "
        "Under O2 gradients are divided in fp16, unless `decorate(…, master_grad=True)` makes them fp32 first",
        "`accelerator.clip_grad_norm_(model.parameters(), …)` does both",
        "`fabric.clip_gradients(model, optimizer, max_norm=…)` does both",
    ),
    _phrase(
        "step and update",
        "`scaler.step(optimizer)`, `scaler.update()`",
        "`scaler.step(optimizer)`, `scaler.update()`",
        "`optimizer.step()`, patched",
        "`optimizer.step()` does both",
        "`scaler.step(optimizer)`, `scaler.update()`; or `scaler.minimize(optimizer, scaled)` for both",
        "`optimizer.step()` does both",
        "`optimizer.step()` does both",
    ),
    _phrase(
        "a step was skipped",
        "`scaler.get_scale()` went down over `update()`",
        "`scaler.get_scale()` went down over `update()`",
        'prints "Gradient overflow. Skipping step"',
        "not told; `optimizer.scaler.get_scale()` went down",
        'not told; `scaler.state_dict()["scale"]` went down',
        "`optimizer.step_was_skipped`",
        "not told; `fabric.strategy.precision.scaler.get_scale()` went down",
    ),
    _phrase(
        "master weights",
        "the model's own parameters, always fp32",
        "the model's own parameters, always fp32",
        "O1: the model's own; O2: `amp.master_params(optimizer)`; O3: none",
        "`fp16`: the model's own; `LowLevelZeroPlugin` keeps its own in fp32",
        'O1: the model\'s own; O2: in the optimizer, `decorate(…, level="O2", master_weight=None)`',
        "the model's own parameters, always fp32",
        "-mixed: the model's own; -true: none",
    ),
    _phrase(
        "accumulation",
        "scale and `backward()` a micro-batch; unscale, step, update once",
        "scale and `backward()` a micro-batch; unscale, step, update once",
        "`scale_loss` and `backward()` a micro-batch, `step` once; Apex unscales and adds up each time "
        "(`delay_unscale=True` saves that, and mixes badly with clipping)",
        "`backward` a micro-batch, `step` once; `booster.no_sync` between",
        "scale and `backward()` a micro-batch; `step` and `update` once",
        "`with accelerator.accumulate(model):`, and `gradient_accumulation_steps` divides the loss",
        "`with fabric.no_backward_sync(model):` for all but the last; you divide the loss",
    ),
    _phrase(
        "your own op lists",
        "none: an island, `torch.autocast(device_type, enabled=False)`",
        "none: an island, `autocast(enabled=False)`",
        "`amp.register_half_function(module, name)`, `amp.register_float_function(…)`",
        "none",
        "`auto_cast(custom_white_list, custom_black_list)`",
        "none: an island, `accelerator.autocast(AutocastKwargs(enabled=False))`",
        "none: an island, `torch.autocast(device_type, enabled=False)`",
    ),
    _phrase(  # Apex: O2StateDictHook in apex/amp/_initialize.py
        "save the model",
        "`model.state_dict()`: fp32, as the parameters are",
        "`model.state_dict()`: fp32, as the parameters are",
        "`model.state_dict()`: fp32 at every level; under O2 and O3 a hook casts fp16 weights up",
        "`booster.save_model(model, path)`: as the parameters are",
        "`model.state_dict()`: as the parameters are, or as `decorate(…, save_dtype=…)` says",
        "`accelerator.save_model(model, folder)`: fp32, as the parameters are",
        "`fabric.save(path, state)`: as the parameters are",
    ),
    _phrase(
        "save the scaler",
        "`scaler.state_dict()`",
        "`scaler.state_dict()`",
        "`amp.state_dict()`",
        "not with `booster.save_optimizer`: `optimizer.scaler.state_dict()`",
        "`scaler.state_dict()`",
        "`accelerator.save_state(folder)` has it",
        "not with `fabric.save`: add `fabric.strategy.precision.state_dict()`",
    ),
    _phrase(
        "O0, fp32",
        "`enabled=False`",
        "`enabled=False`",
        '`opt_level="O0"`',
        "`mixed_precision=None`",
        "`enable=False`",
        '`mixed_precision="no"`',
        '`precision="32-true"`',
    ),
    _phrase(
        "O1, autocast",
        "autocast",
        "autocast",
        '`opt_level="O1"`',
        '`mixed_precision="fp16"`',
        '`level="O1"`',
        '`mixed_precision="fp16"` or `"bf16"`',
        '`precision="16-mixed"` or `"bf16-mixed"`',
    ),
    _phrase(
        "O2, half with fp32 masters",
        "no name: by hand",
        "no name: by hand",
        '`opt_level="O2"`',
        'once `AMP_TYPE.NAIVE`; in the Booster a plugin, `LowLevelZeroPlugin(precision="fp16")`',
        '`level="O2"` with `decorate`; in fp16 LayerNorm and InstanceNorm stay fp32 as well, and an op with one fp32 input runs '
        "in fp32 (`use_promote=True`)",
        "no name",
        "no name",
    ),
    _phrase(
        "O3, pure half",
        "no name: `model.half()`, `model.bfloat16()`",
        "no name: `model.half()`",
        '`opt_level="O3"`',
        "no name",
        '`level="O2"` with `decorate(…, master_weight=False)`',
        "no name",
        '`precision="16-true"` or `"bf16-true"`',
    ),
    _phrase(
        "asked for fp16 on a CPU",
        "does it, scaler and all",
        "warns and trains in fp32",
        "not run",
        "not run",
        "warns and trains in fp32; bf16 alike",
        "trains in fp32 and says nothing; bf16 works",
        "warns and takes bf16 instead",
    ),
)
