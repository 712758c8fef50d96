# fault: no-update-after-skip
# Skips steps whose gradients have overflowed, by its own look at them.
import torch
from torch import nn


def finite(parameters):
    return all(torch.isfinite(p.grad).all() for p in parameters)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 4))
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=4)
w = torch.randn(6, 4)
done = skipped = 0
for step in range(60):
    x = torch.randn(64, 6)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(x)
    loss = nn.functional.cross_entropy(logits.float(), (x @ w).argmax(1))
    scaler.scale(loss).backward()
    if finite(model.parameters()):
        scaler.step(opt)
        scaler.update()
        done += 1
    else:
        skipped += 1
    opt.zero_grad()
    if step % 10 == 9:
        print(f"{step=} loss={loss.item():.3f} {done=} {skipped=} scale={scaler.get_scale():g}")
