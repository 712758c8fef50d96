"""Models to trace."""

import torch
from torch import nn

from amp_course.kit.models import CharGPT, DigitsResNet, SimpleNet


def models():
    torch.manual_seed(0)
    return {
        "SimpleNet": (SimpleNet(8), (torch.randn(2, 8),)),
        "DigitsResNet": (DigitsResNet(4), (torch.rand(2, 1, 8, 8),)),
        "CharGPT": (CharGPT(9, 8, 2, 2, 8), (torch.randint(0, 9, (2, 8)),)),
        "encoder": (
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
            (torch.randn(2, 5, 16),),
        ),
        "LSTM": (nn.LSTM(3, 4), (torch.randn(5, 2, 3),)),
    }


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x):
        return self.line(self.line(x).relu_())
