"""A small net under the names of large ones: what is examined is the loop around it."""

import torch
from torch import nn


class _Small(nn.Module):
    def __init__(self, weights=None, num_classes=1000, **options):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 4, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, num_classes)

    def forward(self, images):
        pooled = self.avgpool(self.relu(self.bn1(self.conv1(images))))
        return self.fc(torch.flatten(pooled, 1))


resnet18 = resnet34 = resnet50 = _Small


class VGG16_Weights:
    """Weights that nobody loads."""

    IMAGENET1K_V1 = None


class vgg16(nn.Module):
    """The order of its layers, with eight channels in all of them."""

    def __init__(self, weights=None):
        super().__init__()
        layers, channels = [], 3
        for count in (2, 2, 3, 3, 3):
            for _ in range(count):
                layers += [nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(inplace=True)]
                channels = 8
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
