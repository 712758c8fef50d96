"""Errors that answers raise, each provoked from the real torch, whose messages may change."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from amp_course.checking.workplace import NoInput


def scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu")


def setting(
    dtype: torch.dtype = torch.float32,
) -> tuple[nn.Parameter, torch.optim.Optimizer, torch.amp.GradScaler]:
    weight = nn.Parameter(torch.ones(2, dtype=dtype))
    return weight, torch.optim.SGD([weight], lr=0.1), scaler()


PROVOKED: list[tuple[Callable[[], Any], str]] = []


def provokes(words: str) -> Callable[..., Any]:
    """Collect a function that raises an error, and words of its explanation."""
    return lambda function: PROVOKED.append((function, words)) or function


@provokes("found no gradient to look at")
def step_without_backward():
    weight, optimizer, s = setting()
    s.scale(weight.sum())
    s.step(optimizer)


@provokes("found no gradient to look at")
def step_after_zero_grad():
    weight, optimizer, s = setting()
    s.scale(weight.sum()).backward()
    optimizer.zero_grad()
    s.step(optimizer)


@provokes("since the last `update()`, or since the start")
def update_without_step():
    weight, _, s = setting()
    s.scale(weight.sum()).backward()
    s.update()


@provokes("never asked to scale")
def step_without_scale():
    weight, optimizer, s = setting()
    weight.sum().backward()
    s.step(optimizer)


@provokes("never asked to scale")
def unscale_without_scale():
    weight, optimizer, s = setting()
    weight.sum().backward()
    s.unscale_(optimizer)


@provokes("never asked to scale")
def update_without_scale():
    scaler().update()


@provokes("ran twice with no `scaler.update()`")
def unscale_twice():
    weight, optimizer, s = setting()
    s.scale(weight.sum()).backward()
    s.unscale_(optimizer)
    s.unscale_(optimizer)


@provokes("missing or out of place")
def unscale_after_step():
    weight, optimizer, s = setting()
    s.scale(weight.sum()).backward()
    s.step(optimizer)
    s.unscale_(optimizer)


@provokes("one step, one update")
def step_twice():
    weight, optimizer, s = setting()
    s.scale(weight.sum()).backward()
    s.step(optimizer)
    s.step(optimizer)


@provokes("leave out `.half()`")
def half_parameters():
    weight, optimizer, s = setting(torch.float16)
    s.scale(weight.sum()).backward()
    s.unscale_(optimizer)


@provokes("Compute the loss again")
def backward_twice():
    loss = (setting()[0] ** 2).sum()
    loss.backward()
    loss.backward()


@provokes("reduce the loss")
def backward_of_a_vector():
    (setting()[0] * 2).backward()


@provokes("not connected to the parameters")
def backward_of_a_number_made_new():
    torch.tensor(setting()[0].sum().item()).backward()


@provokes("not connected to the parameters")
def backward_under_no_grad():
    with torch.no_grad():
        loss = setting()[0].sum()
    loss.backward()


@provokes("use `torch.no_grad()`; otherwise make a new tensor")
def parameter_changed_in_place():
    setting()[0].add_(1)


@provokes("inference mode met autograd")
def inference_tensor_in_backward():
    with torch.inference_mode():
        x = torch.ones(2)
    (setting()[0] * x).sum().backward()


@provokes("inference mode met autograd")
def inference_tensor_changed():
    with torch.inference_mode():
        x = torch.ones(2)
    x.add_(1)


@provokes("different dtypes met")
def half_input_to_linear():
    nn.Linear(2, 2)(torch.ones(1, 2).half())


@provokes("different dtypes met")
def half_input_to_conv():
    nn.Conv2d(1, 1, 1)(torch.ones(1, 1, 2, 2).bfloat16())


@provokes("different dtypes met")
def float_input_to_half_norm():
    nn.BatchNorm1d(2).bfloat16()(torch.ones(3, 2))


@provokes("different dtypes met")
def half_input_to_lstm():
    nn.LSTM(2, 2)(torch.ones(1, 1, 2).half())


@provokes("different dtypes met")
def half_times_float():
    torch.bmm(torch.ones(1, 2, 2).half(), torch.ones(1, 2, 2))


@provokes("different dtypes met")
def attention_of_mixed_dtypes():
    q, k = torch.ones(1, 2, 2).half(), torch.ones(1, 2, 2)
    nn.functional.scaled_dot_product_attention(q, k, k)


@provokes("no 16-bit version here")
def half_inverse():
    torch.linalg.inv(torch.eye(2).half())


@provokes("no 16-bit version here")
def half_distances():
    torch.cdist(torch.eye(2).half(), torch.eye(2).half())


@provokes("beyond the range of this 16-bit format")
def mask_beyond_range():
    torch.ones(2).half().masked_fill(torch.tensor([True, False]), -1e9)


@provokes("NumPy has no bf16")
def bf16_to_numpy():
    torch.ones(2).bfloat16().numpy()


@provokes("different devices")
def two_devices():
    nn.Linear(2, 2, device="meta")(torch.ones(1, 2))


def takes_two(model, inputs, *, key): ...


@provokes("compare its signature")
def too_few_arguments():
    takes_two(1, key=2)


@provokes("compare its signature")
def too_many_arguments():
    takes_two(1, 2, 3, key=2)


@provokes("compare its signature")
def keyword_missing():
    takes_two(1, 2)


@provokes("compare its signature")
def unknown_keyword():
    takes_two(1, 2, key=3, colour=4)


@provokes("compare its signature")
def given_twice():
    takes_two(1, 2, model=3, key=4)


@provokes("set TMPDIR")
def no_temporary_folder():
    raise FileNotFoundError(
        2, "No usable temporary directory found in ['/tmp', '/var/tmp']"
    )  # as tempfile does


@provokes("used before it is defined")
def undefined_name():
    return not_defined_anywhere  # noqa: F821


@provokes("calls itself endlessly")
def endless_recursion():
    endless_recursion()


@provokes("`return`")
def exits():
    raise SystemExit(0)


@provokes("`assert` did not hold")
def asserts():
    assert len([]) == 1


@provokes("no GPU here")
def asks_for_a_gpu():
    raise AssertionError(
        "Torch not compiled with CUDA enabled"
    )  # what `.cuda()` raises in torch's CPU build


@provokes("to debug your function, call it yourself")
def asks() -> None:
    NoInput().readline()  # `sys.stdin` while a check runs


def raised_by(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError(f"{function.__name__} raised nothing")


@provokes("the int 0")
def all_reduce_of_nothing():
    torch.distributed.all_reduce(sum(one.norm() for one in []))
