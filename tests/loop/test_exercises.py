"""What the exercises rely on: the right bytes per parameter, measured,
and the pretend machine's clock.
"""

import pytest
import torch
from torch import nn

from amp_course.kit.memory import tensor_bytes
from amp_course.loop.exercises import count_bytes
from amp_course.loop.exercises.honest_timing import LAUNCH, PretendMachine


@pytest.mark.parametrize(
    ("stored", "autocast", "key"),
    [
        (torch.float32, None, "fp32"),
        (torch.float32, torch.bfloat16, "amp"),
        (torch.bfloat16, None, "half"),
        (torch.float16, None, "half"),
    ],
)
def test_the_right_bytes_per_parameter_are_those_of_a_real_step_with_adam(stored, autocast, key):
    layer = nn.Linear(64, 64, bias=False, dtype=stored)
    optimizer = torch.optim.Adam(layer.parameters())
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        loss = layer(torch.ones(4, 64, dtype=stored)).float().square().mean()
    loss.backward()
    optimizer.step()
    weights = list(layer.parameters())
    state = [value for one in optimizer.state.values() for value in one.values()]
    total = tensor_bytes([*weights, *(weight.grad for weight in weights), *state])
    # Adam's step counter, 4 bytes for a whole layer, rounds away
    assert total // layer.weight.numel() == count_bytes.judge.right[key]


def test_pretend_machine_works_while_the_cpu_goes_on():
    machine = PretendMachine([0.1, 0.2], load=0.03)
    start = machine.clock()
    machine.step(machine.next_batch())
    machine.step(torch.ones(1))
    assert machine.clock() - start == pytest.approx(0.03 + 2 * LAUNCH)  # nothing waited for
    machine.synchronize()
    assert machine.clock() - start == pytest.approx(0.03 + LAUNCH + 0.1 + 0.2)
