# odd: prints a lot, and to stderr
import sys

import torch

torch.manual_seed(0)
model = torch.nn.Linear(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    x = torch.randn(32, 12)
    loss = torch.nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item()}", file=sys.stderr)
    for name, p in model.named_parameters():
        for row in range(500):
            print("debug", step, name, row, p.flatten()[row % p.numel()].item(), "x" * 60)
    sys.stderr.write("\r" + "#" * step + " " * (40 - step) + f"| {step + 1}/40 ✓ — \x1b[32mok\x1b[0m")
sys.stdout.buffer.write(b"\xff\xfe not utf-8\n")
