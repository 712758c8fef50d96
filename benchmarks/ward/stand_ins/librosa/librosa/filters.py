"""Triangular filters."""

import numpy as np


def mel(sampling_rate, n_fft, n_mels, low=0.0, high=None):
    """Return as many filters as asked for, evenly spaced, over the bins of a spectrum."""
    centres = np.linspace(0, n_fft // 2, n_mels + 2)[1:-1, None]
    distance = np.abs(np.arange(n_fft // 2 + 1) - centres) / (n_fft / 2 / n_mels)
    return np.clip(1 - distance, 0, None).astype(np.float32)
