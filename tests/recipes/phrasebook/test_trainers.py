"""The trainers' table: each cell says how it is known, it shows itself, and a cell that is not what
a run showed is found.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from amp_course.recipes.phrasebook import AMP, LOW_BIT, TRAINERS

ROOT = Path(__file__).parents[3]
SLUGS = [library.slug for library in TRAINERS.libraries]
PINS = (ROOT / "tools/phrasebook-constraints.txt").read_text().splitlines()
SOURCE = r"(\w+/)+\w+\.py:\d+(-\d+)?( \([^)]+\))?"


def test_each_cell_is_short_and_was_seen_or_has_a_source():
    assert SLUGS == ["hf", "lightning", "accelerate", "fabric"]
    assert len(TRAINERS.phrases) == len({phrase.thing for phrase in TRAINERS.phrases}) == 9
    for phrase in TRAINERS.phrases:
        assert list(phrase.words) == SLUGS and set(phrase.seen) | set(phrase.sources) == set(SLUGS)
        for slug, words in phrase.words.items():
            assert 0 < len(words.split()) <= 13 and words.count("`") % 2 == 0, (phrase.thing, slug)
            assert bool(phrase.seen.get(slug)) != (slug in phrase.sources), (phrase.thing, slug)
            assert phrase.mark(slug) == ("●" if slug in phrase.seen else "○")
        for found in phrase.sources.values():
            assert all(re.fullmatch(SOURCE, one) for one in found.split("; "))
    read = [(one.thing, slug) for one in TRAINERS.phrases for slug in one.sources]  # few
    assert read == [("the scaler, in fp16", "hf"), ("the scaler, in fp16", "accelerate")]


@pytest.mark.parametrize("library", TRAINERS.libraries, ids=SLUGS)
def test_versions_are_those_installed_and_names_those_that_the_table_uses(library):
    assert library.version.replace(" ", "==") in PINS and library.source.startswith("https://")
    words = " ".join(phrase.words[library.slug] for phrase in TRAINERS.phrases)
    for name in library.names:
        assert re.search(rf"\b{name.split('.')[-1]}\b", f"{words} {library.name}"), name


def test_it_shows_how_each_cell_is_known():
    text, html = repr(TRAINERS), TRAINERS._repr_html_()
    assert "  Accelerate            ○ made on a GPU" in text and "● seen in a run on a CPU" in text
    assert html.count("<th ") == 4 + len(TRAINERS.phrases) and html.count("<td ") == 36
    assert html.count("○") == 3 and html.count("●") == 35  # with those of the legend
    assert 'title="seen: scheduler: steps; scale: halved"' in html
    assert 'title="accelerate/accelerator.py:578-584"' in html
    for book in (AMP, LOW_BIT):
        assert "●" not in repr(book) and "seen" not in book._repr_html_()


def table_as_seen(slug):
    """What a run would say that does just what the table says."""
    facts = [phrase.seen.get(slug, {}) for phrase in TRAINERS.phrases]
    return {fact: value for some in facts for fact, value in some.items()}


@pytest.mark.parametrize("slug", SLUGS)
def test_a_run_that_does_what_the_table_says_agrees(load, slug):
    main = load("phrasebook_trainers")
    said = table_as_seen(slug)
    assert len(said) == sum(len(phrase.seen.get(slug, {})) for phrase in TRAINERS.phrases) > 15
    assert main.compare(TRAINERS, slug, said) == []


def test_a_cell_that_is_not_as_seen_is_found(load):
    main = load("phrasebook_trainers")
    seen = table_as_seen("lightning") | {"scheduler": "waits"}
    (wrong,) = main.compare(TRAINERS, "lightning", seen)
    assert wrong == (
        "Lightning Trainer, 'a skipped step', scheduler: the table says steps, the run says waits"
    )
    del seen["scheduler"]
    (wrong,) = main.compare(TRAINERS, "lightning", seen)
    assert wrong.endswith("scheduler: the table says steps, the run says not seen")
    seen |= {"scheduler": "steps", "lr": "0.1"}
    (wrong,) = main.compare(TRAINERS, "lightning", seen)
    assert wrong == "Lightning Trainer, lr: the table says nothing, the run says 0.1"


@pytest.mark.parametrize("slug", SLUGS[:1])
def test_a_trainer_that_is_not_installed_is_one_sentence_and_no_error(
    load, monkeypatch, capsys, slug
):
    main = load("phrasebook_trainers")
    monkeypatch.setattr(main.util, "find_spec", lambda name: None)
    (library,) = TRAINERS.only(slug).libraries
    assert main.examine(library) == []
    package = library.version.split()[0]
    assert capsys.readouterr().out == (
        f"trainers, {library.name}: not run, because {package} is not installed here.\n"
    )


def test_a_run_that_fails_and_another_version_are_named(load, monkeypatch, capsys):
    main = load("phrasebook_trainers")
    library = replace(TRAINERS.libraries[2], version="torch 0.1", names=("torch.amp.autocat",))

    def fail():
        raise OSError("no such thing")

    monkeypatch.setitem(main.RUNS, "accelerate", fail)
    version, name, failed = main.examine(library)
    assert version.startswith("torch is 2.") and version.endswith("the table describes 0.1")
    assert name == "Accelerate has no torch.amp.autocat, which the table uses"
    assert failed == "Accelerate could not be run: OSError: no such thing"
    monkeypatch.setitem(main.RUNS, "accelerate", lambda: table_as_seen("accelerate"))
    monkeypatch.setattr(main, "described", lambda library: [])
    assert main.examine(library) == [] and capsys.readouterr().out == (
        "trainers, Accelerate: 19 facts seen, each as the table says\n"
    )


def plain_loop(load, *, unscale=True, wait=False, fused=False, share=2):
    """A loop of torch's own, watched as the trainers are."""
    given = load("phrasebook_trainer_parts")
    parts = given.net(fused=fused)
    with parts.watched(scaled=True):
        for number, (inputs, targets) in enumerate(given.batches()):
            with torch.autocast("cpu", torch.float16):
                outputs = parts.model(inputs)
            parts.scaler.scale(parts.loss(outputs.float(), targets) / share).backward()
            if number % 2:
                if unscale:
                    parts.scaler.unscale_(parts.optimizer)
                nn.utils.clip_grad_norm_(parts.model.parameters(), 0.5)
                before = parts.scaler.get_scale()
                parts.scaler.step(parts.optimizer)
                parts.scaler.update()
                if not wait or parts.scaler.get_scale() == before:
                    parts.schedule.step()
                parts.optimizer.zero_grad()
    return parts


def test_what_is_watched_is_told_apart(load):
    parts = plain_loop(load)
    seen = [parts.at(one) for one in ("layer", "layer's dtype", "loss")]
    assert seen == ["on", "float16", "off"]
    assert (parts.scheduler(), parts.scale(), parts.moves()) == ("steps", "halved", "1")
    assert (parts.unscaled(), parts.clipped()) == ("before the step", "unscaled")
    assert (parts.limit(), parts.scaled(), parts.divided()) == ("0.5", "scaled", "micro-batches")
    assert (parts.dtypes(), parts.kept()) == ("float32", "")
    other = plain_loop(load, unscale=False, wait=True, share=1)
    assert (other.scheduler(), other.unscaled()) == ("waits", "in the step")
    assert (other.clipped(), other.divided()) == ("scaled", "nothing")
    assert plain_loop(load, fused=True).scheduler() == "steps"


def test_an_error_with_other_words_is_not_taken_for_the_one_expected(load):
    given = load("phrasebook_trainer_parts")

    def run(message):
        raise RuntimeError(message)

    assert given.raised("unscaling", run, message="no unscaling") == "RuntimeError"
    assert given.raised("unscaling", lambda: None) == "nothing"
    with pytest.raises(RuntimeError, match="no torch"):
        given.raised("unscaling", run, message="no torch")
