"""Judge the choice of a recipe for six situations: what is right comes from the guide, what is wrong is explained here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amp_course.checking import Wrong
from amp_course.recipes.guide import Leaf, recommend
from amp_course.recipes.training import BaseRecipe


@dataclass(frozen=True)
class Situation:
    """A case to choose a recipe for.

    name:   its key in the answer
    text:   what the reader is told
    case:   hardware, model, symptom, as the guide takes them
    others: the name of each other recipe on offer → why not that one
    """

    name: str
    text: str
    case: tuple[str, str, str]
    others: dict[str, str]

    @property
    def leaf(self) -> Leaf:
        """What the guide says."""
        return recommend(*self.case)

    @property
    def offer(self) -> tuple[str, ...]:
        """The names of the recipes to choose from, in one order whatever is right."""
        return tuple(sorted((self.leaf.recipe, *self.others)))


SITUATIONS = (
    Situation(
        "large_batch",
        "Eight V100s, a ResNet with batch norm. The whole net in fp16 with fp32 batch norms trained well at batch 1024 and "
        "gives NaN at 2048.",
        ("fp16_gpu", "batch_norm", "nan"),
        {
            "o3": "O3 is the same without fp32 batch norms, so it dies sooner: their variance overflows too",
            "half_bn32": "that is the recipe that gave NaN: its loss and gradients are unscaled fp16, and no step is ever "
            "skipped",
            "amp_bf16": "a V100 has no bf16 arithmetic: it is emulated there, even where `is_bf16_supported()` says True",
        },
    ),
    Situation(
        "laptop",
        "A laptop whose CPU has neither bf16 nor fp16 instructions; the loss is fine in fp32, the epochs are slow.",
        ("cpu", "any", "start"),
        {
            "o1": "fp16 is emulated here: a matmul takes many times as long as in fp32. Chapter 00 measures it on your machine",
            "amp_bf16": "bf16 is emulated on this CPU: casts and conversions come on top of arithmetic in fp32",
            "pure_bf16": "storing in bf16 halves memory and not time: the arithmetic is emulated here",
        },
    ),
    Situation(
        "overflow",
        "An A100 and a transformer whose weights come from a bf16 training. Under AMP in fp16 every step is skipped and the "
        "scale falls to 0.",
        ("bf16_gpu", "any", "scale_zero"),
        {
            "o1": "that is what fails: activations of a model that was trained in bf16 can be past fp16's range, and no "
            "scale of the loss makes those smaller",
            "o2": "O2 computes in fp16 too, and leaves even more of the forward pass to it: the same overflow",
            "pure_bf16": "bf16 is right, and giving up fp32 weights is not needed for it: small updates would be lost",
        },
    ),
    Situation(
        "memory",
        "An H100. Weights, gradients and Adam's averages take 20 % more than its memory, in AMP. Nothing may be sharded or "
        "moved to the CPU.",
        ("bf16_gpu", "large", "start"),
        {
            "amp_bf16": "AMP holds 16 bytes a parameter with Adam, as fp32 does: activations shrink, and these are not what "
            "is too large",
            "o2": "O2 looks smaller and is not: 2 + 2 + 4 + 4 + 4 bytes for weight, gradient, master and averages are 16 again",
            "pure_bf16": "8 bytes fit, but a bf16 weight that is rounded to nearest loses each update below half an ulp, "
            "which late in a training are most. Round at random",
        },
    ),
    Situation(
        "standstill",
        "A V100, and a library that holds its model in fp16, which you cannot change. Gradients are scaled and finite; "
        "updates are a ten-thousandth of their weights, and the loss stands still.",
        ("fp16_gpu", "any", "stalls"),
        {
            "o1": "O1 would cure it with fp32 weights in the model, and that model has to stay in fp16",
            "o3": "O3 is what you have: half weights, stepped as they are. An update below 2^-12 of its weight changes nothing",
            "half_bn32": "fp32 batch norms help statistics; the weights of all other layers are fp16 still, and stand still",
        },
    ),
    Situation(
        "too_coarse",
        "An A100 and a model that is trained on the probabilities it gives. Under AMP in bf16 training and inference "
        "disagree by rounding; activations and gradients are all far inside fp16's range.",
        ("bf16_gpu", "any", "coarse"),
        {
            "amp_bf16": "that is what you have, and its 8 significand bits are the trouble. The range of bf16 buys nothing "
            "here",
            "pure_bf16_sr": "rounding weights at random adds noise where rounding is the trouble",
            "o3": "fp16 has the bits, and O3 throws them away again: it loses small updates and computes exp and sums in fp16",
        },
    ),
)


def judge(answer: Any) -> None:
    """`{"large_batch": "o1", …}`: for each of six situations the name of a recipe."""
    names = [situation.name for situation in SITUATIONS]
    if not isinstance(answer, Mapping) or set(answer) != set(names):
        raise Wrong(f"the answer is a dict with the keys {', '.join(names)}")
    for situation in SITUATIONS:
        got = _name(answer[situation.name])
        leaf = situation.leaf
        if got == leaf.recipe:
            continue
        offer = ", ".join(situation.offer)
        if got not in situation.others:
            raise Wrong(f"{situation.name}: the choice is between {offer}, and yours is {answer[situation.name]!r}")
        raise Wrong(
            f"{situation.name}: {situation.others[got]}. Look at chapter {leaf.chapter}, and choose again from {offer}"
        )


def _name(got: Any) -> str:
    if isinstance(got, BaseRecipe):
        return got.name
    return got.strip().lower().replace("-", "_").replace(" ", "_") if isinstance(got, str) else ""
