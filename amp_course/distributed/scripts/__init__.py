"""Training scripts to take away: plain PyTorch, under 80 lines each, started by torchrun on CPUs or GPUs."""
