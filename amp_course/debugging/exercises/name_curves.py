"""Exercise 12 of chapter 11: eight recorded trainings, and the fault of each."""

import random
from collections.abc import Iterator
from typing import Any

from amp_course.checking import Card, Case, Exercise, Mistake, Wrong, read_dict
from amp_course.debugging.curves import FAULTS, SOUND

card = Card(
    chapter="debugging",
    name="name_curves",
    number=12,
    title="Which curve is which fault?",
    difficulty=3,
    importance=5,
    minutes=6,
    lines=8,
    takes="value",
    task="Eight trainings of the same net were recorded: the loss, the loss scale, and how far the "
    "weights are from where they began. Seven have a fault, each a different one, and one is "
    "sound. Fill in the dict `name_curves`: the name of a fault for each letter, and "
    f"{SOUND!r} for the sound one.",
    hints=(
        "First the losses that are not finite: from the start, for good after a while, or now and "
        "then? After that, look at the scale: which two fall without end, and what has become of "
        "the weights by then?",
        "Two losses never fall. In one of them the weights do not move either. What else could "
        "keep a loss where it is, although the weights move?",
        "A scaler skips a step with inf or NaN and halves its scale, whatever made the inf. So a "
        "scale that falls without end means that every step is skipped: because the loss is inf, "
        "or because an inf from an earlier step is still there.",
    ),
    why="Loss, scale and weights together tell more faults apart than any of them alone, and they "
    "cost a line each in your log.",
    alternative="write these three numbers to TensorBoard or wandb in every training, and look at "
    "the first hundred steps.",
)

# The name of a fault → what it does, and what the loss and the weights then show
SHOWN = {
    "nothing": ("nothing is wrong", "falls to the end", "move to the end"),
    "autocast-left-open": (
        "one region around all steps goes on with the casts of the first weights",
        "never falls",
        "move even farther than in a sound training",
    ),
    "clipped-while-scaled": (
        "a gradient of norm 1 is divided by the loss scale afterwards",
        "never falls",
        "hardly move",
    ),
    "still-scaled": (
        "the first update is 65,536 times too large",
        "is lost within three steps",
        "jump in the first step",
    ),
    "learning-rate-too-high": (
        "each update goes too far",
        "rises, and stays finite",
        "jump",
    ),
    "never-cleared": (
        "the first inf stays in the gradients, so every later step is skipped",
        "falls, then stands still and stays finite",
        "stop",
    ),
    "nan-in-data": (
        "only the steps of the bad batches are skipped",
        "is NaN in these, and falls to the end in the others",
        "move to the end",
    ),
    "beyond-fp16": (
        "the outputs grow until they overflow, whatever the scale is",
        "falls, then is inf or NaN in nearly every step",
        "stop",
    ),
}


def right(truth: dict[str, str]) -> dict[str, str]:
    """Return the faults that the trainings were given."""
    return truth


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Read the eight names."""
    given = answer(FAULTS) if callable(answer) else answer
    values = read_dict(given, FAULTS, subject="`name_curves` is")
    names = {letter: _read(letter, values[letter]) for letter in FAULTS}
    count = sum(names[letter] == fault for letter, fault in FAULTS.items())
    yield Case("", {f"curve {letter}": name for letter, name in names.items()}, {"count": count})


def _read(letter: str, value: Any) -> str:
    """Return a fault's name; case and the kind of dash do not matter."""
    name = str(value).strip().lower().replace("_", "-").replace(" ", "-")
    if name not in SHOWN:
        raise Wrong(f"{letter}: {value!r:.40} is none of the names: {', '.join(SHOWN)}")
    return name


def _contradiction(letter: str, given: str) -> str:
    """Say what the curve would show with the fault given, and what it shows."""
    (does, loss, weights), (_, other_loss, other_weights) = SHOWN[given], SHOWN[FAULTS[letter]]
    what, expected, seen = "loss", f"the loss {loss}", f"it {other_loss}"
    if loss == other_loss:
        what, expected, seen = "weights", f"the weights {weights}", f"they {other_weights}"
    return (
        f"{letter} is not {given!r}: there {does}, and {expected}. "
        f"Look at the {what} of {letter}: {seen}"
    )


mistakes = [
    Mistake(
        f"{letter}: {given}",
        f"{_contradiction(letter, given)}. ({{count}} of 8 are right.)",
        answer=lambda truth, letter=letter, given=given: truth | {letter: given},
        violates="the sound one" if SOUND in (given, FAULTS[letter]) else "the name of a fault",
    )
    for letter in FAULTS
    for given in SHOWN
    if given != FAULTS[letter]
]

name_curves = Exercise(
    card,
    right,
    cases,
    mistakes,
    messages={
        f"curve {letter}": f"{letter} is not {{got}}. ({{count}} of 8 are right.)"
        for letter in FAULTS
    },
)
