"""Counted bytes of what is held, against arithmetic from shapes."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from amp_course.kit.memory import bytes_text, step_memory, tensor_bytes
from amp_course.kit.models import DigitsResNet
from tests.kit.trainings import PARAMETERS, STATE, B, W, X, measured, measured_once, simple

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
        step_memory(training.model, training.optimizer, training.step())


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
