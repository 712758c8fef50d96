"""Phrases about layers, about rounding and about memory: how a model comes to train below 16 bits. Plain data."""

from __future__ import annotations

from amp_course.frontiers.phrasebook.phrase import phrase

_TE_RECIPES = "common/recipe/__init__.py"

TRAINING = (
    phrase(
        "layer",
        "an fp8 linear layer",
        ("`te.Linear(…)`, run inside `te.autocast`", "pytorch/module/linear.py"),
        (
            "`convert_to_float8_training(model)` replaces every `nn.Linear` with a `Float8Linear`",
            "float8/float8_linear_utils.py",
        ),
        ("the linear layer's three products, Fprop, Dgrad and Wgrad, take fp8 and give bf16 or fp32", "3.3.1"),
        (
            "`mx.Linear(…, mx_specs=specs)`: rounds both operands and multiplies them in their old dtype: a simulation",
            "linear.py",
        ),
    ),
    phrase(
        "layer",
        "where the cast happens",
        (
            "in its own modules, within `with te.autocast(enabled=True, recipe=…):` around the forward pass; "
            "`te.fp8_autocast` before 2.9",
            "pytorch/quantization.py",
        ),
        ("in the swapped modules, always; `torch.autocast` goes on around them", "float8/float8_linear.py"),
        ("in the kernels around the products, “online”", "3.3.2"),
        (
            "in its own modules and functions; `mx_mapping.inject_pyt_ops(specs)`, called before the model is built, lets "
            "them replace PyTorch's",
            "mx_mapping.py",
        ),
    ),
    phrase(
        "layer",
        "the recipe as an object",
        (
            "`recipe=DelayedScaling()`, `Float8CurrentScaling()`, `Float8BlockScaling()`, `MXFP8BlockScaling()`, "
            "`NVFP4BlockScaling()`",
            _TE_RECIPES,
        ),
        (
            '`config=Float8LinearConfig.from_recipe_name("tensorwise")`, `"rowwise"` or `"rowwise_with_gw_hp"`',
            "float8/config.py",
        ),
        ("none: there is one recipe", "3.3"),
        ('a dictionary, `specs = finalize_mx_specs({"w_elem_format": "fp8_e4m3", …})`', "specs.py"),
    ),
    phrase(
        "layer",
        "what stays in high precision",
        (
            "whatever is not one of its modules; the last layers if you say so, with a nested `te.autocast(enabled=False)`",
            "pytorch/quantization.py",
        ),
        (
            '`module_filter_fn=lambda module, name: name != "head"`; `_auto_filter_for_recipe(recipe, filter_fqns)` leaves out '
            "layers too small to gain",
            "float8/float8_linear_utils.py",
        ),
        (
            "embedding, output head, MoE gates, norms and attention; master weights and gradients, in fp32",
            "3.3.1, 3.3.3",
        ),
        ("`mx_specs=None` for a module; `specs` sets what is no matrix product to bf16 with `bfloat=16`", "linear.py"),
    ),
    phrase(
        "layer",
        "sums inside a product",
        ("`MMParams(use_split_accumulator=True)` promotes partial sums to fp32", _TE_RECIPES),
        ("`Float8GemmConfig(use_fast_accum=True)` is faster and less exact", "float8/config.py"),
        ("tensor cores keep about 14 bits, so each 128 products are added up in fp32 elsewhere", "3.3.2"),
        ("as PyTorch's own product", "matmul_precision.py"),
    ),
    phrase(
        "layer",
        "without the hardware",
        ("none; `te.is_fp8_available()` tells whether it is there", "pytorch/quantization.py"),
        ("`Float8LinearConfig(emulate=True)`: rounds, then multiplies in fp32", "float8/float8_ops.py"),
        ("none", "3.3"),
        ("all of it is emulation; `custom_cuda=True` is a faster one", "mx_ops.py"),
    ),
    phrase(
        "rounding",
        "rounding of an element",
        ("to nearest, ties to even", "common/util/ptx.cuh"),
        ("to nearest, ties to even, as PyTorch's cast", "float8/float8_utils.py"),
        ("not mentioned", "3.3.2"),
        ('`round="nearest"`, the default: ties away from 0; `"even"`, `"floor"`', "elemwise_ops.py"),
    ),
    phrase(
        "rounding",
        "stochastic rounding",
        (
            "of gradients under `NVFP4BlockScaling()`, unless `disable_stochastic_rounding=True`",
            _TE_RECIPES,
        ),
        (
            "of bf16 weights: `AdamW8bit(…, bf16_stochastic_round=True)`; of NVFP4 gradients",
            "optim/adam.py",
        ),
        ("none mentioned", "3.3"),
        ('`round="dither"`, which its README leaves out', "elemwise_ops.py"),
    ),
    phrase(
        "rounding",
        "random Hadamard transform",
        (
            "`NVFP4BlockScaling()`: 16 by 16, for the weight gradient's product, unless `disable_rht=True`",
            _TE_RECIPES,
        ),
        (
            "the same in `NVFP4TrainingConfig()`; SpinQuant's for inference",
            "prototype/moe_training/nvfp4_training/nvfp4_training.py",
        ),
        ("none mentioned", "3.3"),
        ("none", "specs.py"),
    ),
    phrase(
        "memory",
        "8-bit and 4-bit optimizer states",
        (
            "`FusedAdam(exp_avg_dtype=torch.uint8, exp_avg_sq_dtype=torch.uint8)`: fp8, one fp32 scale a tensor",
            "pytorch/optimizers/fused_adam.py",
        ),
        (
            "`torchao.optim.AdamW8bit`, `AdamWFp8`: a scale for 256 numbers; `AdamW4bit`: for 128; those of fewer than "
            "4,096 numbers keep their dtype. `prototype.low_bit_optim` before 0.10",
            "optim/adam.py",
        ),
        ("both of AdamW's moments in bf16", "3.3.3"),
        ("none: `round_m` names a rounding that nothing uses", "specs.py"),
    ),
    phrase(
        "memory",
        "the weights themselves",
        (
            "fp32 or bf16, cast in every forward pass; `with te.quantized_model_init():` keeps the fp8 ones alone "
            "(`fp8_model_init` before 2.9)",
            "pytorch/quantization.py",
        ),
        (
            "as they were, cast in every pass; `enable_fsdp_float8_all_gather=True` sends fp8 between ranks",
            "float8/config.py",
        ),
        ("fp32 masters", "3.3.3"),
        ("as they were", "linear.py"),
    ),
    phrase(
        "memory",
        "activations for the backward pass",
        (
            "in the fp8 of the recipe, cast along both dimensions where blocks make a difference",
            _TE_RECIPES,
        ),
        ("in the model's dtype: `Float8Linear` saves its input and casts it again", "float8/float8_linear.py"),
        ("fp8; E5M6 for the input of the layer after attention; SwiGLU's output is computed again", "3.3.3"),
        ("in the model's dtype", "linear.py"),
    ),
)
