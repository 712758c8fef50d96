"""Nothing of it is called."""

import enum


class InterpolationMode(enum.Enum):
    """How a size is changed."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
