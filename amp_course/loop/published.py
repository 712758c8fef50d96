"""Figures that others published, for the report card to compare with. Each with its source, none measured here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One published pair: the baseline's seconds (or rate) and the faster one's, as speed-up."""

    what: str
    hardware: str
    baseline: str
    faster: str
    speedup: float
    source: str


PUBLISHED = (
    Published(
        "3 × Linear 4096: AMP (Paddle O1)",
        "V100-class GPU",
        "fp32 2.926 s",
        "AMP fp16 (Paddle O1) 1.294 s",
        2.926 / 1.294,
        "Paddle, “Automatic mixed precision training”",
    ),
    Published(
        "3 × Linear 4096: half (Paddle O2)",
        "V100-class GPU",
        "fp32 2.926 s",
        "half weights (Paddle O2) 0.890 s",
        2.926 / 0.890,
        "Paddle, “Automatic mixed precision training”",
    ),
    Published(
        "ResNet-50: fp16 (half, fp32 batch norm?)",
        "8 × V100",
        "fp32 7:47 min",
        "fp16 4:46 min; its recipe is not told there, and inferred here",
        (7 * 60 + 47) / (4 * 60 + 46),
        "experience report to FlyEgle/imageclassification (PyTorch 1.7); its torch AMP run at batch 4096: 75.92 %",
    ),
    Published(
        "ResNet-50 v1.5: AMP over TF32",
        "one GPU that has TF32",
        "TF32 938 img/s",
        "AMP 2470 img/s",
        2470 / 938,
        "NVIDIA DeepLearningExamples",
    ),
    Published(
        "ResNet-50 v1.5: AMP over fp32",
        "one V100",
        "fp32 367 img/s",
        "AMP 1200 img/s",
        1200 / 367,
        "NVIDIA DeepLearningExamples",
    ),
)
