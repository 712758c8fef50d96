"""What torch and ml_dtypes make of patterns and numbers, as float64 arrays."""

import itertools

import ml_dtypes
import numpy as np
import torch

from amp_course.bits import formats as f

ML_DTYPES = {
    f.BF16: ml_dtypes.bfloat16,
    f.FP8_E4M3: ml_dtypes.float8_e4m3fn,
    f.FP8_E5M2: ml_dtypes.float8_e5m2,
    f.FP6_E3M2: ml_dtypes.float6_e3m2fn,
    f.FP6_E2M3: ml_dtypes.float6_e2m3fn,
    f.FP4_E2M1: ml_dtypes.float4_e2m1fn,
}
TORCH = {
    f.FP16: torch.float16,
    f.BF16: torch.bfloat16,
    f.FP8_E4M3: torch.float8_e4m3fn,
    f.FP8_E5M2: torch.float8_e5m2,
}


def all_values(fmt):
    """The value of every pattern from 0 to 2^bits − 1, as torch reads it, or else ml_dtypes."""
    unsigned = np.uint16 if fmt.bits > 8 else np.uint8
    patterns = np.arange(2**fmt.bits, dtype=unsigned)
    if fmt in TORCH:
        signed = torch.from_numpy(patterns.view(np.int16 if fmt.bits > 8 else np.int8))
        return signed.view(TORCH[fmt]).to(torch.float64).numpy()
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return patterns.view(ML_DTYPES[fmt]).astype(np.float64)


def torch_cast(numbers, fmt):
    """float32 numbers, cast to the format by torch and back."""
    return torch.as_tensor(numbers).to(TORCH[fmt]).to(torch.float64).numpy()


def torch_saturates_e4m3():
    """Ask the torch at hand: 2.13 turns 1,000 into 448, 2.6 into NaN."""
    return not torch.tensor(1000.0).to(torch.float8_e4m3fn).float().isnan().item()


def midpoints(fmt):
    """Every fp32 midpoint between neighbouring values, the overflow's among them,
    with its two fp32 neighbours; both signs.
    """
    from amp_course.bits.scalar import decode

    values = [decode(pattern, fmt) for pattern in range(fmt.max_pattern + 1)]
    values.append(2 * values[-1] - values[-2])  # what would come next if the format went on
    exact = np.array([(low + high) / 2 for low, high in itertools.pairwise(values)])
    middle = exact.astype(np.float32)
    assert (middle == exact).all()
    around = np.concatenate(
        [np.nextafter(middle, np.float32(0)), middle, np.nextafter(middle, np.float32(np.inf))]
    )
    return np.concatenate([around, -around])


def same(ours, theirs):
    """Equal to the last bit: NaN where NaN, and zeros of the same sign."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    return bool(
        ours.shape == theirs.shape
        and np.array_equal(ours, theirs, equal_nan=True)
        and np.array_equal(np.signbit(ours[ours == 0]), np.signbit(theirs[ours == 0]))
    )
