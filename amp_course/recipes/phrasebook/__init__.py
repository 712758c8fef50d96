"""What seven libraries call the same thing, and the same training loop in the words of each (`loops/`)."""

from amp_course.recipes.phrasebook.libraries import LIBRARIES, Library
from amp_course.recipes.phrasebook.phrases import PHRASES, Phrase
from amp_course.recipes.phrasebook.table import Phrasebook

__all__ = ["LIBRARIES", "PHRASES", "Library", "Phrase", "Phrasebook"]
