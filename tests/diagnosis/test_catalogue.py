"""faults.toml against the rules that use it, and its sentences as they were reviewed."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from amp_course.debugging.clinic.causes import CAUSES
from amp_course.debugging.clinic.examining import KNOWN
from amp_course.diagnosis.catalogue import (
    BEHAVIOURS,
    TRAINING,
    catalogue,
    current_name,
    finding,
    in_order,
    ordered,
    without_consequences,
)
from amp_course.diagnosis.findings import section_text
from amp_course.kit.paths import course_root
from tests.notebooks.test_numbering import sections

SENTENCES = Path(__file__).with_name("sentences.txt")
NAMES = [*catalogue()]
USING = ("diagnosis", "audit", "doctor", "patterns/checkpoints")
# A rule makes `f"{part}-not-restored"`; the other is a choice in the clinic without a rule.
NOT_SPELT_OUT = {name for name in NAMES if name.endswith("-not-restored")} | {"labels-out-of-range"}


@cache
def used() -> dict[str, str]:
    """Return name → where it is, for the catalogue's names and the arguments of `finding`."""
    found = {}
    folders = [course_root() / "amp_course" / name for name in USING]
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for name in _named(node):
                found[name] = f"{path.name}:{node.lineno}"  # type: ignore[attr-defined]
    return found


def _named(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and node.value in NAMES:
        yield str(node.value)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "finding"
        and node.args
    ):
        first = node.args[0]
        for choice in (first.body, first.orelse) if isinstance(first, ast.IfExp) else (first,):
            if isinstance(choice, ast.Constant):
                yield str(choice.value)


def test_rules_and_catalogue_have_the_same_names() -> None:
    unknown = {name: place for name, place in used().items() if name not in NAMES}
    assert not unknown
    assert {name for name in NAMES if name not in used()} <= NOT_SPELT_OUT


@pytest.mark.parametrize("name", NAMES)
def test_an_entry(name: str) -> None:
    one = catalogue()[name]
    assert one.of in BEHAVIOURS or one.of in TRAINING
    assert set(one.hides) <= {*BEHAVIOURS}
    assert set(one.consequence_of) <= {*NAMES} - {name}
    fixes = [
        (one.fix, one.code),
        *((part["fix"], part.get("code", one.code)) for part in one.variants.values()),
    ]
    for sentence in (one.sentence, one.cause, *(fix for fix, _ in fixes)):
        assert not sentence.endswith(".")
    assert not one.sentence[0].isupper() and all(fix[0].isupper() for fix, _ in fixes)
    for _, code in fixes:
        line = code.replace("…", "...").replace("{device}", "cpu")
        compile(line + ("\n    pass" if line.endswith(":") else ""), name, "exec")
    chapter, _, number = one.section.partition(".")
    assert int(number) in sections(int(chapter)), section_text(one.section)


def test_aliases_lead_to_one_name() -> None:
    aliases = [alias for one in catalogue().values() for alias in one.aliases]
    assert len(aliases) == len({*aliases}) and not {*aliases} & {*NAMES}
    assert current_name("unused-branch") == "infinite-derivative"
    assert current_name("diverges") == "diverges"
    assert finding("batch-norm-in-eval").name == "overflow-reached-buffer"
    with pytest.raises(KeyError):
        finding("no-such-fault")


def test_the_clinic_uses_the_catalogues_names() -> None:
    assert {*CAUSES} <= {*NAMES} and [*CAUSES] == sorted(CAUSES)
    assert {*KNOWN.values()} < {*CAUSES}


def test_a_finding_has_the_catalogues_words_or_a_rules_own() -> None:
    one = finding("still-scaled", loss_scale=1024.0, micro_batches=2, place="train.py:31")
    assert one.evidence == {"loss scale": 1024.0, "micro-batches": 2} and one.place == "train.py:31"
    assert one.hides == ("clipping",) and one.grade == "fault"
    assert finding("host-waits").grade == "advice"
    assert finding("still-scaled", "its own words").cause == "its own words"


def test_a_fix_depends_on_the_place_and_the_device() -> None:
    plain = finding("division-by-zero")
    adam = finding("division-by-zero", variant="optimizer", op="addcdiv")
    assert "clamp_min" in plain.code and "clamp_min" not in adam.code and "eps" in adam.fix
    assert adam.name == "division-by-zero" and adam.evidence == {"op": "addcdiv"}
    assert 'device_type="mps", enabled=False' in finding("beyond-fp16").on("mps").code


def test_order_of_harm_and_consequences() -> None:
    right = ["masked-row", "never-cleared", "scheduler-ran-on", "scale-keeps-falling", "host-waits"]
    found = in_order(map(finding, [*reversed(right), "never-cleared"]))
    assert [one.name for one in found] == right
    right.remove("scale-keeps-falling")
    assert [one.name for one in without_consequences(found)] == right
    assert without_consequences([finding("scale-keeps-falling")])


def test_a_fault_of_several_optimizers_names_them_all() -> None:
    found = [finding("still-scaled", optimizer=number, norm=2.0) for number in (0, 1, 1)]
    assert [one.evidence["optimizer"] for one in ordered(found)] == ["the first and the second"]
    assert [one.evidence for one in ordered(found[:1], 1)] == [{"norm": 2.0}]


def sentences() -> str:
    """Return everything that the catalogue says, as a learner reads it."""
    pages = []
    for name, one in catalogue().items():
        parts = [str(finding(name)), *(f"({v}) {finding(name, variant=v)}" for v in one.variants)]
        notes = [one.grade] if one.grade != "fault" else []
        notes += [f"follows from {cause}" for cause in one.consequence_of]
        notes += [f"also called {alias}" for alias in one.aliases]
        notes += [f"hides {what}" for what in one.hides]
        if notes:
            parts.append(f"    [{', '.join(notes)}]")
        lines = (line for part in parts for line in part.splitlines())
        filled = (textwrap.fill(line, 100, subsequent_indent=" " * 8) for line in lines)
        pages.append("\n".join(filled))
    return "\n\n".join(pages) + "\n"


def test_the_sentences_are_those_that_were_reviewed() -> None:
    """After a change of faults.toml: read what `python -m tests.diagnosis.test_catalogue` has
    changed in sentences.txt.
    """
    assert SENTENCES.read_text("utf-8") == sentences()


if __name__ == "__main__":
    SENTENCES.write_text(sentences(), "utf-8")
