import pytest
import torch

from amp_course.loop import AMP_BF16, FP32
from amp_course.loop.workloads import char_gpt, digits_resnet, simple_net

CPU = torch.device("cpu")


@pytest.mark.parametrize("make", [simple_net, digits_resnet, char_gpt])
def test_recipes_start_from_the_same_weights_and_batches_and_draw_nothing(make):
    before, workload = torch.get_rng_state(), make(CPU)
    one, two = workload.start(FP32), workload.start(AMP_BF16)
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.stepper.model.parameters(), two.stepper.model.parameters(), strict=True)
    )
    for _ in range(3):
        for a, b in zip(next(one.batches), next(two.batches), strict=True):
            assert torch.equal(a, b)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(  # emulated, bf16 may take a hundred times as long
    "recipe", [FP32, pytest.param(AMP_BF16, marks=pytest.mark.slow)], ids=["fp32", "bf16"]
)
def test_digits_are_learned_under_either_recipe(recipe):
    workload = digits_resnet(CPU)
    session = workload.start(recipe)
    record = session.run(66)
    assert record.losses[0] > 2 and sum(record.losses[-5:]) / 5 < 0.2
    assert workload.accuracy(session) > 0.85  # 0.9 to 0.99, by the number of threads that add up


@pytest.mark.slow
def test_loss_of_the_language_model_falls_alike():
    finals = []
    for recipe in (FP32, AMP_BF16):
        record = char_gpt(CPU).start(recipe).run(25)
        assert record.losses[-1] < record.losses[0] - 1
        finals.append(record.losses[-1])
    assert abs(finals[0] - finals[1]) < 0.1


def test_runs_go_on_where_they_stopped():
    parts, whole = (digits_resnet(CPU, batch_size=8).start(FP32) for _ in range(2))
    first, second = parts.run(3), parts.run(2)
    assert first.losses + second.losses == whole.run(5).losses
    assert first.memory and not second.memory and second.warmup == 0


def test_accuracy_counts_right_answers_and_puts_the_mode_back():
    model = torch.nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3, 4))
        model.bias.zero_()
    inputs, targets = torch.eye(4)[:3], torch.tensor([0, 1, 0])  # the last is wrong
    stepper = FP32.prepare(
        model, lambda params: torch.optim.SGD(params, lr=0.1), torch.nn.functional.cross_entropy
    )
    assert stepper.accuracy(inputs, targets) == pytest.approx(2 / 3)
    assert model.training
