"""Images to files."""

import torch


def save_image(images, file, **options):
    """Save the first image, as torch does."""
    torch.save(images.detach()[:1].clone(), file)


def make_grid(images, **options):
    """Return the first image."""
    return images[0]
