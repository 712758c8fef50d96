"""Name what the phrasebook below 16 bits compares, and the version that was read. Plain data.

`make test-phrasebook` runs torchao on a CPU, compares its fp8 layer, its MX formats and its optimizers with computations of the
course, and looks up every name in `Library.names` and every file in the sources of its phrases. The others were read:
Transformer Engine at tag v2.18, DeepSeek-V3 in its report (arXiv:2412.19437v2), microxcaling at commit 7bc4195.
"""

from __future__ import annotations

from pathlib import Path

from amp_course.recipes.phrasebook import Library

_LOOPS = Path(__file__).parent / "loops"


class LowBitLibrary(Library):
    """A library, or a report, that trains below 16 bits; fields as in chapter 08's phrasebook."""

    @property
    def loop(self) -> str:
        """The source of its loop, to read or to paste; "" where no code for training was published."""
        path = _LOOPS / f"{self.slug}_loop.py"
        return path.read_text(encoding="utf-8") if path.exists() else ""


LIBRARIES = (
    LowBitLibrary(
        "transformer_engine",
        "Transformer Engine",
        "2.18",
        "https://github.com/NVIDIA/TransformerEngine/tree/v2.18",
        not_run="it is built for CUDA, and every recipe asks for a GPU of 2022 or later",
    ),
    LowBitLibrary(
        "torchao",
        "torchao",
        "0.18.0",
        "https://github.com/pytorch/ao/tree/v0.18.0",
        names=(
            "torchao.float8.convert_to_float8_training",
            "torchao.float8.Float8LinearConfig.from_recipe_name",
            "torchao.float8.ScalingType.DYNAMIC",
            "torchao.float8.ScalingGranularity.TENSORWISE",
            "torchao.float8.ScalingGranularity.AXISWISE",
            "torchao.float8.CastConfig",
            "torchao.float8.Float8GemmConfig",
            "torchao.float8._auto_filter_for_recipe",
            "torchao.float8.float8_linear.Float8Linear",
            "torchao.quantization.quantize_",
            "torchao.prototype.mx_formats.MXDynamicActivationMXWeightConfig",
            "torchao.prototype.mx_formats.NVFP4DynamicActivationNVFP4WeightConfig",
            "torchao.prototype.mx_formats.ScaleCalculationMode.FLOOR",
            "torchao.prototype.mx_formats.ScaleCalculationMode.RCEIL",
            "torchao.prototype.mx_formats.ScaleCalculationMode.CEIL",
            "torchao.prototype.mx_formats.ScaleCalculationMode.EVEN",
            "torchao.prototype.mx_formats.mx_tensor.to_mx",
            "torchao.optim.AdamW8bit",
            "torchao.optim.AdamW4bit",
            "torchao.optim.AdamWFp8",
        ),
    ),
    LowBitLibrary(
        "deepseek_v3",
        "DeepSeek-V3's recipe",
        "report v2, 2025",
        "https://arxiv.org/abs/2412.19437",
        not_run="the report describes it, and the code that trained the model was not published",
    ),
    LowBitLibrary(
        "microxcaling",
        "microxcaling",
        "commit 7bc4195, 2024",
        "https://github.com/microsoft/microxcaling",
        not_run="no package index has it; cloned from GitHub, it runs on a CPU too, though its README asks for CUDA",
    ),
)
