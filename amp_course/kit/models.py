"""Build the course's three models: a stack of linear layers, a small ResNet, a character GPT.

Each is plain PyTorch without anything about precision: AMP is applied from outside. `for_device`
builds the size for a CPU (a step takes some tens of milliseconds on two cores) or for a GPU (large
enough to keep tensor cores busy); `batch_size_for` returns the batch size that goes with it.
"""

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _on_cpu(device: torch.device | str) -> bool:
    return torch.device(device).type == "cpu"


class SimpleNet(nn.Module):
    """Map (batch, width) to (batch, width) by three linear layers, with ReLU after the first two.

    Example: SimpleNet(1024)(torch.randn(128, 1024)).shape → (128, 1024)
    Source: the network of Paddle's mixed precision tutorial, width 4096 and batch 512 there.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(width, width)
        self.linear2 = nn.Linear(width, width)
        self.linear3 = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.linear1(x))
        x = F.relu(self.linear2(x))
        return self.linear3(x)

    @classmethod
    def for_device(cls, device: torch.device | str) -> Self:
        """Build the size for `device`, on it, of width `width_for(device)`."""
        return cls(cls.width_for(device)).to(device)

    @staticmethod
    def width_for(device: torch.device | str) -> int:
        """Return the width of `for_device`: 1024 on a CPU, 4096 elsewhere."""
        return 1024 if _on_cpu(device) else 4096

    @staticmethod
    def batch_size_for(device: torch.device | str) -> int:
        """Return the batch size that goes with `for_device`: 128 on a CPU, 512 elsewhere."""
        return 128 if _on_cpu(device) else 512


class ResidualBlock(nn.Module):
    """Add two 3×3 convolutions with batch norm to their input:
    (batch, channels, h, w) → the same shape.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        # No bias: the following batch norm would subtract it again.
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(x + y)


class DigitsResNet(nn.Module):
    """Classify 8x8 digits: (batch, 1, 8, 8) → logits (batch, 10).

    A 3x3 stem, a residual block at 8x8, a max pool, a block at 4x4, the mean over the picture and a
    linear head.

    Example: DigitsResNet(32)(torch.rand(64, 1, 8, 8)).shape → (64, 10)
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.block1 = ResidualBlock(channels)
        self.block2 = ResidualBlock(channels)
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = self.block1(x)
        x = self.block2(F.max_pool2d(x, 2))
        return self.head(x.mean(dim=(2, 3)))

    @classmethod
    def for_device(cls, device: torch.device | str) -> Self:
        """Build the size for `device`, on it: 32 channels on a CPU, 256 elsewhere."""
        return cls(32 if _on_cpu(device) else 256).to(device)

    @staticmethod
    def batch_size_for(device: torch.device | str) -> int:
        """Return the batch size that goes with `for_device`: 64 on a CPU, 512 elsewhere."""
        return 64 if _on_cpu(device) else 512


class TransformerBlock(nn.Module):
    """Add causal self-attention, then a perceptron, each after a layer norm:
    (batch, context, width) → the same shape.
    """

    def __init__(self, heads: int, width: int) -> None:
        """Make the layers; `heads` divides `width`."""
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def attend(self, x: Tensor) -> Tensor:
        """Mix each position with those before it, head by head; return the shape of x."""
        batch, context, width = x.shape
        # (batch, context, 3 * width) → three times (batch, heads, context, width / heads)
        q, k, v = (
            self.qkv(x)
            .view(batch, context, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, context, width))


class CharGPT(nn.Module):
    """Predict the next character at every position: ids (batch, context) → logits (batch, context,
    vocab_size).

    Pre-norm blocks, learned position embeddings, an untied head.

    Raises ValueError if `heads` does not divide `width` and, in the forward pass, for more than
    `context` ids.
    Example: CharGPT(99, context=64, layers=4, heads=4, width=128)(ids).shape → (16, 64, 99) for ids
             of (16, 64)
    Source: the shape of GPT-2 as in karpathy/nanoGPT, without dropout.
    """

    def __init__(self, vocab_size: int, context: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(
                f"width {width} cannot be split among {heads} heads: choose a multiple of heads as "
                "width."
            )
        self.vocab_size = vocab_size
        self.context = context
        self.characters = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(TransformerBlock(heads, width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        # As in GPT-2: what the blocks add is tiny next to torch's own embeddings, from N(0, 1), and
        # training starts slowly.
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[-1]
        if length > self.context:
            raise ValueError(
                f"{length} ids in a row, but this model has only {self.context} positions: "
                f"pass ids[:, -{self.context}:] or build the model with a longer context."
            )
        x = self.characters(ids) + self.positions(torch.arange(length, device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    @classmethod
    def for_device(cls, device: torch.device | str, vocab_size: int) -> Self:
        """Build the size for `device`, on it: 2 layers of width 256 on a CPU,
        6 of width 384 elsewhere.
        """
        if _on_cpu(device):
            return cls(vocab_size, context=64, layers=2, heads=4, width=256).to(device)
        return cls(vocab_size, context=256, layers=6, heads=6, width=384).to(device)

    @staticmethod
    def batch_size_for(device: torch.device | str) -> int:
        """Return the batch size that goes with `for_device`: 8 on a CPU, 64 elsewhere."""
        return 8 if _on_cpu(device) else 64
