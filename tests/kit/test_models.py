"""The models: shapes, sizes, what they may not see, and that they learn."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from amp_course.kit.data import CharText, digit_batches, digits, documentation_text, text_batches
from amp_course.kit.models import CharGPT, DigitsResNet, SimpleNet


def train(
    model: nn.Module, batches: object, loss_fn: Callable[[Tensor, Tensor], Tensor], lr: float
) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    for x, y in batches:  # type: ignore[attr-defined]
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_simple_net_is_three_layers_with_relu_after_two() -> None:
    torch.manual_seed(0)
    net = SimpleNet(5)
    x = torch.randn(3, 5)
    hidden = x
    for i, layer in enumerate((net.linear1, net.linear2, net.linear3)):
        hidden = torch.einsum("bi,oi->bo", hidden, layer.weight) + layer.bias
        hidden = hidden if i == 2 else hidden.clamp(min=0)
    torch.testing.assert_close(net(x), hidden)
    assert count(net) == 3 * (5 * 5 + 5)


@pytest.mark.parametrize(
    ("device", "width", "batch"), [("cpu", 1024, 128), ("meta", 4096, 512)]
)  # "meta" stands in for a GPU
def test_simple_net_has_a_size_for_each_device(device: str, width: int, batch: int) -> None:
    net = SimpleNet.for_device(device)
    assert net.linear1.weight.shape == (width, width)
    assert net.linear1.weight.device.type == device
    assert SimpleNet.batch_size_for(device) == batch


def test_the_others_are_larger_off_the_cpu() -> None:
    assert count(DigitsResNet.for_device("meta")) > 10 * count(DigitsResNet.for_device("cpu"))
    assert count(CharGPT.for_device("meta", 103)) > 5 * count(CharGPT.for_device("cpu", 103))
    for model in (DigitsResNet, CharGPT):
        assert model.batch_size_for("meta") > model.batch_size_for("cpu")
        assert model.batch_size_for("cpu") % 8 == 0


def test_the_resnet_reads_digits_and_has_batch_norm() -> None:
    net = DigitsResNet(4)
    assert net(torch.rand(6, 1, 8, 8)).shape == (6, 10)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in net.modules()) == 5


def test_the_resnet_learns_the_digits() -> None:
    torch.manual_seed(0)
    data = digits()
    net = DigitsResNet.for_device("cpu")
    train(
        net,
        digit_batches(data, DigitsResNet.batch_size_for("cpu"), epochs=2),
        F.cross_entropy,
        lr=3e-3,
    )
    net.eval()
    with torch.no_grad():
        right = (net(data.test_x).argmax(dim=1) == data.test_y).float().mean().item()
    assert right > 0.9


@pytest.mark.slow
def test_the_gpt_learns_to_spell() -> None:
    torch.manual_seed(0)
    text = CharText(documentation_text())
    model = CharGPT.for_device("cpu", len(text.vocabulary))
    batches = text_batches(text, CharGPT.batch_size_for("cpu"), model.context, steps=40)
    losses = train(
        model,
        batches,
        lambda logits, y: F.cross_entropy(logits.flatten(0, 1), y.flatten()),
        lr=1e-3,
    )
    uniform = torch.tensor(len(text.vocabulary)).log().item()
    assert losses[0] == pytest.approx(uniform, abs=0.3)
    assert sum(losses[-5:]) / 5 < losses[0] - 1


def small_gpt() -> CharGPT:
    torch.manual_seed(0)
    return CharGPT(vocab_size=11, context=8, layers=2, heads=2, width=12)


def test_the_gpt_gives_logits_and_has_the_parameters_its_shape_says() -> None:
    model = small_gpt()
    assert model(torch.zeros(3, 8, dtype=torch.int64)).shape == (3, 8, 11)
    assert model(torch.zeros(3, 5, dtype=torch.int64)).shape == (3, 5, 11)
    block = 2 * 2 * 12 + (12 + 1) * 36 + (12 + 1) * 12 + (12 + 1) * 48 + (48 + 1) * 12
    assert count(model) == 11 * 12 + 8 * 12 + 2 * block + 2 * 12 + 12 * 11


def test_the_gpt_sees_no_future_and_all_of_the_past() -> None:
    model = small_gpt()
    ids = torch.arange(8)[None] % 11
    changed = ids.clone()
    changed[0, 4] = 10
    difference = (model(ids) - model(changed)).abs().amax(dim=2)[0]
    assert torch.equal(difference[:4], torch.zeros(4))
    assert (difference[4:] > 0).all()


def test_the_gpt_knows_positions() -> None:
    logits = small_gpt()(torch.full((1, 8), 3))[0]
    assert not torch.allclose(logits[0], logits[1])


def test_attention_mixes_heads_as_the_formula_says() -> None:
    block = small_gpt().blocks[0]
    x = torch.randn(1, 5, 12)
    q, k, v = block.qkv(x)[0].split(12, dim=1)  # type: ignore[operator]
    mixed = []
    for head in (slice(0, 6), slice(6, 12)):
        scores = q[:, head] @ k[:, head].T / 6**0.5
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
        mixed.append(scores.softmax(dim=1) @ v[:, head])
    expected = block.out(torch.cat(mixed, dim=1))  # type: ignore[operator]
    torch.testing.assert_close(block.attend(x)[0], expected)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CharGPT(11, 8, 2, 5, 12), "width 12 cannot be split among 5 heads"),
        (lambda: small_gpt()(torch.zeros(1, 9, dtype=torch.int64)), "only 8 positions"),
    ],
)
def test_models_refuse(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_run_under_autocast_and_give_finite_gradients(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cases: list[tuple[nn.Module, Tensor]] = [
        (SimpleNet(16), torch.randn(4, 16)),
        (DigitsResNet(4), torch.rand(4, 1, 8, 8)),
        (small_gpt(), torch.randint(11, (2, 8))),
    ]
    for model, x in cases:
        with torch.autocast("cpu", dtype):
            y = model(x)
        assert y.dtype == dtype
        y.float().square().mean().backward()
        assert all(
            parameter.grad is not None and parameter.grad.isfinite().all()
            for parameter in model.parameters()
        )
