"""The decision guide: a leaf for every case, each backed by a section of the course that is
there.
"""

import itertools
import json
from pathlib import Path

import pytest

from amp_course.recipes.figures import guide_figure
from amp_course.recipes.guide import HARDWARE, LEAVES, MODELS, SYMPTOMS, Leaf, recommend
from amp_course.recipes.training import ALL, O1

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
def test_each_leaf_is_backed_by_a_section_that_is_there(leaf: Leaf) -> None:
    assert leaf.section in headings(leaf.notebook)


@pytest.mark.parametrize(
    "leaf", LEAVES, ids=lambda leaf: f"{leaf.hardware}-{leaf.model}-{leaf.symptom}"
)
def test_each_leaf_is_a_recipe_for_words_that_there_are(leaf: Leaf) -> None:
    assert leaf.build().name == leaf.recipe in {recipe.name for recipe in ALL}
    assert leaf.hardware in HARDWARE and leaf.model in MODELS and leaf.symptom in {"any", *SYMPTOMS}
    assert leaf.why.endswith(".") and not leaf.advice.endswith(".")


def test_every_case_has_a_leaf_and_every_leaf_a_case() -> None:
    cases = itertools.product(HARDWARE, MODELS, SYMPTOMS)
    assert {id(recommend(*case)) for case in cases} == {id(leaf) for leaf in LEAVES}


def test_hardware_without_a_format_is_never_sent_there() -> None:
    """A GPU without bf16 gets no bf16 recipe, and a CPU that emulates all gets none at all."""
    for case in itertools.product(HARDWARE, MODELS, SYMPTOMS):
        recipe = recommend(*case).recipe
        if case[0] == "cpu":
            assert recipe == "o0"
        if case[0] == "fp16_gpu":
            assert "bf16" not in recipe
        if case[0] == "cpu_bf16":
            assert recipe == "amp_bf16"


def test_no_case_ends_in_a_recipe_that_dies() -> None:
    assert not {
        recommend(*case).recipe for case in itertools.product(HARDWARE, MODELS, SYMPTOMS)
    } & {"o3", "half_bn32"}


def test_what_the_guide_says_of_some_cases() -> None:
    assert recommend("fp16_gpu").build() == O1()
    assert recommend("fp16_gpu", "any", "stalls").recipe == "o2"
    assert recommend("bf16_gpu").recipe == "amp_bf16"
    assert recommend("bf16_gpu", "large").recipe == "pure_bf16_sr"
    assert recommend("bf16_gpu", "any", "coarse").chapter == "01 § 5"
    assert recommend("cpu").chapter == "00 § 2"


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
