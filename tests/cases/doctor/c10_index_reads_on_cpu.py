# EXPECTED: no host-waits: `ix` lives on the CPU on every machine (nanoGPT's get_batch).
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
np.random.randint(0, 50, 5000).astype(np.uint16).tofile("tokens.bin")
data = np.memmap("tokens.bin", dtype=np.uint16, mode="r")
model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 50)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(60):
    ix = torch.randint(len(data) - 17, (8,))
    x = torch.stack([torch.from_numpy(data[i : i + 16].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 17].astype(np.int64)) for i in ix])
    loss = F.cross_entropy(model(x.to(device)).flatten(0, 1), y.to(device).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
