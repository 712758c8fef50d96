"""`pin_to_fp32` survives what people do with models: copies, pickles, checkpoints, exceptions, threads."""

import copy
import pickle
from threading import Thread

import pytest
import torch
from torch import nn

from amp_course.scaler.collapse import pin_to_fp32


def pinned():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    pin_to_fp32(model[1])
    return model


def through_a_file(model, tmp_path):
    torch.save(model, tmp_path / "model.pt")
    return torch.load(tmp_path / "model.pt", weights_only=False)


def in_fp32(layer):
    """Whether the layer computes in float32 in a region, from low inputs: exactly what it gives without autocast."""
    x = torch.rand(3, 4).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        assert torch.is_autocast_enabled("cpu")
    return y.dtype == torch.float32 and torch.equal(y, nn.functional.linear(x.float(), layer.weight, layer.bias))


@pytest.mark.parametrize("how", ["itself", "deepcopy", "deepcopy of the layer", "pickle", "torch.save"])
def test_a_copy_is_pinned_and_runs_its_own_weights(how, tmp_path):
    model = pinned()
    layer = {
        "itself": lambda: model[1],
        "deepcopy": lambda: copy.deepcopy(model)[1],
        "deepcopy of the layer": lambda: copy.deepcopy(model[1]),
        "pickle": lambda: pickle.loads(pickle.dumps(model))[1],
        "torch.save": lambda: through_a_file(model, tmp_path)[1],
    }[how]()
    with torch.no_grad():
        layer.weight.fill_(0.1234567)
    assert in_fp32(layer)
    assert how == "itself" or (in_fp32(model[1]) and not torch.equal(layer.weight, model[1].weight))


def test_the_state_dict_is_that_of_a_plain_layer():
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    plain.load_state_dict(pinned().state_dict())
    assert not in_fp32(plain[1]) and torch.equal(plain[1].weight, pinned()[1].weight)


def test_the_region_is_back_after_an_exception_and_the_layer_still_works():
    model = pinned()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(RuntimeError, match="shapes"):
            model[1](torch.rand(3, 5))
        assert torch.is_autocast_enabled("cpu")
    assert in_fp32(model[1])


def test_keywords_and_a_layer_inside_itself():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 4))

        def forward(self, x, *, again):
            x = x @ self.weight
            return self(x, again=False) if again else x

    layer = Twice()
    pin_to_fp32(layer)
    x = torch.rand(3, 4).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x, again=True)
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(y, x.float() @ layer.weight @ layer.weight)


def test_each_thread_leaves_the_region_that_it_entered():
    model, wrong = pinned(), []

    def work():
        wrong.extend([1] for _ in range(50) if not in_fp32(model[1]))

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
