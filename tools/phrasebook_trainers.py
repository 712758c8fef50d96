"""Hold the trainers' table against what four trainers do on a CPU; `make test-phrasebook` runs this
in the phrasebook's environment.

    python tools/phrasebook_trainers.py

Prints a line for each trainer, and one for each fact that the table says otherwise, with both
values; then it ends with 1. A trainer that is not installed is said to be so, and is no error.
Nothing is downloaded: models are made from a configuration.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from importlib import metadata, util
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import phrasebook_run
from phrasebook_trainer_hf import accelerate, hf
from phrasebook_trainer_lightning import fabric, lightning

from amp_course.recipes.phrasebook import TRAINERS, Library, Phrasebook

RUNS = {"hf": hf, "lightning": lightning, "accelerate": accelerate, "fabric": fabric}
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_DISABLED": "true",
}  # for Hugging Face's libraries, and what they import


def compare(book: Phrasebook, slug: str, seen: Mapping[str, str]) -> list[str]:
    """Return where the table says something else than was seen of a trainer, with both values;
    what it says and nobody saw; what was seen and it leaves out.
    """
    (library,) = book.only(slug).libraries
    wrong, left = [], dict(seen)
    for phrase in book.phrases:
        for fact, said in phrase.seen.get(slug, {}).items():
            found = left.pop(fact, "not seen")
            if found != said:
                where = f"{library.name}, {phrase.thing!r}, {fact}"
                wrong.append(f"{where}: the table says {said}, the run says {found}")
    return wrong + [
        f"{library.name}, {fact}: the table says nothing, the run says {found}"
        for fact, found in left.items()
    ]


def described(library: Library) -> list[str]:
    """Return what is wrong with a trainer as it is installed: its version, or a name that the table
    uses.
    """
    package, said = library.version.split()
    found = metadata.version(package)
    wrong = [] if found == said else [f"{package} is {found}, and the table describes {said}"]
    missing = phrasebook_run.missing(list(library.names))
    return wrong + [f"{library.name} has no {name}, which the table uses" for name in missing]


def examine(library: Library) -> list[str]:
    """Run a trainer and print what was found of it; return what is wrong."""
    package = library.version.split()[0]
    module = package.replace("-", "_")
    if util.find_spec(module) is None:
        print(f"trainers, {library.name}: not run, because {package} is not installed here.")
        return []
    seen: dict[str, str] = {}
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        wrong = described(library)
        try:
            seen = RUNS[library.slug]()
        except Exception as error:
            return [*wrong, f"{library.name} could not be run: {type(error).__name__}: {error}"]
    wrong += compare(TRAINERS, library.slug, seen)
    if not wrong:
        print(f"trainers, {library.name}: {len(seen)} facts seen, each as the table says")
    return wrong


def main() -> int:
    """Examine all four; return 1 if anything is not as the table says."""
    os.environ |= QUIET
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    wrong = [one for library in TRAINERS.libraries for one in examine(library)]
    for one in wrong:
        print(f"WRONG: trainers, {one}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
