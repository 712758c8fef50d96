"""The words for what answers raise, each provoked from the real torch:
a message that changes is found here.
"""

import errno
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import torch
from torch import nn

from amp_course.checking.explain import _KNOWN, explain, signature, where
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


@provokes("do it under `torch.no_grad()`")
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


@provokes("beyond fp16's range")
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


MINE = explain.__code__.co_filename.replace("amp_course/", "amp_course_mine/")


@provokes("to debug your function, call it yourself")
def asks() -> None:
    NoInput().readline()  # `sys.stdin` while a check runs


def raised_by(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError(f"{function.__name__} raised nothing")


@pytest.mark.parametrize(
    ("function", "words"), PROVOKED, ids=lambda value: getattr(value, "__name__", "")
)
def test_known_message_is_explained(function: Callable[[], Any], words: str) -> None:
    error = raised_by(function)
    text = explain(error)
    assert text.startswith(f"your code raised {type(error).__name__}")
    assert words in text.split("`", 2)[2], text  # after the message and the line that are quoted
    first, last = (
        function.__code__.co_firstlineno,
        max(line or 0 for _, _, line in function.__code__.co_lines()),
    )
    assert any(f"in line {n}, `" in text for n in [*range(first, last + 1)]), text
    assert "\n" not in text


def test_every_known_pattern_is_provoked() -> None:
    found = set()
    for function, _ in PROVOKED:
        error = raised_by(function)
        raised = f"{type(error).__name__}: {error}".strip()
        found.add(next(n for n, pattern in enumerate(_KNOWN) if re.search(pattern, raised)))
    assert found == set(range(len(_KNOWN)))


@pytest.mark.parametrize(
    "use",
    [
        "p.grad /= 2",
        "p.grad = p.grad / 2",
        "torch.isfinite(p.grad)",
        "p.data.sub_(p.grad)",
        "p.grad.mul_(0.5)",
        "nn.utils.get_total_norm([p.grad, torch.ones(1)])",
        "nn.utils.get_total_norm([torch.ones(1), p.grad])",
    ],
)
def test_a_gradient_that_is_none_is_explained_however_it_is_used(use: str) -> None:
    with NamedTemporaryFile("w", suffix=".py") as file:
        file.write(use)
        file.flush()
        names = {"torch": torch, "nn": nn, "p": nn.Parameter(torch.ones(1))}
        text = explain(raised_by(lambda: exec(compile(use, file.name, "exec"), names)))
    assert text.endswith("Skip that parameter") and f"`{use}`: a gradient is None" in text, text


def test_the_line_is_the_learners_own_innermost() -> None:
    def inner() -> None:
        nn.Linear(3, 2)(torch.ones(2, 2))  # this line

    assert where(raised_by(lambda: inner())).endswith(
        "`nn.Linear(3, 2)(torch.ones(2, 2))  # this line`"
    )


@pytest.mark.parametrize(
    "file",
    [
        "/home/me/course/.venv/lib/python3.11/site-packages/torch/nn/modules/linear.py",
        "/home/me/.local/lib/python3.12/site-packages/torch/x.py",
        "/usr/lib/python3/dist-packages/numpy/x.py",
        r"C:\Users\me\course\.venv\Lib\site-packages\torch\x.py",
        "<frozen importlib._bootstrap>",
        re.__file__,
        explain.__code__.co_filename,
    ],
)
def test_library_lines_are_not_the_learners(file: str) -> None:
    names: dict[str, Any] = {}
    exec(compile("\n\ndef f(call): call()", file, "exec"), names)

    def fails() -> None:
        raise ValueError("x")

    text = where(raised_by(lambda: names["f"](fails)))
    assert text.endswith('`raise ValueError("x")`')
    exec(compile("\n\ndef f(call): 1 / 0", file, "exec"), names)
    assert "names" in where(raised_by(lambda: names["f"](None)))  # the line that called it


@pytest.mark.parametrize(
    "file",
    ["/tmp/ipykernel_12/345.py", "<stdin>", MINE],
)
def test_learners_files(file: str) -> None:
    names: dict[str, Any] = {}
    exec(compile("\n\ndef f(): 1 / 0", file, "exec"), names)
    assert where(raised_by(names["f"])) == " in line 3"


def test_a_function_that_cannot_be_called_as_the_task_says() -> None:
    text = explain(TypeError("f() takes 1 positional argument but 5 were given"))
    assert "compare its signature with the call" in text
    assert "5 were given" in text


def test_not_implemented() -> None:
    def todo() -> None:
        raise NotImplementedError

    assert re.fullmatch(
        r"your code raised NotImplementedError in line \d+, `raise NotImplementedError`: part of "
        r"it is still to be written",
        explain(raised_by(todo)),
    )
    text = explain(raised_by(lambda: nn.Module()(1)))
    assert 'missing the required "forward" function' in text
    assert "still to be written" not in text


def test_a_full_disk_is_not_the_answers_fault() -> None:
    """Raised by the judge, when it writes a file to try the answer with."""
    text = explain(OSError(errno.ENOSPC, "No space left on device"))
    assert text == (
        "the check could not continue with your answer (OSError: [Errno 28] No space left on "
        "device). The disk is full, so delete something from it"
    )


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Broken(), "raised Broken in line"),
        (ValueError(), "raised ValueError in line"),
        (ValueError("x" * 10**6), "raised ValueError (xxx"),
        (ValueError("first\nsecond"), "raised ValueError (first) in line"),
        (ValueError("a \ud800 b"), "raised ValueError (a ? b) in line"),
        (
            ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
            "raised ExceptionGroup (two (2 sub-exceptions)) in line",
        ),
        (GeneratorExit(), "raised GeneratorExit in line"),
    ],
)
def test_unusual_errors(error: BaseException, words: str) -> None:
    def fails() -> None:
        raise error

    text = explain(raised_by(fails))
    assert words in text
    assert len(text) < 500
    text.encode()


def test_errors_of_one_cause_are_alike_in_any_folder(tmp_path: Path) -> None:
    def missing(path: Path) -> str:
        return signature(raised_by(lambda: torch.load(path)))

    assert missing(tmp_path / "one" / "a.pt") == missing(tmp_path / "two" / "deeper" / "a.pt")
    assert missing(tmp_path / "one" / "a.pt") != missing(tmp_path / "one" / "b.pt")
    assert signature(ValueError("a / b is 2. And more")) == "ValueError: a / b is 2"
