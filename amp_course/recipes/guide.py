"""Choose a recipe by hardware, model and symptom, from guide.toml.

Each leaf names the section of the course that backs it. It is a place to start, not a law: the
report card and the survival map measure your own case.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from amp_course.kit.toml_data import read_toml
from amp_course.recipes.training import BaseRecipe, find

_GUIDE = read_toml(__file__, "guide.toml")
HARDWARE: dict[str, str] = _GUIDE["hardware"]
MODELS: dict[str, str] = _GUIDE["model"]
SYMPTOMS: dict[str, str] = _GUIDE["symptom"]


@dataclass(frozen=True)
class Leaf:
    """A recommendation.

    hardware, model, symptom: keys of HARDWARE, MODELS, SYMPTOMS; "any" fits every model or symptom
    recipe, options:   arguments of `amp_course.recipes.find`
    advice:            what to do, in a line
    why:               the reason, in a sentence
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
        """Return the recipe with its options."""
        return find(self.recipe, **self.options)

    @property
    def chapter(self) -> str:
        """The chapter and section: "02 § 8"."""
        return f"{self.notebook[:2]} § {self.section.partition('.')[0]}"


LEAVES = tuple(Leaf(**row) for row in _GUIDE["leaf"])  # in order: the first that fits is used


def recommend(hardware: str, model: str = "any", symptom: str = "start") -> Leaf:
    """Return the leaf for a case.

    Raises ValueError for a word that is not in HARDWARE, MODELS or SYMPTOMS.
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
        if leaf.hardware == hardware
        and leaf.model in ("any", model)
        and leaf.symptom in ("any", symptom)
    )
