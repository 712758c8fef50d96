"""Published figures of GPUs, to predict what a step would take on a card that is not at hand.

Peaks are for dense matrices. Since Ampere, data sheets also print a rate for 2:4 sparse matrices,
often on its own: it is twice as high, and ordinary training does not reach it. All peaks are at the
boost clock, which a card under load may not hold. 16-bit rates are those with fp32 accumulation, as
in PyTorch's matmuls: for consumer cards, half of the number on the box.
"""

from __future__ import annotations

from dataclasses import dataclass

from amp_course.kit.toml_data import read_toml
from amp_course.speed.roofline import Roofline

# assumed for all cards: queueing an op's kernel from Python takes the CPU about 5 µs
LAUNCH_SECONDS = 5e-6


@dataclass(frozen=True)
class Card:
    """One GPU as its maker describes it.

    tera:      format → TFLOP/s, dense; a missing format has no fast units
    gigabytes_per_second: memory bandwidth
    source:    where the numbers are from
    printed:   the sparse 16-bit rate, in TFLOP/s, that the data sheet prints, perhaps on its own;
               None for a card without one
    """

    name: str
    tera: dict[str, float]
    gigabytes_per_second: float
    source: str
    printed: float | None = None

    def roofline(self) -> Roofline:
        peaks = {name: rate * 1e12 for name, rate in self.tera.items()}
        return Roofline(self.name, peaks, self.gigabytes_per_second * 1e9, LAUNCH_SECONDS)


CARDS = tuple(Card(**row) for row in read_toml(__file__, "cards.toml")["card"])


def find_card(name: str) -> Card:
    """Return a card by its name, in any case. Raises KeyError, with the names there are."""
    for card in CARDS:
        if card.name.lower() == name.strip().lower():
            return card
    raise KeyError(
        f"no card is called {name!r}: choose one of {', '.join(card.name for card in CARDS)}"
    )
