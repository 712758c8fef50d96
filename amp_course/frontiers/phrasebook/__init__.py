"""What three libraries and one report call the same thing below 16 bits; a training loop in the words of each (`loops/`)."""

from amp_course.frontiers.phrasebook.libraries import LIBRARIES, LowBitLibrary
from amp_course.frontiers.phrasebook.phrase import LowBitPhrase
from amp_course.frontiers.phrasebook.scaling import SCALING
from amp_course.frontiers.phrasebook.table import LowBitPhrasebook
from amp_course.frontiers.phrasebook.training import TRAINING

LOW_BIT = LowBitPhrasebook(LIBRARIES, (*TRAINING, *SCALING))

__all__ = ["LIBRARIES", "LOW_BIT", "LowBitLibrary", "LowBitPhrase", "LowBitPhrasebook"]
