"""Multiply fp32 matrices on hardware for 16 bits: each number as a sum of bf16 numbers, and what
that keeps, against TF32.

Products of bf16 numbers have at most 16 significand bits, so fp32 holds them exactly: here matmuls
of bf16 pieces run as fp32 matmuls, at fp32's speed on any machine, and only the sums are rounded.
On tensor cores each is a bf16 matmul, many times faster.

How much of |A| |B| is lost at most, before the sums in fp32 lose theirs (`Scheme.left_out`):

    bf16×1   8 bits of each operand                          2^−7
    TF32     11 bits                                         2^−10
    bf16×3   two pieces, their three largest products        2^−15, as with operands of 16 bits
    bf16×6   three pieces, their six largest products        2^−24, one rounding in fp32
    bf16×9   three pieces, all products                      nothing

Who offers it: `torch.set_float32_matmul_precision("high")` may, its documentation says, use TF32 or
“treat each float32 number as the sum of two bfloat16 numbers”, which is bf16×3; on CUDA, it says
too, "high" and "medium" are TF32. PyTorch 2.13 has no switch that asks for bf16×3:
`torch.backends.cuda.matmul.fp32_precision` takes "ieee" or "tf32", its twin in
`torch.backends.mkldnn`, for CPUs, also "bf16". JAX has names for these:
DotAlgorithmPreset.BF16_BF16_F32_X3, X6, X9. cuBLAS has bf16×9 on Blackwell GPUs from 12.9 on
(CUBLAS_COMPUTE_32F_EMULATED_16BFX9).
Source: Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 Artificial Intelligence Datatype For
        Higher-Precision
Computations" (arXiv:1904.06376).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from amp_course.bits import BF16, FP32, TF32, FloatFormat, round_to

_U = FP32.eps / 2  # the largest relative error of one rounding, 2^−24
# the last of its 24 significand bits is worth 2^−133, the smallest subnormal of bf16
EXACT_FROM = 2.0**-110


@dataclass(frozen=True)
class Scheme:
    """A way to multiply two fp32 matrices.

    name:     "bf16×3"
    operand:  the format of the pieces; fp32 for a matmul of the matrices as they are
    pieces:   of each operand, 1 to 3
    products: how many matmuls of two pieces are added up, the largest ones

    Raises ValueError for pieces or products that do not exist, and for pieces of another format
    than bf16.
    """

    name: str
    operand: FloatFormat
    pieces: int = 1
    products: int = 1

    def __post_init__(self) -> None:
        if self.pieces not in (1, 2, 3):
            raise ValueError(
                f"{self.name}: {self.pieces!r} pieces: take 1, 2 or 3; three hold all 24 bits of "
                f"an fp32 number"
            )
        if self.operand not in ((BF16,) if self.pieces > 1 else (BF16, TF32, FP32)):
            raise ValueError(
                f"{self.name}: pieces are in bf16, and a single one in bf16, TF32 or fp32, not in "
                f"{self.operand.name}"
            )
        if self.products not in range(1, self.pieces**2 + 1):
            raise ValueError(
                f"{self.name}: {self.products!r} products: {self.pieces} pieces of each operand "
                f"have 1 to {self.pieces**2}"
            )

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Which piece is multiplied with which, the largest products first:
        bf16×3 → ((0, 0), (0, 1), (1, 0)).
        """
        every = [(i, j) for i in range(self.pieces) for j in range(self.pieces)]
        return tuple(sorted(every, key=lambda pair: (sum(pair), pair))[: self.products])

    @property
    def left_out(self) -> float:
        """Return what is lost of |A| |B| at most before any sum is rounded:
        what no piece holds, and products left out.
        """
        sizes, lost, pieces = self._sizes(), self._lost(), range(self.pieces)
        after = (lost, lost * lost / 2, 0.0)[self.pieces - 1]  # what is left after the last piece
        dropped = sum(
            sizes[i] * sizes[j] for i in pieces for j in pieces if (i, j) not in self.pairs
        )
        return dropped + 2 * after + after * after

    def bound(self, terms: int) -> float:
        """Return what |error| / (|A| |B|) never exceeds, for dot products of so many terms; most
        errors are far below.

        To what is left out it adds the sums in fp32, in any order. It holds for numbers between
        about 2^−50 and 2^50, with which no piece and no product leaves the range of its format.
        Source: N. Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1, for
                the sums.
        """
        sizes = self._sizes()
        sums = (1 + _gamma(terms)) * (1 + _gamma(self.products - 1)) - 1
        return self.left_out + sums * sum(sizes[i] * sizes[j] for i, j in self.pairs)

    def _lost(self) -> float:
        # by one rounding, relative to the number
        return 0.0 if self.operand == FP32 else self.operand.eps / 2

    def _sizes(self) -> tuple[float, ...]:
        """Return how large each piece is at most, relative to the number."""
        lost = self._lost()
        # the half: a remainder's sign is one more bit
        return (1 + lost, lost, lost * lost / 2)[: self.pieces]


BF16X1 = Scheme("bf16×1", BF16)
TF32X1 = Scheme("TF32", TF32)
BF16X3 = Scheme("bf16×3", BF16, pieces=2, products=3)
BF16X6 = Scheme("bf16×6", BF16, pieces=3, products=6)
BF16X9 = Scheme("bf16×9", BF16, pieces=3, products=9)
PLAIN = Scheme("fp32", FP32)
SCHEMES = (BF16X1, TF32X1, BF16X3, BF16X6, BF16X9, PLAIN)


@dataclass(frozen=True)
class MatmulError:
    """How far one scheme's product is from the exact one, relative to |A| |B|, which no
    cancellation makes small.

    typical: the root mean square over all elements
    largest: the largest
    bound:   what it cannot exceed (`Scheme.bound`)
    """

    scheme: Scheme
    typical: float
    largest: float
    bound: float


def split_bf16(tensor: Tensor, parts: int = 3) -> tuple[Tensor, ...]:
    """Cut an fp32 tensor into bf16 numbers that sum to it: the nearest one, the nearest to what is
    left, and so on.

    tensor:  any shape, float32
    parts:   1, 2 or 3
    returns: so many tensors of the same shape, in float32, with values that bf16 has

    Three parts sum to the number exactly from 2^−110 up, and for 0: 8 + 8 + 8 bits hold 24. Two
    leave at most 2^−17 of it, one 2^−8. Below 2^−110 the last bits would be smaller than bf16's
    smallest subnormal, 2^−133, and up to 2^−134 is lost (more on hardware that takes subnormals for
    0). From (2 − 2^−8) · 2^127 up a number rounds to inf in bf16: it comes out as (inf, 0, 0), as
    inf does, and NaN as (NaN, 0, 0). Raises TypeError unless the tensor is float32, ValueError for
    another number of parts.
    Example: split_bf16(torch.tensor(1.00390625), 2) → (1.0, 0.00390625): 1 + 2^−8 is halfway
             between two bf16 numbers
    """
    _require_fp32(tensor, "cut into bf16 pieces")
    if parts not in (1, 2, 3):
        raise ValueError(
            f"{parts!r} parts: take 1, 2 or 3; three hold all 24 bits of an fp32 number"
        )
    pieces, rest = [], tensor.detach()
    for _ in range(parts):
        piece = round_to(rest, BF16)
        pieces.append(piece)
        # exact: what is left has fewer bits than the number
        rest = torch.where(piece.isfinite(), rest - piece, 0.0)
    return tuple(pieces)


@torch.no_grad()
def matmul(a: Tensor, b: Tensor, scheme: Scheme) -> Tensor:
    """Multiply two fp32 matrices by a scheme: (m, k) times (k, n) → (m, n), in fp32.

    The smallest products are added first. TF32 is emulated by rounding to nearest; tensor cores may
    read the first 11 bits and drop the others (PyTorch's notes on numerical accuracy), which
    doubles the error. Where a piece of one matrix is inf and one of the other 0, the result is NaN,
    which fp32 would often not give. `torch.set_float32_matmul_precision` changes the scheme "fp32"
    alone: pieces survive TF32 and bf16 unchanged. No gradient passes. Raises TypeError unless both
           are float32.
    """
    for tensor in (a, b):
        _require_fp32(tensor, "multiplied")
    with torch.autocast(a.device.type, enabled=False):
        if scheme.operand == FP32:
            return a @ b
        if scheme.operand == TF32:
            return round_to(a, TF32) @ round_to(b, TF32)
        left, right = split_bf16(a, scheme.pieces), split_bf16(b, scheme.pieces)
        total = torch.zeros((), device=a.device)
        for i, j in reversed(scheme.pairs):
            total = total + left[i] @ right[j]
        return total


def _require_fp32(tensor: Tensor, what: str) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.float32:
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"only float32 is {what}, and this is {kind}: convert it with .float()")


def _gamma(roundings: int) -> float:
    """Return what so many roundings in fp32 can do to a sum of positive numbers:
    nearly roundings · 2^−24.
    """
    return roundings * _U / (1 - roundings * _U)


def compare(a: Tensor, b: Tensor, schemes: tuple[Scheme, ...] = SCHEMES) -> tuple[MatmulError, ...]:
    """Measure each scheme's error on two fp32 matrices, (m, k) and (k, n),
    against their product in fp64.
    """
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    errors = []
    for scheme in schemes:
        error = (matmul(a, b, scheme).double() - exact).abs()
        relative = torch.where(size > 0, error / size, 0.0)
        typical, largest = relative.square().mean().sqrt().item(), relative.max().item()
        errors.append(MatmulError(scheme, typical, largest, scheme.bound(a.shape[-1])))
    return tuple(errors)
