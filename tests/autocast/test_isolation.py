"""Tracing a copy of a model, on a GPU or on one that is only imitated."""

import pytest
import torch
from torch import nn

from amp_course.autocast import TraceError, is_fake, trace
from amp_course.autocast.isolation import _get, moved_copy
from amp_course.kit.models import SimpleNet
from tests.autocast.traced import models


@pytest.mark.skipif(
    not is_fake("cuda"), reason="with a GPU, autocast('cuda') in a model needs no fake"
)
def test_cuda_without_a_gpu_says_that_it_is_fake():
    traced = trace(SimpleNet(8), torch.randn(2, 8), device_type="cuda", dtype=torch.float16)
    assert traced.fake and "fake" in str(traced)
    assert not traced.has_backward and "real GPU" in traced.notes[0]
    assert traced["linear1"].outputs == (torch.float16,)


@pytest.mark.parametrize("name", ["DigitsResNet", "encoder"])
def test_models_are_traced_on_cuda_by_a_copy(name):
    model, inputs = models()[name]
    before = {key: one.clone() for key, one in model.state_dict().items()}
    traced = trace(model, *inputs, device_type="cuda", dtype=torch.float16)
    assert traced.casts() and {path for path, _ in model.named_modules() if path} >= {
        row.path for row in traced.modules if row.path != "(model)"
    }
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert all(torch.equal(one, before[key]) for key, one in model.state_dict().items())


class Decides(nn.Module):
    def forward(self, x):
        return x * 2 if (x @ x.T).sum() > 0 else x


@pytest.mark.skipif(not is_fake("cuda"), reason="only fake tensors have no values")
def test_a_result_that_depends_on_values_is_explained_among_fakes():
    trace(Decides(), torch.randn(3, 3), device_type="cpu")
    with pytest.raises(TraceError, match="depends on values, and a fake tensor has none"):
        trace(Decides(), torch.randn(3, 3), device_type="cuda")


@pytest.mark.parametrize(
    "index",
    [
        *(-1, slice(None, None, 2), None, ..., (slice(None), -1), (None, 1, ..., slice(2))),
        *([1, 0, 1], torch.tensor([True, False]), (slice(None), torch.tensor([2, 0]))),
    ],
    ids=str,
)
def test_indexing_of_fakes_is_that_of_tensors(index):
    x = torch.arange(24).reshape(2, 3, 4)
    assert torch.equal(_get(x, index), x[index])


def test_a_copy_on_another_device_computes_the_same_and_keeps_tied_weights():
    model, inputs = models()["CharGPT"]
    model.head.weight = model.characters.weight
    moved, arguments = moved_copy(model, (inputs, {}), "cpu", fake=False)
    assert torch.equal(moved(*arguments[0]), model(*inputs))
    assert moved.head.weight is moved.characters.weight is not model.head.weight
    assert moved.head.weight.requires_grad


def test_a_model_that_cannot_be_copied_says_why():
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(2, 2)
            self.output = self.line(torch.ones(2))  # no leaf, which deepcopy refuses

    with pytest.raises(ValueError, match="register_buffer"):
        moved_copy(Holds(), ((), {}), "cpu", fake=False)
