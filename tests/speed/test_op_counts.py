"""Counts of an op at any size, computed from the sizes 1 and 2, are those of torch."""

import functools
import json
import random
from dataclasses import replace

import pytest
import torch

from amp_course.speed.one_op import KINDS, Setting, count_op
from amp_course.speed.op_counts import count_from, record_counts
from amp_course.speed.panel import _SIZES

LOW = (torch.bfloat16, torch.float16)
FORMATS = [(torch.float32,) * 2] + [(low, one) for low in LOW for one in (low, torch.float32)]


@functools.cache
def recorded():
    return json.loads(json.dumps(record_counts()))


def counted(kind, on):
    return tuple(replace(call, shapes=()) for call in count_op(kind, on))


@pytest.mark.parametrize("kind", KINDS)
def test_counts_are_those_of_torch_at_any_size(kind):
    draw = random.Random(kind)
    for dtype, arrives in FORMATS:
        for _ in range(3):
            m, n, k = (draw.choice([*_SIZES, draw.randint(1, 9999)]) for _ in range(3))
            on = Setting(m, n, k, dtype, arrives, gpu=True)
            assert count_from(recorded())(kind, on) == counted(kind, on)


def test_the_record_is_small():
    assert len(json.dumps(recorded())) < 10_000
