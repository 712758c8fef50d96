"""Name the seven libraries of the phrasebook: which version it describes, and what of it is run on a CPU. Plain data.

`make test-phrasebook` runs the loops in `loops/` that run on a CPU, compares their losses, and looks up every name in
`Library.names` in the installed version. What Apex and Colossal-AI do was read in their sources, not run: Apex at tag 25.05,
Colossal-AI at tag v0.5.0. Paddle's fp16 O2, which needs a GPU, was read in python/paddle/amp as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

_LOOPS = Path(__file__).parent / "loops"


@dataclass(frozen=True)
class Library:
    """A library that has AMP.

    slug:     names its loop, `loops/<slug>_loop.py`
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
