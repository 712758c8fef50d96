"""A substitute for torchvision, for the ward's scripts: random images in place of a download, and
plain transforms.

It has only what those scripts use. Pixels are tensors of uint8 all along, where torchvision has PIL
images.
"""

from torchvision import datasets, models, transforms, utils

__all__ = ["datasets", "models", "transforms", "utils"]
__version__ = "0.0"
