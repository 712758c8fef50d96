"""After some steps the loss is NaN in fp16, and in fp32 it never is.
After huggingface/transformers#5651.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy


class Block(nn.Module):
    """The feed-forward layer of a T5: norm, `wi`, ReLU and `wo`, added to the hidden states
    (tokens, width).
    """

    def __init__(self, width, inner):
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6, elementwise_affine=False)
        self.wi = nn.Linear(width, inner, bias=False)
        self.wo = nn.Linear(inner, width, bias=False)

    def forward(self, hidden):
        """Return the hidden states for the next layer."""
        inner = torch.relu(self.wi(self.norm(hidden)))
        return hidden + self.wo(inner)


def train(model, batches, in_fp16):
    """Train a model to tell which token it was given; return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=in_fp16)
    losses = []
    for tokens in batches:
        with torch.autocast("cpu", dtype=torch.float16, enabled=in_fp16):
            loss = cross_entropy(model(tokens), tokens)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    for in_fp16 in (True, False):
        torch.manual_seed(0)
        block = Block(16, 64)
        # as large as those of a checkpoint that was trained in bf16
        for weight in block.parameters():
            weight.data *= 261
        model = nn.Sequential(nn.Embedding(12, 16), block, block.norm, nn.Linear(16, 12))
        batches = [torch.randint(0, 12, (4,)) for _ in range(16)]
        losses = train(model, batches, in_fp16)
        print(f"{'fp16' if in_fp16 else 'fp32'}:", *(f"{loss:.2f}" for loss in losses))
