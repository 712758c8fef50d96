"""The gradient recorder: what it keeps is what autograd computed, on models of every make."""

import pytest
import torch
from torch import nn

from amp_course.kit.models import CharGPT, DigitsResNet
from amp_course.underflow import GradientRecorder


def small():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


def test_weights_are_the_parameters_gradients_and_nothing_is_changed():
    model, plain = small(), small()
    with GradientRecorder(model) as recorder:
        model(X).square().sum().backward()
    plain(X).square().sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    assert list(recorder.weights) == ["0", "2"]
    for name, layer in (("0", plain[0]), ("2", plain[2])):
        expected = torch.cat([layer.weight.grad.flatten(), layer.bias.grad])
        assert sorted(recorder.weights[name].tolist()) == pytest.approx(sorted(expected.tolist()))


def test_outputs_are_the_gradients_of_what_each_layer_gave():
    model = small()
    with GradientRecorder(model) as recorder:
        model(X).square().sum().backward()
    first = model[0](X).detach().requires_grad_()
    middle = model[1](first)
    middle.retain_grad()
    last = model[2](middle)
    last.retain_grad()
    last.square().sum().backward()
    expected = {"0": first.grad, "1": middle.grad, "2": last.grad}
    assert list(recorder.outputs) == ["0", "1", "2"]
    for name, gradient in expected.items():
        assert torch.allclose(recorder.outputs[name], gradient.flatten())


def test_copies_survive_zero_grad_and_several_passes_are_joined():
    model = small()
    with GradientRecorder(model) as recorder:
        for _ in range(2):
            model(X).sum().backward()
            model.zero_grad(set_to_none=False)
    assert len(recorder.weights["0"]) == 2 * 16 and len(recorder.outputs["2"]) == 2 * 10
    half = recorder.weights["0"].view(2, -1)
    assert torch.equal(half[0], half[1]) and half.any()


def test_no_hook_is_left_behind_also_after_an_error():
    model = small()
    with pytest.raises(RuntimeError, match="on purpose"), GradientRecorder(model):
        model(X).sum().backward()
        raise RuntimeError("on purpose")
    assert not any(layer._forward_hooks for layer in model.modules())
    assert not any(parameter._backward_hooks for parameter in model.parameters())
    with GradientRecorder(model) as recorder:
        pass
    model(X).sum().backward()
    with pytest.raises(ValueError, match="nothing was recorded"):
        _ = recorder.weights


class Odd(nn.Module):
    """Tuple outputs, an in-place op after a layer, a tied weight, a frozen layer,
    a parameter of its own, one unused.
    """

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.embed = nn.Embedding(7, 4)
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(2, 2)

    def forward(self, ids):
        y, _ = self.lstm(self.embed(ids))
        y = self.frozen(y)
        y += 1
        return self.head(self.relu(y)) * self.gain


def test_odd_models_are_recorded_too():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Odd()
    with GradientRecorder(model) as recorder:
        model(torch.arange(6).view(2, 3)).square().mean().backward()
    assert set(recorder.weights) == {"(model)", "embed", "lstm"}
    assert len(recorder.weights["embed"]) == 28  # the tied weight once
    assert {"(model)", "embed", "lstm", "frozen", "head"} <= set(recorder.outputs)


def test_sparse_gradients_give_their_values():
    embedding = nn.Embedding(10, 2, sparse=True)
    with GradientRecorder(embedding) as recorder:
        embedding(torch.tensor([1, 1, 3])).sum().backward()
    assert recorder.weights["(model)"].tolist() == [2.0, 2.0, 1.0, 1.0]


def test_a_frozen_model_is_refused():
    with pytest.raises(ValueError, match="no parameter of this Linear needs a gradient"):
        GradientRecorder(nn.Linear(2, 2).requires_grad_(False))


@pytest.mark.parametrize("model", [CharGPT(11, 8, 1, 2, 16), DigitsResNet(4)], ids=["gpt", "cnn"])
def test_the_courses_models_show_all_their_layers(model):
    inputs = torch.randint(11, (2, 8)) if isinstance(model, CharGPT) else torch.rand(2, 1, 8, 8)
    with GradientRecorder(model) as recorder:
        model(inputs).square().mean().backward()
    owners = {
        name for name, layer in model.named_modules() if list(layer.parameters(recurse=False))
    }
    assert set(recorder.weights) == owners == set(recorder.outputs)
    recorded = sum(gradient.numel() for gradient in recorder.weights.values())
    assert recorded == sum(parameter.numel() for parameter in model.parameters())
