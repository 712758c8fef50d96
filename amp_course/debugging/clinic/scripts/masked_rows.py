"""The loss of a batch is finite, and after its update the model returns only NaN.
After huggingface/transformers#31035.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy


def attend(queries, keys, values, keep):
    """Attention that sees real tokens only: `keep` (batch, keys) is True for those,
    False for padding.
    """
    bias = torch.where(keep, 0.0, -torch.inf).to(queries.dtype)
    scores = queries @ keys.mT / queries.shape[-1] ** 0.5 + bias[:, None, :]
    return scores.softmax(dim=-1) @ values


if __name__ == "__main__":
    torch.manual_seed(0)
    embed, project, head = nn.Embedding(10, 8), nn.Linear(8, 24), nn.Linear(8, 10)
    parameters = [*embed.parameters(), *project.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for number, lengths in enumerate([(6, 4, 2), (5, 6, 1), (6, 0, 3), (4, 6, 6)], 1):
        tokens = torch.randint(0, 10, (3, 6))
        keep = torch.arange(6) < torch.tensor(lengths)[:, None]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            queries, keys, values = project(embed(tokens)).chunk(3, dim=-1)
            logits = head(attend(queries, keys, values, keep))
        labels = tokens.masked_fill(~keep, -100)  # the loss leaves out padding
        loss = cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights = torch.cat([parameter.detach().flatten() for parameter in parameters])
        print(
            f"batch {number}: loss {loss:.4f}, {int(weights.isnan().sum())} of {len(weights)} "
            f"weights are NaN"
        )
