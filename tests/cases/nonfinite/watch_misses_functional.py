# EXPECTED: the watch reports scores made by `@` that fp16 cannot hold, or its docstring says that
# it does not see them.
import torch
from torch import nn

from tests.cases.tools import watch_ranges


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return (100 * self.query(x) @ (100 * self.key(x)).T).softmax(-1) @ x


torch.manual_seed(0)
model, x = Attention(), torch.randn(12, 16) * 8
with watch_ranges(model, torch.float16, every=1) as ranges:
    model(x).square().mean().backward()
assert (100 * model.query(x) @ (100 * model.key(x)).T).abs().max() > 65504
print("bells:", len(ranges.bells))
print("documented:", "attention scores" in watch_ranges.__doc__)
