"""What the tests of the recipes share: a small net with batch norm,
and batches of which some overflow in fp16.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy


class Setting:
    """A net, its batches, and the optimizer, all the same in every call."""

    loss_fn = staticmethod(cross_entropy)

    def __init__(self, steps=24, overflow_at=()):
        generator = torch.Generator().manual_seed(5)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self._model = nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)
            )
        self.batches = [
            (
                torch.randn(8, 1, 6, 6, generator=generator),
                torch.randint(0, 5, (8,), generator=generator),
            )
            for _ in range(steps)
        ]
        for number in overflow_at:
            inputs, targets = self.batches[number]
            self.batches[number] = inputs * 1e6, targets  # inf in fp16

    def model(self):
        return copy.deepcopy(self._model)

    @staticmethod
    def sgd(params):
        return torch.optim.SGD(params, lr=0.05, momentum=0.9)

    @staticmethod
    def adam(params):
        return torch.optim.Adam(params, lr=1e-2)

    def prepare(self, recipe, make_optimizer=None):
        return recipe.prepare(self.model(), make_optimizer or self.sgd, self.loss_fn)


@pytest.fixture(autouse=True, scope="module")
def tiny_nets(one_thread):
    """Nets this small lose by a second thread, most of all on a machine with other work."""


@pytest.fixture
def setting():
    return Setting()


@pytest.fixture
def overflowing():
    return Setting(overflow_at=(3, 4, 11, 19))
