"""Counted bytes against three oracles: arithmetic from shapes, the profiler's record of every
allocation, CUDA's own.

For a SimpleNet of width w and a batch of b, in bytes: X = 4bw is an fp32 batch of activations, W =
4w² a weight, B = 4w a bias. In bf16 each is half.
"""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from amp_course.kit.data import CharText, text_batches
from amp_course.kit.memory import StepMemory, bytes_text, step_memory, tensor_bytes
from amp_course.kit.models import CharGPT, DigitsResNet, SimpleNet

WIDTH, BATCH = 64, 32
X, W, B = 4 * BATCH * WIDTH, 4 * WIDTH**2, 4 * WIDTH
PARAMETERS = 3 * (W + B)
COUNTERS = 6 * 4  # Adam's number of steps, an fp32 number for each of 6 parameters
SCALAR = 4

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, foreach=False),
    "momentum": lambda parameters: torch.optim.SGD(
        parameters, lr=1e-3, momentum=0.9, foreach=False
    ),
    "adam": lambda parameters: torch.optim.Adam(parameters, foreach=False),
    "adam foreach": lambda parameters: torch.optim.Adam(parameters, foreach=True),
}
STATE = {"sgd": 0, "momentum": PARAMETERS, "adam": 2 * PARAMETERS + COUNTERS}


def autocast(on: bool) -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16) if on else nullcontext()


class Training:
    """A model, its optimizer and one batch, after a first step,
    so that the optimizer has its state.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: tuple[Tensor, Tensor],
        optimizer: str,
        amp: bool,
        loss_fn: Callable = F.mse_loss,
    ) -> None:
        self.model, self.batch, self.amp, self.loss_fn = model, batch, amp, loss_fn
        self.optimizer = OPTIMIZERS[optimizer](model.parameters())
        self.step()
        self.optimizer.zero_grad()

    def step(self) -> None:
        x, y = self.batch
        with autocast(self.amp):
            loss = self.loss_fn(self.model(x), y)
        loss.backward()
        self.optimizer.step()


def simple(optimizer: str = "sgd", amp: bool = False) -> Training:
    torch.manual_seed(0)
    batch = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    return Training(SimpleNet(WIDTH), batch, optimizer, amp)


def measured_once(model: nn.Module) -> StepMemory:
    return step_memory(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: None)


def measured(training: Training) -> StepMemory:
    return step_memory(training.model, training.optimizer, training.step, training.batch)


# --- what is held ---


@pytest.mark.parametrize("optimizer", STATE)
@pytest.mark.parametrize("amp", [False, True])
def test_what_is_held_is_the_hand_count(optimizer: str, amp: bool) -> None:
    training = simple(optimizer, amp)
    memory = measured(training)
    assert memory.parameters == PARAMETERS
    assert memory.gradients == PARAMETERS  # in fp32 under autocast too
    assert memory.optimizer_state == STATE[optimizer]
    assert memory.buffers == 0
    assert memory.cuda_peak is None


def test_batch_norm_holds_buffers() -> None:
    # 5 norms of 4 channels: a running mean, a running variance, an int64 count of batches
    assert tensor_bytes(DigitsResNet(4).buffers()) == 5 * (2 * 4 * 4 + 8)


def test_tied_weights_and_views_count_once() -> None:
    first, second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    second.weight = first.weight
    tied = nn.Sequential(first, second)
    assert measured_once(tied).parameters == 4 * 9
    x = torch.zeros(10, 10, dtype=torch.float16)
    assert tensor_bytes([x, x.T, x[0], x.view(100)]) == 200
    assert tensor_bytes([x[0]]) == 200  # a view keeps its whole storage alive


def test_a_sparse_gradient_counts_its_indices_and_values() -> None:
    table = nn.Embedding(100, 8, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    ids = torch.tensor([1, 5, 5])

    def step() -> None:
        table(ids).sum().backward()
        optimizer.step()

    assert step_memory(table, optimizer, step, [ids]).gradients == 3 * 8 + 3 * 8 * 4


# --- what autograd saves ---


def test_activations_in_fp32_are_the_hand_count() -> None:
    memory = measured(simple())
    # each layer saves its input: x, then the output of each ReLU, which the ReLU saves too (the
    # same storage); the loss saves the output and the target. The weights that the layers save are
    # parameters.
    assert memory.activations == X + 2 * X + X + X
    assert memory.cast_copies == 0


def test_activations_under_autocast_are_the_hand_count() -> None:
    memory = measured(simple(amp=True))
    # x in bf16 and two ReLU outputs in bf16; on a CPU the loss runs in fp32: the output cast back,
    # and the target
    assert memory.activations == X // 2 + 2 * (X // 2) + X + X
    # every weight and bias once in bf16, though autograd saves only the second and third weight
    assert memory.cast_copies == PARAMETERS // 2


def test_cast_copies_are_cast_again_where_the_cache_is_off_and_freed_if_not_saved() -> None:
    training = simple()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            y = training.model(training.batch[0])
        y.float().square().mean().backward()

    memory = step_memory(training.model, training.optimizer, step, training.batch)
    # in the third layer: two saved weights, and its bias
    assert memory.cast_copies == 2 * (W // 2) + B // 2


def test_saved_views_of_one_storage_count_once() -> None:
    weight = nn.Parameter(torch.ones(()))
    model = nn.Module()
    model.weight = weight
    x = torch.randn(8, 8)

    def step() -> None:
        ((weight * x).sum() + (weight * x.T).sum() + (weight * x[2:]).sum()).backward()

    memory = step_memory(model, torch.optim.SGD([weight], lr=0.1), step, [x])
    assert memory.activations == 4 * 64


def test_checkpointing_saves_only_what_goes_in() -> None:
    torch.manual_seed(0)
    training = simple()
    x = training.batch[0].requires_grad_()

    def step() -> None:
        checkpoint(training.model, x, use_reentrant=False).sum().backward()

    assert step_memory(training.model, training.optimizer, step, training.batch).activations == X


# --- the peak ---


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
    """Return the most bytes that `step` had allocated at one time,
    from the record of every allocation.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = [
        event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def gpt(optimizer: str, amp: bool) -> Training:
    torch.manual_seed(0)
    text = CharText("the cat sat on the mat. " * 20)
    model = CharGPT(len(text.vocabulary), context=32, layers=2, heads=2, width=32)
    batch = next(iter(text_batches(text, 4, 32, steps=1)))
    return Training(
        model,
        batch,
        optimizer,
        amp,
        lambda logits, y: F.cross_entropy(logits.flatten(0, 1), y.flatten()),
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


# --- steps of other kinds ---


@pytest.mark.parametrize("overflow", [False, True])
def test_gradients_count_under_a_scaler_also_when_it_skips_the_step(overflow: bool) -> None:
    training = simple()
    scaler = torch.amp.GradScaler("cpu")
    x, y = training.batch
    steps_before = copy.deepcopy(training.model.state_dict())

    def step() -> None:
        loss = F.mse_loss(training.model(x), y) * (float("inf") if overflow else 1)
        scaler.scale(loss).backward()
        scaler.step(training.optimizer)
        scaler.update()
        training.optimizer.zero_grad()

    memory = step_memory(training.model, training.optimizer, step, training.batch)
    after = training.model.state_dict()
    assert overflow == all(torch.equal(after[name], value) for name, value in steps_before.items())
    assert memory.gradients == PARAMETERS


def test_nothing_is_left_behind_when_the_step_raises() -> None:
    training = simple()

    def fail() -> None:
        training.step()
        raise KeyError("in the middle")

    with pytest.raises(KeyError):
        step_memory(training.model, training.optimizer, fail)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    seen: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: seen.append(tensor) or tensor, lambda tensor: tensor
    ):
        training.step()
    assert seen  # hooks put in place now are the ones that are called


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="ReLU has no parameters"):
        step_memory(nn.ReLU(), simple().optimizer, lambda: None)
    training = simple()
    with pytest.raises(TypeError, match="without calling it"):
        step_memory(training.model, training.optimizer, training.step())  # type: ignore[func-returns-value,arg-type]


# --- how it reads ---


def test_the_parts_add_up_and_go_through_json() -> None:
    memory = measured(simple("adam", amp=True))
    parts = memory.to_dict()
    named = ["parameters", "buffers", "gradients", "optimizer_state", "activations", "cast_copies"]
    assert memory.total == parts["total"] == sum(parts[name] for name in named)
    assert set(parts) == {*memory.__dataclass_fields__, "total"}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1_572_864, "1.50 MiB"),
        (12_595_200, "12.0 MiB"),
        (1000 * 2**20, "1000 MiB"),
        (2**30 - 1, "1.00 GiB"),
        (3 * 2**50, "3072 TiB"),
    ],
)
def test_bytes_text(count: int, text: str) -> None:
    assert bytes_text(count) == text
