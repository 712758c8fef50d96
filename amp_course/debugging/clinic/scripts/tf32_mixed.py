"""The comparison stops with a RuntimeError, in a line that only reads a setting.
After pytorch/pytorch#179445.
"""

import torch
from torch import nn


def measure(model, inputs, matmul):
    """Run a model with TF32, then in full fp32; return two pairs:
    whether TF32 was allowed, and the mean output.
    """
    before = matmul.fp32_precision
    matmul.allow_tf32 = True
    results = [(matmul.allow_tf32, model(inputs).mean().item())]
    matmul.fp32_precision = "ieee"
    results.append((matmul.allow_tf32, model(inputs).mean().item()))
    matmul.fp32_precision = before
    return results


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    inputs = torch.randn(256, 64)
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        raise SystemExit(
            f"This script needs torch 2.9 or newer, and this is torch {torch.__version__}."
        )
    print(f"TF32 allowed at first: {matmul.allow_tf32}")
    for allowed, mean in measure(model, inputs, matmul):
        print(f"TF32 allowed: {allowed}, mean output {mean:.6f}")
