"""The bytes that the course counts tensor by tensor, next to the CUDA allocator's own peak."""

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss

from amp_course.kit import models
from amp_course.kit.memory import step_memory


def simple_net(device):
    # Wide, so that what cuBLAS keeps for itself weighs little next to 1.6 GB of weights and
    # gradients.
    model = models.SimpleNet(8192).to(device)
    batch = [torch.randn(512, 8192, device=device) for _ in range(2)]
    return model, batch, lambda: mse_loss(model(batch[0]), batch[1])


def resnet(device):
    # cuDNN takes workspaces inside of convolutions, which nobody counts: the batch is large, so
    # that they weigh little.
    model = models.DigitsResNet(64).to(device)
    batch = [
        torch.randn(4096, 1, 8, 8, device=device),
        torch.randint(0, 10, (4096,), device=device),
    ]
    return model, batch, lambda: cross_entropy(model(batch[0]), batch[1])


def gpt(device):
    model = models.CharGPT.for_device(device, vocab_size=96)
    shape = (models.CharGPT.batch_size_for(device), model.context)
    batch = [torch.randint(0, 96, shape, device=device) for _ in range(2)]
    return model, batch, lambda: cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("build", [simple_net, resnet, gpt], ids=lambda build: build.__name__)
def test_the_counted_peak_is_the_allocators(device, build, dtype):
    model, batch, loss_of = build(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            loss = loss_of()
        loss.backward()
        optimizer.step()

    step()
    unrelated = torch.empty(
        2**28, dtype=torch.uint8, device=device
    )  # somebody else's, and not to be counted
    memory = step_memory(model, optimizer, step, batch)
    del unrelated
    assert memory.cuda_peak is not None
    assert memory.peak == pytest.approx(memory.cuda_peak, rel=0.05)
    weights = sum(p.numel() * 4 for p in model.parameters())
    assert memory.parameters == memory.gradients == weights
    assert 2 * weights <= memory.optimizer_state < 2.1 * weights


def test_amp_saves_activations_and_no_parameter_memory(device):
    counted = {}
    for dtype in (None, torch.float16):
        model, batch, loss_of = simple_net(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

        def step(dtype=dtype, optimizer=optimizer, loss_of=loss_of):
            with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
                loss = loss_of()
            loss.backward()
            optimizer.step()

        counted[dtype] = step_memory(model, optimizer, step, batch)
    fp32, amp = counted[None], counted[torch.float16]
    assert amp.parameters == fp32.parameters and amp.gradients == fp32.gradients
    assert amp.activations < fp32.activations
    assert amp.cast_copies > 0 == fp32.cast_copies
