"""The decision guide: a leaf for every case, each backed by a section of the course that is
there.
"""

import itertools
import json
from pathlib import Path

import pytest

from amp_course.recipes.figures import guide_figure
from amp_course.recipes.guide import HARDWARE, LEAVES, MODELS, SYMPTOMS, Leaf, recommend
from amp_course.recipes.training import ALL

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LABELS = {recipe.label for recipe in ALL}


def headings(notebook: str) -> list[str]:
    cells = json.loads((NOTEBOOKS / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    lines = [
        line
        for cell in cells
        if cell["cell_type"] == "markdown"
        for line in "".join(cell["source"]).splitlines()
    ]
    return [line.lstrip("# ") for line in lines if line.startswith("#")]


@pytest.mark.parametrize(
    "leaf", LEAVES, ids=lambda leaf: f"{leaf.hardware}-{leaf.model}-{leaf.symptom}"
)
def test_each_leaf_is_a_recipe_backed_by_a_section_that_is_there(leaf: Leaf) -> None:
    assert leaf.section in headings(leaf.notebook)
    assert leaf.build().name == leaf.recipe in {recipe.name for recipe in ALL}
    assert leaf.hardware in HARDWARE and leaf.model in MODELS and leaf.symptom in {"any", *SYMPTOMS}
    assert leaf.why.endswith(".") and not leaf.advice.endswith(".")


def test_every_case_has_a_leaf_and_every_leaf_a_case() -> None:
    cases = itertools.product(HARDWARE, MODELS, SYMPTOMS)
    assert {id(recommend(*case)) for case in cases} == {id(leaf) for leaf in LEAVES}


def test_hardware_without_a_format_is_never_sent_there() -> None:
    """A GPU without bf16 gets no bf16 recipe, and a CPU that emulates all gets none at all;
    and nobody is sent to a recipe that diverges.
    """
    for case in itertools.product(HARDWARE, MODELS, SYMPTOMS):
        recipe = recommend(*case).recipe
        only = {"cpu": "o0", "cpu_bf16": "amp_bf16"}.get(case[0], recipe)
        assert recipe == only and recipe not in ("o3", "half_bn32")
        assert case[0] != "fp16_gpu" or "bf16" not in recipe


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (("tpu",), "unknown hardware 'tpu': choose one of cpu, cpu_bf16"),
        (("cpu", "gan"), "unknown model 'gan': choose one of any"),
        (("cpu", "any", "slow"), "unknown symptom 'slow': choose one of start"),
    ],
)
def test_an_unknown_word_is_told_the_choices(case: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        recommend(*case)


def test_the_figure_has_a_line_for_each_leaf() -> None:
    figure = guide_figure(LEAVES)
    assert "GPU with bf16 (A100 and newer): AMP bf16" in figure.alt
    written = [text.get_text() for text in figure.axes[0].texts]
    for leaf in LEAVES:
        assert leaf.advice in written
    assert [leaf.build().label for leaf in LEAVES] == [text for text in written if text in LABELS]
    assert min(text.get_fontsize() for text in figure.axes[0].texts) >= 8
