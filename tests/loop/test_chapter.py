"""What chapter 06 says in prose about cells whose outputs are not compared."""

import time
from itertools import islice

import pytest
import torch
from torch.nn.functional import cross_entropy

from amp_course.kit.data import digit_batches, digits
from amp_course.kit.memory import step_memory
from amp_course.kit.models import DigitsResNet
from amp_course.loop import AMP_BF16, AMP_FP16, train
from amp_course.loop.workqueue import WorkQueue


@pytest.fixture
def trained():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = DigitsResNet(32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = digit_batches(digits(), batch_size=64, epochs=2, seed=1)
    train(model, batches, cross_entropy, optimizer, AMP_BF16, memory=False)
    return model, optimizer, batches


def lost_share(model, batch, scale):
    gradients = []
    for dtype, factor in ((None, 1.0), (torch.float16, scale)):
        model.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            loss = cross_entropy(model(batch[0]), batch[1])
        (loss * factor * 1e-3).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.dim() > 1]))
    return ((gradients[0] != 0) & (gradients[1] == 0)).float().mean().item()


def test_scaling_saves_the_gradients_that_fp16_loses(trained):
    model, optimizer, batches = trained
    batch = next(iter(batches))
    # As in the chapter, where the timed steps went on with this batch: the model knows it well.
    train(model, [batch] * 25, cross_entropy, optimizer, AMP_BF16, memory=False)
    assert lost_share(model, batch, 1.0) > 0.3
    assert lost_share(model, batch, 2.0**16) < 0.001


def test_a_scale_that_begins_too_high_falls_by_skips_and_grows_again(trained):
    model, optimizer, batches = trained
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=4)
    record = train(model, islice(batches, 22), cross_entropy, optimizer, AMP_FP16, scaler=scaler, memory=False)
    assert record.skipped[:2] == (0, 1)
    assert record.scales[1] == 2.0**29
    lowest = record.scales.index(min(record.scales))
    assert max(record.scales[lowest:]) > record.scales[lowest]


def test_activations_halve_and_a_tiny_batch_gains_nothing(trained):
    model, _, _ = trained
    pictures = digits()
    adam = torch.optim.Adam(model.parameters())

    def count(batch_size, dtype):
        x, y = pictures.train_x[:batch_size].clone(), pictures.train_y[:batch_size].clone()

        def step():
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                loss = cross_entropy(model(x), y)
            loss.backward()
            adam.step()

        step()
        return step_memory(model, adam, step, batch=(x, y))

    large, large_amp = count(512, None), count(512, torch.bfloat16)
    small, small_amp = count(1, None), count(1, torch.bfloat16)
    assert 0.45 < large_amp.activations / large.activations < 0.6
    assert large_amp.peak < 0.6 * large.peak
    assert small_amp.peak > small.peak
    assert small_amp.cast_copies > small_amp.activations


def test_a_clock_that_does_not_wait_measures_the_queueing():
    queue = WorkQueue("cpu")
    start = time.perf_counter()
    queue.launch(lambda: time.sleep(0.2))
    queued = time.perf_counter() - start
    queue.synchronize()
    assert queued < 0.1 < 0.2 <= time.perf_counter() - start
    queue.close()
