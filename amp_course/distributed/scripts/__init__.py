"""Training scripts to take away: plain PyTorch, short enough to read,
started by torchrun on CPUs or GPUs.
"""
