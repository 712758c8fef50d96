"""What chapter 05 says in prose about cells whose outputs are not compared."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.bits.formats import BF16, FP16
from amp_course.kit.data import digit_batches, digits
from amp_course.scaler.collapse import first_nonfinite, pin_to_fp32
from amp_course.scaler.dynamic import DynamicScaler
from amp_course.scaler.recording import record_gpt
from amp_course.scaler.timeline import record_timeline
from amp_course.underflow import zone_fractions


def fresh():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


@pytest.fixture(scope="module")
def batches():
    return list(digit_batches(digits(), 64, steps=100, seed=1))


def test_a_static_scale_is_safe_up_to_a_ceiling_and_never_above(batches):
    x, y = batches[0]
    safe = []
    for exponent in range(0, 41, 4):
        model, _ = fresh()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(x), y)
        (loss * 2.0**exponent).backward()
        safe.append(all(p.grad.isfinite().all() for p in model.parameters()))
    assert safe == sorted(safe, reverse=True) and safe[4] and not safe[-1]


def test_the_timeline_shows_what_the_prose_says(batches):
    scaler = DynamicScaler("cpu", init_scale=2.0**24, growth_interval=10)
    timeline = record_timeline(*fresh(), scaler, batches[:80], overflow_at={50})
    first_clean = timeline.skipped.index(False)
    assert 2 <= first_clean < 12 and all(timeline.skipped[:first_clean])
    later = [step for step in range(first_clean, 80) if timeline.skipped[step] and step != 50]
    assert later and all(timeline.scales[step - 1] <= timeline.scales[step] for step in later)  # the ceiling
    assert timeline.skipped[50] and math.isnan(timeline.losses[50])
    assert timeline.losses[51] < 2 * max(timeline.losses[40:50])
    assert timeline.losses[-1] < 0.3 * timeline.losses[0]


def test_fp16_loses_gradients_that_bf16_keeps():
    gradients = torch.cat(list(record_gpt().outputs.values()))
    assert zone_fractions(gradients, FP16).lost > 0.02
    assert zone_fractions(gradients, BF16).lost < 1e-4


def tall():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential()
        parts = {"flat": nn.Flatten(), "up": nn.Linear(64, 64), "norm": nn.LayerNorm(64), "head": nn.Linear(64, 10)}
        for name, part in parts.items():
            model.add_module(name, part)
    model.up.weight.data.mul_(4e5)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def test_the_scale_collapses_after_166_halvings_and_one_pinned_layer_cures_it(batches):
    model, optimizer = tall()
    before = [p.detach().clone() for p in model.parameters()]
    collapse = record_timeline(model, optimizer, DynamicScaler("cpu"), batches + batches)
    assert all(collapse.skipped) and collapse.scales.index(0.0) == 166
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    with torch.autocast("cpu", dtype=torch.float16):
        assert first_nonfinite(model, batches[0][0]) == "up"
    model, optimizer = tall()
    pin_to_fp32(model.up)
    cured = record_timeline(model, optimizer, DynamicScaler("cpu"), batches)
    assert not any(cured.skipped) and cured.losses[-1] < cured.losses[0] / 2


def test_a_resumed_run_without_the_scalers_state_skips_steps(batches):
    large = [(512 * x, y) for x, y in batches]
    model, optimizer = fresh()
    scaler = DynamicScaler("cpu")
    record_timeline(model, optimizer, scaler, large[:10])
    skips = []
    for state in (scaler.state_dict(), DynamicScaler("cpu").state_dict()):
        resumed = torch.amp.GradScaler("cpu")
        resumed.load_state_dict(state)
        after = record_timeline(*copy.deepcopy((model, optimizer)), resumed, large[10:30])
        skips.append(sum(after.skipped))
    assert skips[0] <= 1 and skips[1] >= 4
