"""Train a small net in fp16 on the GPU: the loop that `tools/on_gpu.sh` gives to the doctor and to
`explain`.

python tools/gpu_loop.py                  the training, 60 updates
python tools/gpu_loop.py --clip-scaled    the same with a fault: it clips gradients that are still
scaled
python tools/gpu_loop.py --explain        where the time of a step goes
"""

import sys

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
width, batch_size = (1024, 512) if device.type == "cuda" else (32, 16)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
)
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device.type)
teacher = torch.randn(64, 10, device=device)


def train_step(x, y):
    """Make one update with the batch `x`, (batch_size, 64), and its classes `y`;
    return the loss.
    """
    optimizer.zero_grad()
    with torch.autocast(device.type, dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    if "--clip-scaled" not in sys.argv:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def make_batches(count):
    """Return `count` batches, on the device."""
    inputs = torch.randn(count, batch_size, 64, device=device)
    return [(x, (x @ teacher).argmax(1)) for x in inputs]


if "--explain" in sys.argv:
    from amp_course.speed.explain import explain

    print(explain(train_step, make_batches(16)))
else:
    for number, batch in enumerate(make_batches(60)):
        loss = train_step(*batch)
        if number % 20 == 0:
            print(f"{number:3d}  loss {loss.item():.3f}")
