"""Phrases about scales and about formats: who shares a scale, when it is found, and how it is rounded. Plain data."""

from __future__ import annotations

from amp_course.frontiers.phrasebook.phrase import phrase

_TE_RECIPES = "common/recipe/__init__.py"

SCALING = (
    phrase(
        "scaling",
        "a scale for each tensor",
        ("`Float8CurrentScaling()`, `DelayedScaling()`", _TE_RECIPES),
        ('`"tensorwise"`, the default: `ScalingGranularity.TENSORWISE`', "float8/config.py"),
        ("none", "3.3.2"),
        ("none", "mx_ops.py"),
    ),
    phrase(
        "scaling",
        "a scale for each row",
        ("none in fp8; `NVFP4BlockScaling(row_scaled_activation=True)` has an fp32 one a row", _TE_RECIPES),
        (
            '`"rowwise"`: `ScalingGranularity.AXISWISE`, powers of two; `"rowwise_with_gw_hp"` keeps the weight gradient\'s '
            "product in high precision",
            "float8/config.py",
        ),
        ("none", "3.3.2"),
        ("`block_size=0`, a power of two", "mx_ops.py"),
    ),
    phrase(
        "scaling",
        "1×128 and 128×128 blocks",
        (
            "`Float8BlockScaling(x_block_scaling_dim=1, w_block_scaling_dim=2)`; powers of two unless "
            "`NVTE_FP8_BLOCK_SCALING_FP32_SCALES=1`",
            _TE_RECIPES,
        ),
        (
            "`quantize_(model, Float8BlockwiseLinearConfig())`, a prototype: Hopper or later, no bias; fp32 scales",
            "prototype/blockwise_fp8_training/linear.py",
        ),
        ("activations in “tiles” of 1×128, weights in “blocks” of 128×128", "3.3.2"),
        ("`block_size=128`: 1×128 alone, a power of two", "mx_ops.py"),
    ),
    phrase(
        "scaling",
        "from this tensor's own amax",
        ("“current scaling”: `Float8CurrentScaling()`", _TE_RECIPES),
        ("“dynamic”: `ScalingType.DYNAMIC`", "float8/config.py"),
        ("“online quantization”", "3.3.2"),
        ("always, and without a name", "mx_ops.py"),
    ),
    phrase(
        "scaling",
        "from a history of amax",
        (
            '`DelayedScaling(amax_history_len=1024, amax_compute_algo="max", margin=0)`',
            _TE_RECIPES,
        ),
        ("none since 0.10; `ScalingType.DELAYED` before", "float8/config.py"),
        ("none: “delayed quantization” is what it avoids", "3.3.2"),
        ("none", "specs.py"),
    ),
    phrase(
        "formats",
        "E4M3 forward, E5M2 backward",
        (
            "`fp8_format=Format.HYBRID`, the default with a scale a tensor; with blocks `Format.E4M3` is",
            _TE_RECIPES,
        ),
        (
            'the default of `"tensorwise"`; `"rowwise"` is E4M3 throughout; `CastConfig(target_dtype=torch.float8_e5m2)`',
            "float8/config.py",
        ),
        ("none: E4M3 throughout", "3.3.2"),
        ('`a_elem_format_bp_ex` and `a_elem_format_bp_os` set to `"fp8_e5m2"`', "specs.py"),
    ),
    phrase(
        "formats",
        "MXFP8",
        ("`MXFP8BlockScaling()`, the default where the GPU has it", "pytorch/quantization.py"),
        (
            "`quantize_(model, MXFP8TrainingOpConfig())`, a prototype; `MXLinearConfig` in 0.9 to 0.16",
            "prototype/moe_training/config.py",
        ),
        ("none: the report calls its blocks “highly consistent” with it", "3.3.2"),
        ('`w_elem_format="fp8_e4m3"`, `a_elem_format` too, `block_size=32`, `scale_bits=8`', "specs.py"),
    ),
    phrase(
        "formats",
        "MXFP6, MXFP4",
        ("none", _TE_RECIPES),
        (
            "for inference, `MXDynamicActivationMXWeightConfig(activation_dtype=torch.float4_e2m1fn_x2, …)`; by hand "
            '`to_mx(x, "fp6_e3m2", 32)`',
            "prototype/mx_formats/inference_workflow.py",
        ),
        ("none", "3.3"),
        ('`"fp6_e3m2"`, `"fp6_e2m3"`, `"fp4_e2m1"`', "formats.py"),
    ),
    phrase(
        "formats",
        "NVFP4",
        (
            "`NVFP4BlockScaling()`; a scale for 16 numbers, of weights for 16×16 unless `disable_2d_quantization=True`",
            _TE_RECIPES,
        ),
        (
            "`quantize_(model, NVFP4TrainingConfig())`, a prototype; for inference "
            "`NVFP4DynamicActivationNVFP4WeightConfig()`",
            "prototype/moe_training/nvfp4_training/nvfp4_training.py",
        ),
        ("none", "3.3"),
        ("none", "formats.py"),
    ),
    phrase(
        "rounding",
        "a power-of-two scale is rounded",
        ("up: nothing saturates", "common/util/ptx.cuh"),
        (
            "as you say: `to_mx(…, scaling_mode=ScaleCalculationMode.FLOOR)` by default, `RCEIL` in its configs; `EVEN`; "
            "`CEIL`, which rounds the amax itself up",
            "prototype/mx_formats/config.py",
        ),
        ("“round scaled”; its inference code rounds up", "3.3.3; inference/kernel.py of deepseek-ai/DeepSeek-V3"),
        ("down, as in the OCP standard: the largest numbers may saturate", "mx_ops.py"),
    ),
)
