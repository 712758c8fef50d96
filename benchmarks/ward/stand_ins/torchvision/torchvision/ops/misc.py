"""A norm that does not train."""

from torch import nn


class FrozenBatchNorm2d(nn.BatchNorm2d):
    """Batch norm in evaluation mode."""

    def train(self, mode=True):
        """Stay in evaluation mode."""
        return super().train(False)
