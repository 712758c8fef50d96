import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 4


def groups(loader, size):
    """Hand out lists of up to `size` batches; the last of an epoch may be shorter."""
    group = []
    for batch in loader:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def main():
    torch.manual_seed(3)
    x = torch.randn(704, 20)
    y = (x[:, :5].sum(1) + 0.1 * torch.randn(704) > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)  # 22 batches: 4 + 4 + 4 + 4 + 4 + 2

    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 2))
    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": no_decay, "weight_decay": 0.0, "lr": 8e-3}], lr=4e-3
    )
    scaler = torch.amp.GradScaler("cpu")

    for epoch in range(8):
        losses = []
        for group in groups(loader, ACCUMULATE):
            for xb, yb in group:
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = F.cross_entropy(model(xb), yb) / len(group)
                scaler.scale(loss).backward()
                losses.append(loss.item() * len(group))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        print(epoch, sum(losses) / len(losses))


if __name__ == "__main__":
    main()
