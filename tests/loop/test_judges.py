"""What judges measure themselves: bytes per parameter, and the pretend machine's clock."""

import pytest
import torch

from amp_course.loop.judges.bookkeeping import bytes_per_parameter
from amp_course.loop.judges.timing import LAUNCH, LOAD, PretendMachine


@pytest.mark.parametrize(
    ("stored", "autocast", "count"),
    [
        (torch.float32, None, 16),
        (torch.float32, torch.bfloat16, 16),
        (torch.bfloat16, None, 8),
        (torch.float16, None, 8),
    ],
)
def test_bytes_per_parameter_with_adam(stored, autocast, count):
    assert bytes_per_parameter(stored, autocast) == count


def test_pretend_machine_works_while_the_cpu_goes_on():
    machine = PretendMachine([0.1, 0.2])
    start = machine.clock()
    machine.step(machine.next_batch())
    machine.step(None)
    assert machine.clock() - start == pytest.approx(LOAD + 2 * LAUNCH)  # nothing waited for
    machine.synchronize()
    assert machine.clock() - start == pytest.approx(LOAD + LAUNCH + 0.1 + 0.2)
