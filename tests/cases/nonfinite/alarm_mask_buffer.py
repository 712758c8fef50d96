# EXPECTED: no harm, in both tools: a causal mask of -inf is kept as a buffer (open_clip's
# TextTransformer).
import torch
from torch import nn

from tests.cases.tools import doctor, first_nonfinite


class Text(nn.Module):
    def __init__(self, n=6, d=16):
        super().__init__()
        self.att = nn.MultiheadAttention(d, 2, batch_first=True)
        self.head = nn.Linear(d, 5)
        self.register_buffer(
            "attn_mask", torch.full((n, n), float("-inf")).triu_(1), persistent=False
        )

    def forward(self, x):
        return self.head(self.att(x, x, x, attn_mask=self.attn_mask, need_weights=False)[0])


torch.manual_seed(0)
model = Text()
optimizer = torch.optim.AdamW(model.parameters())
x, y = torch.randn(2, 6, 16), torch.randint(0, 5, (2, 6))


def step():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    optimizer.step()
    return loss


print(first_nonfinite(step, model=model, optimizer=optimizer))
print(doctor(model, lambda x, y: step(), [(x, y)] * 4, optimizer, timing=0))
