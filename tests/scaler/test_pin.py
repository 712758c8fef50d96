"""`pin_to_fp32` survives what people do with models: copies, pickles, checkpoints, exceptions,
threads.
"""

import copy
import pickle
import subprocess
import sys
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
    """Whether the layer computes in float32 in a region, from low inputs:
    exactly what it gives without autocast.
    """
    x = torch.rand(3, 4).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        assert torch.is_autocast_enabled("cpu")
    return y.dtype == torch.float32 and torch.equal(
        y, nn.functional.linear(x.float(), layer.weight, layer.bias)
    )


def replica(layer):
    """What `nn.DataParallel` makes: an attribute copy,
    into which it then puts weights of its own.
    """
    made = layer._replicate_for_data_parallel()
    made.weight, made.bias = layer.weight.detach().clone(), layer.bias
    return made


def shallow(layer):
    made = copy.copy(layer)
    made._parameters = {
        name: nn.Parameter(p.detach().clone()) for name, p in layer._parameters.items()
    }
    return made


COPIES = ["itself", "deepcopy", "deepcopy of the layer", "copy", "replica", "pickle", "torch.save"]


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_pinned_and_runs_its_own_weights(how, tmp_path):
    model = pinned()
    layer = {
        "itself": lambda: model[1],
        "deepcopy": lambda: copy.deepcopy(model)[1],
        "deepcopy of the layer": lambda: copy.deepcopy(model[1]),
        "copy": lambda: shallow(model[1]),
        "replica": lambda: replica(model[1]),
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


def test_a_forward_of_the_layers_own_is_run():
    layer = nn.Linear(4, 4)
    layer.forward = lambda x: x * 2
    pin_to_fp32(layer)
    y = layer(torch.ones(2, dtype=torch.bfloat16))
    assert y.dtype == torch.float32 and torch.equal(y, torch.full((2,), 2.0))


@pytest.mark.parametrize("wrong", ["x", None, nn.Linear])
def test_what_is_no_layer_is_refused(wrong):
    with pytest.raises(TypeError, match="pin_to_fp32 needs a layer"):
        pin_to_fp32(wrong)


def raises(*_):
    raise ArithmeticError


@pytest.mark.parametrize(
    "where", ["pre-hook before", "pre-hook after", "global pre-hook", "hook before", "hook after"]
)
def test_hooks_that_raise_leave_the_region_as_it_was(where):
    layer = nn.Linear(4, 4)
    if where == "pre-hook before":
        handle = layer.register_forward_pre_hook(raises)
    elif where == "hook before":
        handle = layer.register_forward_hook(raises)
    pin_to_fp32(layer)
    if where == "pre-hook after":
        handle = layer.register_forward_pre_hook(raises)
    elif where == "hook after":
        handle = layer.register_forward_hook(raises)
    elif where == "global pre-hook":
        handle = nn.modules.module.register_module_forward_pre_hook(raises)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(2):
                with pytest.raises(ArithmeticError):
                    layer(torch.rand(2, 4))
                assert torch.is_autocast_enabled("cpu")
    finally:
        handle.remove()
    assert in_fp32(layer)


def test_a_call_inside_itself_that_fails_leaves_the_outer_call_in_fp32():
    seen = []

    class Tries(nn.Module):
        def forward(self, x, depth):
            seen.append(torch.is_autocast_enabled("cpu"))
            if depth:
                with pytest.raises(ArithmeticError):
                    self(x, depth - 1)
                seen.append(torch.is_autocast_enabled("cpu"))
            return x

    def fails(layer, inputs):
        if inputs[1] == 0:
            raise ArithmeticError

    layer = Tries()
    layer.register_forward_pre_hook(fails)
    pin_to_fp32(layer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(torch.rand(2), 1)
        assert torch.is_autocast_enabled("cpu") and seen == [False, False]


def test_an_interrupt_ends_with_the_region_and_the_cache_of_weights_goes_on():
    class Stops(nn.Linear):
        def forward(self, x):
            if x.numel() == 4:
                raise KeyboardInterrupt
            return super().forward(x)

    layer, plain = Stops(4, 4), nn.Linear(4, 4)
    pin_to_fp32(layer)
    with pytest.raises(KeyboardInterrupt), torch.autocast("cpu", dtype=torch.bfloat16):
        layer(torch.rand(1, 4))
    assert in_fp32(layer)
    outputs = []
    for value in (
        1.0,
        2.0,
    ):  # were the region still counted as open, the second would use the cached copy of the first
        with torch.no_grad():
            plain.weight.fill_(value)
            plain.bias.zero_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs.append(plain(torch.ones(1, 4))[0, 0].item())
    assert outputs == [4.0, 8.0]


_ELSEWHERE = """
import sys, torch
from torch import nn

model = torch.load(sys.argv[1], weights_only=False)
handles = [
    model[1].register_forward_hook(lambda *_: None),
    model[1].register_forward_pre_hook(lambda *_: None),
]
for handle in handles:
    handle.remove()
with torch.autocast("cpu", dtype=torch.bfloat16):
    print(model[1](torch.rand(2, 4)).dtype, torch.is_autocast_enabled("cpu"))
"""


@pytest.mark.slow
def test_in_another_process_other_hooks_do_not_take_its_place(tmp_path):
    path = tmp_path / "model.pt"
    save = (
        "import sys, torch; from tests.scaler.test_pin import pinned; torch.save(pinned(), "
        "sys.argv[1])"
    )
    for code in (save, _ELSEWHERE):
        done = subprocess.run(
            [sys.executable, "-c", code, path],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["torch.float32", "True"]


@pytest.mark.filterwarnings("ignore")  # PyTorch's compiler looks at .grad of tensors that have none
@pytest.mark.parametrize("how", ["the model", "the layer", "module.compile"])
def test_compiled_it_computes_the_same(how):
    model, plain = pinned(), pinned()
    if how == "the model":
        compiled = torch.compile(model, backend="eager")
    elif how == "the layer":
        model[1] = torch.compile(model[1], backend="eager")
        compiled = model
    else:
        model.compile(backend="eager")
        compiled = model
    x = torch.rand(3, 4)
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = compiled(x)
            assert torch.is_autocast_enabled("cpu")
            assert y.dtype == torch.float32 and torch.equal(y, plain(x))
