"""A small net under the names of large ones: what is examined is the loop around it."""

from torch import nn


def _small(weights=None, num_classes=1000, **options):
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, 4, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, num_classes),
    )  # fmt: skip


resnet18 = resnet34 = resnet50 = _small
