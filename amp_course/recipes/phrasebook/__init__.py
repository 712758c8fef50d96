"""What libraries call the same thing, and the same training loop in each library (`loops/`).

`AMP` has seven libraries for 16 bits, `LOW_BIT` four sources below 16 bits; `TRAINERS` says what
the arguments of four trainers do to a step. Plain data, in TOML.
"""

from amp_course.recipes.phrasebook.book import Library, Phrase, Phrasebook, read_book

AMP = read_book("amp.toml")
LOW_BIT = read_book("low_bit.toml")
TRAINERS = read_book("trainers.toml")

__all__ = ["AMP", "LOW_BIT", "TRAINERS", "Library", "Phrase", "Phrasebook"]
