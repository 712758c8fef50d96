"""What libraries call the same thing, and one training loop in the words of each (`loops/`).

`AMP` has seven libraries in 16 bits, `LOW_BIT` four sources below 16 bits. Plain data, in TOML.
"""

from amp_course.recipes.phrasebook.book import Library, Phrase, Phrasebook, read_book

AMP = read_book("amp.toml")
LOW_BIT = read_book("low_bit.toml")

__all__ = ["AMP", "LOW_BIT", "Library", "Phrase", "Phrasebook"]
