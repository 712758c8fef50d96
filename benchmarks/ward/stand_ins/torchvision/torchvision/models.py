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
