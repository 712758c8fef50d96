"""The peak of a step, against arithmetic and the profiler's record of every allocation."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from amp_course.kit.data import CharText, text_batches
from amp_course.kit.memory import step_memory, tensor_bytes
from amp_course.kit.models import CharGPT
from tests.kit.trainings import PARAMETERS, SCALAR, STATE, B, Training, W, X, measured, simple


def test_peak_in_fp32_is_the_hand_count() -> None:
    # At the end of the backward pass: the batch, all gradients, the gradient of the first layer's
    # output, the first ones (the loss's own gradient), and the loss, which on a CPU keeps the
    # storage of all the squares it was summed from.
    end_of_backward = 2 * X + PARAMETERS + X + SCALAR + X
    assert measured(simple("sgd")).peak == PARAMETERS + end_of_backward
    assert measured(simple("momentum")).peak == 2 * PARAMETERS + end_of_backward
    # Adam's own peak is in its step for the second weight: the root, the root divided by the bias
    # correction, and the last parameter's divided root, which its loop still holds. The activations
    # are gone by then.
    in_adam = 2 * X + PARAMETERS + X + 2 * W + B
    assert measured(simple("adam")).peak == PARAMETERS + STATE["adam"] + in_adam


def test_peak_under_autocast_is_the_hand_count() -> None:
    # Where the first layer's gradient is cast back: x and the gradient of the output are gone; the
    # weight's gradient is there in bf16 and in fp32, the bias's still in bf16 alone.
    end_of_backward = 2 * X + X + SCALAR + 2 * (W + B) + W // 2 + W + B // 2
    assert measured(simple("sgd", amp=True)).peak == PARAMETERS + end_of_backward


def test_a_batch_that_nobody_mentions_is_found_when_it_is_read() -> None:
    training = simple("sgd")
    named = measured(training).peak
    training.optimizer.zero_grad()
    assert step_memory(training.model, training.optimizer, training.step).peak == named


KILO = torch.zeros(256)  # 1,024 bytes


def views_and_in_place() -> None:
    x = KILO.clone()  # 1
    x.view(16, 16).T[3:].add_(1).mul_(2)
    x.relu_()


def chain() -> None:
    x = KILO.clone()
    for _ in range(5):
        x = x + 1  # the new one beside the old one: 2


def held() -> None:
    kept = [KILO + i for i in range(5)]  # 5
    del kept[1:]
    kept.append(KILO + 1)


def foreach() -> None:
    xs = [KILO.clone() for _ in range(3)]  # 3
    torch._foreach_add_(xs, 1.0)
    torch._foreach_sqrt(xs)  # 6


def through_backward() -> None:
    x = KILO.clone().requires_grad_()  # 1
    y = x.exp()  # 2: saved
    z = y.exp()  # 3: saved
    s = z.sum()  # and 4 bytes; sum saves nothing but shapes
    del y, z
    s.backward()  # and 4 bytes of ones; exp's gradient of z: 4; z freed, of y: 4


@pytest.mark.parametrize(
    ("act", "peak"),
    [
        (views_and_in_place, 1024),
        (chain, 2 * 1024),
        (held, 5 * 1024),
        (foreach, 6 * 1024),
        (through_backward, 4 * 1024 + 2 * 4),
    ],
)
def test_peak_of_hand_made_cases(act: Callable[[], None], peak: int) -> None:
    model = nn.Linear(1, 1, bias=False)  # 4 bytes
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert step_memory(model, optimizer, act, [KILO]).peak == 4 + 1024 + peak


def test_what_is_found_late_was_there_at_the_earlier_peak_too() -> None:
    model = nn.Linear(1, 1, bias=False)

    def act() -> None:
        torch.zeros(1000).add_(1)  # 4,000 bytes, gone before KILO is read
        KILO.sum()

    memory = step_memory(model, torch.optim.SGD(model.parameters(), lr=0.1), act)
    assert memory.peak == 4 + 1024 + 4000


def profiled_peak(step: Callable[[], None]) -> int:
    """Return the most bytes that `step` had allocated at one time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = recorded.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def gpt(optimizer: str, amp: bool) -> Training:
    torch.manual_seed(0)
    text = CharText("the cat sat on the mat. " * 20)
    model = CharGPT(len(text.vocabulary), context=32, layers=2, heads=2, width=32)
    batch = next(iter(text_batches(text, 4, 32, steps=1)))
    return Training(
        model, batch, optimizer, amp, lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten())
    )


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adam foreach"])
@pytest.mark.parametrize(
    ("make", "amp", "slack"),
    # An op may allocate within itself: a scalar in fp32, a rearranged copy of its inputs in a bf16
    # matmul on a CPU.
    [(simple, False, 1.001), (gpt, False, 1.001), (gpt, True, 1.25)],
)
def test_peak_is_the_profilers(
    make: Callable[[str, bool], Training], amp: bool, slack: float, optimizer: str
) -> None:
    training = make(optimizer, amp)
    peak = measured(training).peak
    training.optimizer.zero_grad()
    state = [value for one in training.optimizer.state.values() for value in one.values()]
    held = [*training.batch, *training.model.parameters(), *state]
    found = tensor_bytes(held) + profiled_peak(training.step)
    assert peak <= found <= slack * peak
