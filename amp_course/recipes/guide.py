"""Choose a recipe: hardware × model × symptom → recipe, as plain data. Each leaf names the section of the course that backs it.

A leaf is a place to start from, not a law: the report card and the survival map measure your own case.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from amp_course.recipes.training import BaseRecipe, find

HARDWARE = {
    "cpu": "CPU, 16 bits emulated",
    "cpu_bf16": "CPU with bf16 instructions",
    "fp16_gpu": "GPU with fp16, no bf16 (V100, T4)",
    "bf16_gpu": "GPU with bf16 (A100 and newer)",
}
MODELS = {
    "any": "any model",
    "batch_norm": "batch norm",
    "long_context": "positions past 256 (RoPE, ALiBi)",
    "large": "weights + Adam do not fit",
}
SYMPTOMS = {
    "start": "none yet",
    "nan": "pure half gives NaN",
    "scale_zero": "the loss scale falls to 0",
    "stalls": "the loss stands still",
    "coarse": "bf16 is too coarse",
}


@dataclass(frozen=True)
class Leaf:
    """A recommendation.

    hardware, model, symptom: keys of HARDWARE, MODELS, SYMPTOMS; "any" model is every one, as is symptom "any"
    recipe, options: what `amp_course.recipes.find` takes
    advice:   what to do, a line
    why:      the reason, a sentence
    notebook, section: where the course shows it, "02_underflow" and "8. Remedies"
    """

    hardware: str
    model: str
    symptom: str
    recipe: str
    advice: str
    why: str
    notebook: str
    section: str
    options: dict[str, Any] = field(default_factory=dict)

    def build(self) -> BaseRecipe:
        """Return the recipe, with the options that the advice gives it."""
        return find(self.recipe, **self.options)

    @property
    def chapter(self) -> str:
        """The chapter and section in short: "02 § 8"."""
        return f"{self.notebook[:2]} § {self.section.partition('.')[0]}"


# The first that fits counts, so what is special stands above what is common.
LEAVES = (
    Leaf(
        "cpu",
        "any",
        "any",
        "o0",
        "stay in fp32",
        "16-bit arithmetic is emulated here and takes many times as long; nothing is gained but activation memory.",
        "00_start",
        "2. Your machine",
    ),
    Leaf(
        "cpu_bf16",
        "long_context",
        "any",
        "amp_bf16",
        "and positions, angles in fp32",
        "bf16 counts to 256 without a gap; autocast turns the outer product of RoPE into a bf16 matmul.",
        "03_positions",
        "5. The trap: autocast and the matmul",
    ),
    Leaf(
        "cpu_bf16",
        "any",
        "any",
        "amp_bf16",
        "AMP in bf16, no scaler",
        "bf16 matmuls have instructions of their own, fp16 ones seldom; and bf16 needs no scaler.",
        "06_loop",
        "8. The report card",
    ),
    Leaf(
        "fp16_gpu",
        "batch_norm",
        "nan",
        "o1",
        "AMP in fp16 with a scaler",
        "Autocast keeps fp32 weights and statistics, and the scaler skips the steps that overflow; pure half has neither.",
        "08_recipes",
        "7. The survival map",
    ),
    Leaf(
        "fp16_gpu",
        "any",
        "nan",
        "o1",
        "AMP in fp16 with a scaler",
        "exp, squares and sums overflow in pure fp16; autocast runs those in fp32.",
        "02_underflow",
        "6. Too large: exp, squares, eps, masks",
    ),
    Leaf(
        "fp16_gpu",
        "any",
        "scale_zero",
        "o1",
        "run the layer at fault in fp32",
        "A scale that falls and falls means an overflow in the forward pass, and no scale helps against that.",
        "05_scaler",
        "8. When the scale falls to 0",
    ),
    Leaf(
        "fp16_gpu",
        "any",
        "stalls",
        "o2",
        "fp32 master weights for the half model",
        "An update below half an ulp of its weight is lost in each step; a master adds them up.",
        "02_underflow",
        "5. Updates that vanish",
    ),
    Leaf(
        "fp16_gpu",
        "large",
        "any",
        "o1",
        "save elsewhere: sharding, SGD",
        "O2 saves nothing between steps: 2+2+4+4+4 bytes are 16, as in AMP. Half weights without masters die (O3).",
        "06_loop",
        "6. Where the memory goes",
    ),
    Leaf(
        "fp16_gpu",
        "long_context",
        "any",
        "o1",
        "and positions, angles in fp32",
        "fp16 counts to 2,048 without a gap, which is short for a context; autocast's matmul rounds angles.",
        "03_positions",
        "5. The trap: autocast and the matmul",
    ),
    Leaf(
        "fp16_gpu",
        "any",
        "any",
        "o1",
        "AMP in fp16 with a scaler",
        "fp16 is what the hardware has, and it loses small gradients unless the loss is scaled.",
        "06_loop",
        "3. The scaler",
    ),
    Leaf(
        "bf16_gpu",
        "large",
        "any",
        "pure_bf16_sr",
        "pure bf16, rounded at random",
        "8 bytes a parameter instead of 16; without rounding at random updates below half an ulp vanish.",
        "02_underflow",
        "8. Remedies",
    ),
    Leaf(
        "bf16_gpu",
        "long_context",
        "any",
        "amp_bf16",
        "and positions, angles in fp32",
        "bf16 counts to 256 without a gap; autocast turns the outer product of RoPE into a bf16 matmul.",
        "03_positions",
        "5. The trap: autocast and the matmul",
    ),
    Leaf(
        "bf16_gpu",
        "any",
        "scale_zero",
        "amp_bf16",
        "change from fp16 to bf16",
        "bf16 has the range of fp32: what overflowed in fp16 fits, and no scaler is needed.",
        "05_scaler",
        "7. bf16 rarely needs one",
    ),
    Leaf(
        "bf16_gpu",
        "any",
        "stalls",
        "amp_bf16",
        "from pure bf16 to AMP: fp32 weights",
        "bf16 loses updates from 2^-8 of the weight on; AMP's parameters are fp32 and take them.",
        "02_underflow",
        "5. Updates that vanish",
    ),
    Leaf(
        "bf16_gpu",
        "any",
        "coarse",
        "o1",
        "AMP in fp16 with a scaler",
        "fp16 has 11 significand bits, bf16 has 8: if the range suffices, fp16 rounds 8 times as finely.",
        "01_bits",
        "5. Range against precision",
    ),
    Leaf(
        "bf16_gpu",
        "any",
        "any",
        "amp_bf16",
        "AMP in bf16, no scaler",
        "The speed of fp16 with the range of fp32, and one mechanism less to go wrong.",
        "05_scaler",
        "7. bf16 rarely needs one",
    ),
)


def recommend(hardware: str, model: str = "any", symptom: str = "start") -> Leaf:
    """Return the leaf for a case.

    Raises ValueError for a word that is none of HARDWARE, MODELS, SYMPTOMS.
    Example: recommend("bf16_gpu", "large").recipe → "pure_bf16_sr"
    """
    for what, word, known in (
        ("hardware", hardware, HARDWARE),
        ("model", model, MODELS),
        ("symptom", symptom, SYMPTOMS),
    ):
        if word not in known:
            raise ValueError(f"unknown {what} {word!r}: choose one of {', '.join(known)}")
    return next(
        leaf
        for leaf in LEAVES
        if leaf.hardware == hardware and leaf.model in ("any", model) and leaf.symptom in ("any", symptom)
    )
