"""Exercise 4 of chapter 08: choose recipes; the guide says which is right."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from amp_course.checking import Card, Case, Exercise, Mistake, read_dict
from amp_course.recipes.guide import Leaf, recommend
from amp_course.recipes.training import ALL, BaseRecipe

card = Card(
    chapter="recipes",
    name="choose_recipe",
    number=4,
    title="Choose a recipe",
    difficulty=2,
    importance=5,
    minutes=10,
    lines=6,
    takes="value",
    task="Fill in `choose_recipe`: which recipe would you start from in each of six situations? "
    "Give its name, such as 'o1'.",
    hints=(
        "Ask which 16-bit format the hardware computes in, then what dies, then what takes too "
        "much memory.",
        "Values out of range: bf16, or a scaler. Updates lost: float32 weights somewhere. Memory: "
        "count bytes, as in chapter 06.",
        "`amp_course.recipes.guide.recommend(hardware, model, symptom)` knows all six.",
    ),
    why="Three questions (which format, what dies, what is too large) take you from a machine and "
    "a symptom to a recipe.",
    alternative="AMP (`o1` or `amp_bf16`) is right most often. Start there, and leave it only for "
    "a reason you have measured.",
)


@dataclass(frozen=True)
class Situation:
    """A situation to choose a recipe for.

    case:   hardware, model and symptom, as the guide takes them
    others: wrong recipes → why not that one
    """

    name: str
    case: tuple[str, str, str]
    text: str
    others: dict[str, str]

    @property
    def leaf(self) -> Leaf:
        return recommend(*self.case)

    @property
    def offer(self) -> str:
        """The recipes to choose from."""
        return ", ".join(sorted((self.leaf.recipe, *self.others)))


SITUATIONS = (
    Situation(
        "large_batch",
        ("fp16_gpu", "batch_norm", "nan"),
        "Eight V100s, a ResNet with batch norm. With everything in fp16 but the batch norms, it "
        "trained well at batch 1024 and gives NaN at 2048.",
        {
            "o3": "O3 is the same without fp32 batch norms, so it dies sooner, since the variance "
            "of a batch norm overflows too",
            "half_bn32": "this is what gave NaN. Its loss and gradients are unscaled fp16, and it "
            "never skips a step",
            "amp_bf16": "a V100 emulates bf16, even where `is_bf16_supported()` says True",
        },
    ),
    Situation(
        "laptop",
        ("cpu", "any", "start"),
        "A laptop whose CPU has neither bf16 nor fp16 instructions. The loss is fine in fp32, but "
        "epochs are slow.",
        {
            "o1": "fp16 is emulated here, and a matmul takes many times as long as in fp32, as "
            "chapter 00 measures",
            "amp_bf16": "bf16 is emulated here. The CPU computes in fp32 and also converts back "
            "and forth",
            "pure_bf16": "storing in bf16 halves the memory, not the time, since arithmetic is "
            "emulated here",
        },
    ),
    Situation(
        "overflow",
        ("bf16_gpu", "any", "scale_zero"),
        "An A100, and a transformer that was pretrained in bf16. Under AMP in fp16 every step is "
        "skipped and the scale falls to 0.",
        {
            "o1": "this is what fails. Activations of such a model can exceed fp16's range, and no "
            "loss scale makes them smaller",
            "o2": "O2 computes even more of the forward pass in fp16, with the same overflow",
            "pure_bf16": "bf16 is right, but there is no need to give up fp32 weights. Small "
            "updates would be lost",
        },
    ),
    Situation(
        "memory",
        ("bf16_gpu", "large", "start"),
        "An H100. Under AMP, weights, gradients and Adam's averages need 20 % more memory than it "
        "has. Nothing may be sharded or moved to the CPU.",
        {
            "amp_bf16": "AMP holds 16 bytes a parameter with Adam, as fp32 does. It only shrinks "
            "activations",
            "o2": "O2 also holds 16 bytes a parameter: 2 + 2 + 4 + 4 + 4 for weight, gradient, "
            "master and averages",
            "pure_bf16": "8 bytes a parameter fit, but rounding to nearest loses updates below "
            "half an ulp. Round at random",
        },
    ),
    Situation(
        "stalled",
        ("fp16_gpu", "any", "stalls"),
        "A V100, and a library that holds its model in fp16, which you cannot change. Gradients "
        "are scaled and finite. Updates are a ten-thousandth of their weights, and the loss does "
        "not move.",
        {
            "o1": "O1 needs fp32 weights in the model, but this model has to stay in fp16",
            "o3": "this is what you have. An update below 2^-12 of its fp16 weight changes nothing",
            "half_bn32": "fp32 batch norms help their statistics. All other weights are still "
            "fp16, and still do not move",
        },
    ),
    Situation(
        "too_coarse",
        ("bf16_gpu", "any", "coarse"),
        "An A100, and a model that is trained on its own output probabilities. Under AMP in bf16, "
        "rounding makes training and inference disagree. Activations and gradients are all far "
        "inside fp16's range.",
        {
            "amp_bf16": "this is what you have. Its 7 stored significand bits are too few, and its "
            "range gains nothing here",
            "pure_bf16_sr": "rounding is the trouble, and rounding weights at random adds noise",
            "o3": "fp16 has the bits, but O3 loses them: small updates vanish, and exp and sums "
            "are computed in fp16",
        },
    ),
)

right = {one.name: one.leaf.recipe for one in SITUATIONS}


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    got = read_dict(answer, right, subject="`choose_recipe` is")
    yield Case("", {f"the recipe for {name}": _read(one) for name, one in got.items()})


def _read(got: Any) -> str:
    """Return the name of a recipe or its class, or of its label: "Pure-bf16 + SR"."""
    if isinstance(got, BaseRecipe) or (isinstance(got, type) and issubclass(got, BaseRecipe)):
        return got.name
    name = re.sub("[-+ ]+", "_", got.strip().lower()) if isinstance(got, str) else ""
    return name if name in [recipe.name for recipe in ALL] else repr(got)


mistakes = [
    Mistake(
        f"{other} for {one.name}",
        f"{one.name}: {why}. See chapter {one.leaf.chapter}, and choose again from {one.offer}",
        answer={**right, one.name: other},
        violates="which recipe would you start from",
    )
    for one in SITUATIONS
    for other, why in one.others.items()
]

choose_recipe = Exercise(
    card,
    right,
    cases,
    mistakes,
    messages={
        f"the recipe for {one.name}": f"{one.name}: {{got}} is not one of {one.offer}"
        for one in SITUATIONS
    },
)
