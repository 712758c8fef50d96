"""Published figures of GPUs, for asking what a step would take on a card that is not at hand.

Peaks are for dense matrices. Since Ampere, data sheets also print a rate for 2:4 sparse matrices, often on its own: it is twice
as high, and ordinary training does not reach it. All peaks are at the boost clock, which a card under load may not hold. 16-bit
rates are those with fp32 accumulation, as in PyTorch's matmuls: for consumer cards, half of the number on the box.
"""

from __future__ import annotations

from dataclasses import dataclass

from amp_course.speed.roofline import Roofline

LAUNCH_SECONDS = 5e-6  # assumed for all: a PyTorch op's kernel, queued from Python, takes some 5 µs of the CPU's time


@dataclass(frozen=True)
class Card:
    """One GPU as its maker describes it.

    tera:      format → TFLOP/s, dense; a missing format has no fast units
    gigabytes_per_second: memory bandwidth
    printed:   the sparse 16-bit rate that the data sheet prints as well, or alone, in TFLOP/s; None for a card without one
    source:    where the numbers are from
    """

    name: str
    tera: dict[str, float]
    gigabytes_per_second: float
    printed: float | None
    source: str

    def roofline(self, launch_seconds: float = LAUNCH_SECONDS) -> Roofline:
        """Return the card as a roofline."""
        peaks = {name: rate * 1e12 for name, rate in self.tera.items()}
        return Roofline(self.name, peaks, self.gigabytes_per_second * 1e9, launch_seconds)


CARDS = (
    Card(
        "GTX 1080 Ti",
        {"fp32": 11.3, "fp16": 11.3},
        484,
        None,
        "NVIDIA's product page (2017): 3,584 cores at 1.58 GHz. fp16: a matmul that accumulates in fp32 runs on the fp32 units; "
        "fp16 arithmetic has 1/64 of their rate (CUDA C++ Programming Guide, throughput at compute capability 6.1)",
    ),
    Card(
        "GTX 1650",
        {"fp32": 2.98, "fp16": 2.98},
        128,
        None,
        "NVIDIA's product page (2019): 896 cores at 1.665 GHz. fp16: no tensor cores; its fp16 units run at twice fp32's "
        "rate when they accumulate in fp16; with fp32 accumulation half of that is assumed, as published for RTX cards",
    ),
    Card(
        "V100 SXM2",
        {"fp32": 15.7, "fp16": 125},
        900,
        None,
        "NVIDIA V100 data sheet (2020)",
    ),
    Card(
        "T4",
        {"fp32": 8.1, "fp16": 65},
        320,
        None,
        "NVIDIA T4 data sheet (2019) and product brief, table 2",
    ),
    Card(
        "A100 SXM 40 GB",
        {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312},
        1555,
        624,
        "NVIDIA A100 Tensor Core GPU Architecture whitepaper (2020), table 1",
    ),
    Card(
        "RTX 3090",
        {"fp32": 35.6, "tf32": 35.6, "bf16": 71, "fp16": 71},
        936,
        142,
        "NVIDIA Ampere GA102 GPU Architecture whitepaper (2021), appendix A",
    ),
    Card(
        "L4",
        {"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121},
        300,
        242,
        "NVIDIA L4 data sheet (2023), which prints the sparse rates alone",
    ),
    Card(
        "RTX 4090",
        {"fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp16": 165.2},
        1008,
        330.4,
        "NVIDIA Ada GPU Architecture whitepaper (2022), appendix A",
    ),
    Card(
        "H100 SXM",
        {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4},
        3350,
        1978.9,
        "NVIDIA H100 Tensor Core GPU Architecture whitepaper (2022) and data sheet",
    ),
    Card(
        "MI300X",
        {"fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp16": 1307.4},
        5300,
        2614.9,
        "AMD Instinct MI300X data sheet (2023)",
    ),
    Card(
        "B200",
        {"fp32": 80, "tf32": 1100, "bf16": 2250, "fp16": 2250},
        8000,
        4500,
        "NVIDIA Blackwell Architecture Technical Brief (2024), HGX B200",
    ),
)


def find_card(name: str) -> Card:
    """Return a card by its name, whatever the case. Raises KeyError, with the names there are."""
    for card in CARDS:
        if card.name.lower() == name.strip().lower():
            return card
    raise KeyError(f"no card is called {name!r}: choose one of {', '.join(card.name for card in CARDS)}")
