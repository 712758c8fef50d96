"""Estimate how long a ring takes to reduce gradients: the α–β model, and what half the bytes buy.

A message of b bytes takes α + b/β seconds: a latency, and bytes over bandwidth. A ring of n ranks
cuts the tensor into n pieces, passes them on n−1 times to add them up (reduce-scatter), and n−1
times more to distribute the sums (all-gather). The model ignores the time of additions and kernel
launches, and assumes equal, idle links, so real clusters are slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Bytes per second of one GPU in one direction, as vendors give them; an all-reduce gets less. They
# give no latency; `fit` estimates one from measured times.
# H100, H200: "18x 4th Gen NVLink, 900GB/s", which counts both directions (MLPerf Inference v4.1,
#             NVIDIA's H200-SXM-141GBx8).
NVLINK_4 = 450e9
# An adapter of 400 Gb/s for each GPU: "8x 400Gb Infiniband" (MLPerf Inference v3.1, Dell's XE9680
# with 8 H100).
INFINIBAND_NDR = 50e9


@dataclass(frozen=True)
class RingModel:
    """Links between neighbours in a ring.

    latency_seconds:  α, of one message
    bytes_per_second: β, of one link in one direction

    Example: RingModel(0.0, 1e9).all_reduce_seconds(1e9, 2) → 1.0: each rank sends half of the
             bytes, twice
    Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication
            Operations in MPICH".
    """

    latency_seconds: float
    bytes_per_second: float

    def all_reduce_seconds(self, size_bytes: float, ranks: int) -> float:
        """Return the seconds that n ranks take to all-reduce a tensor: 2(n−1)(α + bytes/n/β)."""
        hop = self.latency_seconds + size_bytes / ranks / self.bytes_per_second
        return 2 * (ranks - 1) * hop


@dataclass(frozen=True)
class TwoLevelModel:
    """Fast rings inside the nodes, a slower one for each piece between them.

    inside, between: the links in a node, and from each GPU to other nodes
    ranks_per_node:  usually 8

    Each level ends before the next begins; a library may overlap them.
    """

    inside: RingModel
    between: RingModel
    ranks_per_node: int

    def all_reduce_seconds(self, size_bytes: float, ranks: int) -> float:
        """Return the seconds of a reduce-scatter in each node, an all-reduce of its pieces between
        nodes, and an all-gather.

        Raises ValueError if the last of several nodes is not full.
        """
        local = min(ranks, self.ranks_per_node)
        if ranks % local:
            raise ValueError(
                f"{ranks} ranks do not fill nodes of {local}: choose a multiple of {local}"
            )
        between = self.between.all_reduce_seconds(size_bytes / local, ranks // local)
        return self.inside.all_reduce_seconds(size_bytes, local) + between


def fit(size_bytes: Sequence[float], seconds: Sequence[float], ranks: int) -> RingModel:
    """Fit latency and bandwidth to measured all-reduces among `ranks` ranks, by least squares of
    the relative errors.

    With relative errors, the times of small tensors, which show the latency, count as much as those
    of large ones. Where the best fit has a latency below 0, the latency is set to 0 and the
    bandwidth is fitted alone.

    Raises ValueError if the times do not grow with the bytes.
    Example: fit([1e3, 1e6], [2.002e-3, 4e-3], ranks=2) → RingModel(latency_seconds=0.001,
             bytes_per_second=5e8)
    """
    x, y = np.asarray(size_bytes, dtype=float), np.asarray(seconds, dtype=float)
    # seconds = 2(n−1)·α + 2(n−1)/n·bytes · 1/β, each row divided by its seconds
    hops = 2 * (ranks - 1)
    columns = np.stack([np.full_like(x, hops), hops / ranks * x], axis=1) / y[:, None]
    scale = columns.max(axis=0)  # the columns differ by many powers of ten
    latency, inverse = np.linalg.lstsq(columns / scale, np.ones_like(y), rcond=None)[0] / scale
    if latency < 0:
        latency, inverse = 0.0, columns[:, 1].sum() / (columns[:, 1] ** 2).sum()
    if inverse <= 0:
        raise ValueError(
            "the times do not grow with the bytes: measure larger tensors, and each several times"
        )
    return RingModel(float(latency), float(1 / inverse))


def step_seconds(compute_seconds: float, communication_seconds: float, overlap: float) -> float:
    """Return the seconds of a step in which communication hides behind a share `overlap` of the
    computation, as far as it fits.

    overlap: 0 adds the two; 1 is their maximum. DDP can hide buckets behind the rest of the
             backward pass, about 2/3 of a step

    Example: step_seconds(0.3, 0.25, overlap=2 / 3) → 0.35
    """
    return compute_seconds + max(0.0, communication_seconds - overlap * compute_seconds)


@dataclass(frozen=True)
class HalvedBytes:
    """The seconds of a step with gradients of 4 bytes and of 2; overlap as in `step_seconds`."""

    ranks: int
    overlap: float
    step_fp32: float
    step_16_bit: float

    @property
    def speedup(self) -> float:
        """How many times as fast the step becomes."""
        return self.step_fp32 / self.step_16_bit


def halve_bytes(
    model: RingModel | TwoLevelModel,
    parameters: int,
    compute_seconds: float,
    ranks: Sequence[int] = (8, 64, 1024),
    overlaps: Sequence[float] = (0.0, 2 / 3),
) -> tuple[HalvedBytes, ...]:
    """Compute how much faster a step gets with 16-bit gradients, by ranks and overlap.

    The computation takes the same time on any number of ranks (weak scaling), and in 32 or 16 bits.

    Example: halve_bytes(RingModel(0, 1e9), 10**9, 4.0, ranks=[2], overlaps=[0])[0].speedup → 8/6
    """
    rows = []
    for overlap in overlaps:
        for n in ranks:
            reduced = (model.all_reduce_seconds(width * parameters, n) for width in (4, 2))
            steps = (step_seconds(compute_seconds, seconds, overlap) for seconds in reduced)
            rows.append(HalvedBytes(n, overlap, *steps))
    return tuple(rows)
