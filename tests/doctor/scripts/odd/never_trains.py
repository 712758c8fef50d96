# odd: never trains, only infers
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
counts = torch.zeros(4, dtype=torch.long)
with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
    for _ in range(50):
        counts += model(torch.randn(64, 16)).argmax(1).bincount(minlength=4)
print("classes:", counts.tolist())
