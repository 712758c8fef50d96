"""Hold the phrasebook: what seven libraries call the same thing. Plain data, and a table that shows some of them side by side.

The loops stand in `phrasebook_loops/`; `make test-phrasebook` runs those that run on a CPU, compares their losses, and looks up
every name in `Library.names` in the installed version. What Apex and Colossal-AI do was read in their sources, not run: Apex at
tag 25.05, Colossal-AI at tag v0.5.0. Paddle's fp16 O2, which needs a GPU, was read in python/paddle/amp as well.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from amp_course.kit.markup import inline_html

_LOOPS = Path(__file__).parent / "phrasebook_loops"
_CELL = "text-align:left;padding:3px 8px 3px 0;vertical-align:top;white-space:normal;font-size:88%"


@dataclass(frozen=True)
class Library:
    """A library that has AMP.

    slug:     names its loop, `phrasebook_loops/<slug>_loop.py`
    version:  the version that the phrasebook describes
    source:   the address of its documentation
    on_cpu:   what its loop is asked for → what it then computes in on a CPU, held against its first layer's output; {} where
              it is not run. "bf16 O2" is with Paddle's level
    not_run:  why it is not run, "" where it is
    names:    the names that the table uses, each looked up in the installed version
    """

    slug: str
    name: str
    version: str
    source: str
    on_cpu: dict[str, str] = field(default_factory=dict)
    not_run: str = ""
    names: tuple[str, ...] = ()

    @property
    def loop(self) -> str:
        """The source of its loop, to read or to paste."""
        return (_LOOPS / f"{self.slug}_loop.py").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Phrase:
    """A thing, and what each library calls it, by the library's slug; `code` stands in backquotes."""

    thing: str
    words: dict[str, str]


LIBRARIES = (
    Library(
        "torch_amp",
        "torch.amp",
        "torch 2.13.0",
        "https://docs.pytorch.org/docs/stable/amp.html",
        {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"},
        names=(
            "torch.amp.autocast",
            "torch.autocast",
            "torch.amp.GradScaler.unscale_",
            "torch.amp.GradScaler.state_dict",
        ),
    ),
    Library(
        "torch_cuda_amp",
        "torch.cuda.amp (old)",
        "torch 1.6 to 2.3, run in 2.13.0",
        "https://docs.pytorch.org/docs/2.3/amp.html",
        {"fp32": "float32", "bf16": "float32", "fp16": "float32"},
        names=("torch.cuda.amp.autocast", "torch.cuda.amp.GradScaler.unscale_"),
    ),
    Library(
        "apex",
        "Apex",
        "tag 25.05, the last with amp",
        "https://github.com/NVIDIA/apex/tree/25.05/apex/amp",
        not_run="it needs CUDA and is built from source (the `apex` on PyPI is another project), and NVIDIA removed "
        "`apex.amp` in tag 25.07 (https://github.com/NVIDIA/apex/pull/1896), after years of recommending PyTorch's AMP instead",
    ),
    Library(
        "colossalai",
        "Colossal-AI Booster",
        "0.5",
        "https://colossalai.org/docs/features/mixed_precision_training_with_booster/",
        not_run="`Booster` works on CUDA devices, its processes talk over NCCL, and it installs a stack of GPU packages",
    ),
    Library(
        "paddle",
        "Paddle",
        "3.3.1",
        "https://www.paddlepaddle.org.cn/documentation/docs/en/api/paddle/amp/auto_cast_en.html",
        {"fp32": "float32", "bf16": "float32", "fp16": "float32", "bf16 O2": "float32", "fp16 O2": "float32"},
        names=(
            "paddle.amp.auto_cast",
            "paddle.amp.decorate",
            "paddle.amp.GradScaler.unscale_",
            "paddle.amp.GradScaler.minimize",
            "paddle.amp.GradScaler.state_dict",
            "paddle.nn.ClipGradByGlobalNorm",
        ),
    ),
    Library(
        "accelerate",
        "Accelerate",
        "1.15.0",
        "https://huggingface.co/docs/accelerate/usage_guides/mixed_precision",
        {"fp32": "float32", "bf16": "bfloat16", "fp16": "float32"},
        names=(
            "accelerate.Accelerator.prepare",
            "accelerate.Accelerator.backward",
            "accelerate.Accelerator.autocast",
            "accelerate.Accelerator.accumulate",
            "accelerate.Accelerator.clip_grad_norm_",
            "accelerate.Accelerator.save_state",
            "accelerate.optimizer.AcceleratedOptimizer.step_was_skipped",
            "accelerate.utils.AutocastKwargs",
            "accelerate.utils.GradScalerKwargs",
        ),
    ),
    Library(
        "fabric",
        "Lightning Fabric",
        "2.6.6",
        "https://lightning.ai/docs/fabric/stable/fundamentals/precision.html",
        {"fp32": "float32", "bf16": "bfloat16", "fp16": "bfloat16"},
        names=(
            "lightning_fabric.Fabric.setup",
            "lightning_fabric.Fabric.backward",
            "lightning_fabric.Fabric.autocast",
            "lightning_fabric.Fabric.clip_gradients",
            "lightning_fabric.Fabric.no_backward_sync",
            "lightning_fabric.Fabric.save",
            "lightning_fabric.plugins.MixedPrecision.state_dict",
        ),
    ),
)


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


class Phrasebook:
    """Show some libraries side by side: HTML in a notebook, text elsewhere.

    Raises ValueError for a library that is not there.
    Example: Phrasebook("torch_amp", "paddle")
    """

    def __init__(self, *slugs: str) -> None:
        """Take all libraries, or those named."""
        known = {library.slug: library for library in LIBRARIES}
        unknown = [slug for slug in slugs if slug not in known]
        if unknown:
            raise ValueError(f"no library is called {unknown[0]!r}: the phrasebook has {', '.join(known)}.")
        self.libraries: Sequence[Library] = [known[slug] for slug in slugs] if slugs else LIBRARIES

    def __repr__(self) -> str:
        width = max(len(library.name) for library in self.libraries)
        blocks = []
        for phrase in PHRASES:
            lines = [phrase.thing]
            for library in self.libraries:
                head = f"  {library.name:<{width}}  "
                lines += textwrap.wrap(
                    phrase.words[library.slug], 110, initial_indent=head, subsequent_indent=" " * len(head)
                )
            blocks.append("\n".join(lines))
        return "\n".join([*blocks, *(_about(library) for library in self.libraries)])

    def _repr_html_(self) -> str:
        heads = "".join(
            f'<th style="{_CELL}"><a href="{escape(one.source)}">{escape(one.name)}</a><br>'
            f'<span style="font-weight:normal">{escape(one.version)}</span></th>'
            for one in self.libraries
        )
        rows = "".join(
            f'<tr><th style="{_CELL}">{escape(phrase.thing)}</th>'
            + "".join(f'<td style="{_CELL}">{_code_that_wraps(phrase.words[one.slug])}</td>' for one in self.libraries)
            + "</tr>"
            for phrase in PHRASES
        )
        notes = "".join(f"<div>{inline_html(_about(one))}</div>" for one in self.libraries if one.not_run)
        return f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>{notes}"


def _code_that_wraps(words: str) -> str:
    """Return the HTML of a phrase whose code may break after a dot, a bracket, an underscore: columns are narrow."""

    def open_up(code: re.Match[str]) -> str:
        return re.sub(r"([.(_=])(?=\w)", r"\1<wbr>", code[0])

    return re.sub(r"<code>.*?</code>", open_up, inline_html(words))


def _about(library: Library) -> str:
    run = f"not run, because {library.not_run}" if library.not_run else "run by `make test-phrasebook`"
    return f"{library.name}, {library.version}: {run}. Source: {library.source}"
