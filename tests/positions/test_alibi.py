"""ALiBi against exact rationals; the published slopes."""

from fractions import Fraction

import pytest
import torch

from amp_course.bits import BF16, FP16
from amp_course.positions import alibi_bias, alibi_slopes
from amp_course.positions.alibi import bias_from_cast_ids


def test_slopes_are_the_published_ones():
    assert alibi_slopes(8).tolist() == [2.0**-power for power in range(1, 9)]
    assert alibi_slopes(16)[:3].tolist() == pytest.approx([2**-0.5, 2**-1.0, 2**-1.5])
    assert alibi_slopes(1).tolist() == [2.0**-8]
    # Other numbers: those of the power of two below, then every second one of the power of two
    # above.
    assert torch.equal(alibi_slopes(12), torch.cat([alibi_slopes(8), alibi_slopes(16)[0:8:2]]))
    with pytest.raises(ValueError, match="at least 1 head, not 0"):
        alibi_slopes(0)


def test_bias_is_exact_far_out():
    queries, keys = torch.tensor([1_000_003]), torch.tensor([1, 70_000, 1_000_002, 1_000_003])
    bias = alibi_bias(alibi_slopes(12), queries, keys)
    for head, slope in enumerate(alibi_slopes(12).tolist()):
        for at, key in enumerate(keys.tolist()):
            exact = -Fraction(slope) * (1_000_003 - key)
            assert (
                bias[head, 0, at].item() == torch.tensor(float(exact)).item()
            )  # rounded once, to float32


def test_cast_ids_merge_neighbours_and_exact_ones_do_not():
    slopes, query, keys = alibi_slopes(8), torch.tensor([4095]), torch.arange(4000, 4096)
    assert alibi_bias(slopes, query, keys)[0, 0].unique().numel() == 96
    assert bias_from_cast_ids(slopes, query, keys, BF16)[0, 0].unique().numel() == 7
    assert bias_from_cast_ids(slopes, query, keys, FP16)[0, 0].unique().numel() == 49
    assert torch.equal(
        bias_from_cast_ids(slopes, query, keys, BF16)[0, 0],
        -0.5 * (query.bfloat16().float() - keys.bfloat16().float()),
    )


def test_float_positions_are_refused():
    with pytest.raises(TypeError, match="positions have to be integers"):
        alibi_bias(alibi_slopes(8), torch.tensor([3.0]), torch.tensor([1]))
