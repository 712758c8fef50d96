"""The one exercise of the start page: it shows how exercises work, and asks the first thing worth knowing."""

from __future__ import annotations

from typing import Any

import torch

from amp_course.checking import Exercise, Wrong


def _judge(answer: Any) -> None:
    half, single = torch.ones(2, dtype=torch.float16), torch.ones(2, dtype=torch.float32)
    right = (half + single).dtype
    if answer == right:
        return
    if isinstance(answer, torch.Tensor):
        raise Wrong(f"that is a tensor: the question is its dtype, which for yours is `{answer.dtype}`")
    if isinstance(answer, str):
        raise Wrong(f"`{answer!r}` is a string: dtypes are objects, such as `torch.float64`, without quotes")
    if not isinstance(answer, torch.dtype):
        raise Wrong(f"`{answer!r}` is no dtype: write one, such as `torch.float64`")
    if answer == torch.float16:
        raise Wrong(
            "the narrower of the two does not win: torch promotes to the dtype that holds both, so one fp32 tensor in a sum "
            "makes the whole sum fp32. It is how half precision is lost unseen in a model"
        )
    if answer == torch.float64:
        raise Wrong("torch promotes to the wider of the two and no further; float64 is in neither of them")
    if answer == torch.bfloat16:
        raise Wrong("bfloat16 has 16 bits as float16 has, and holds neither of the two: fewer digits than both")
    raise Wrong(f"`{answer}` is in neither of the two tensors: torch promotes to the wider dtype that is")


which_dtype = Exercise(
    chapter="start",
    name="which_dtype",
    number=1,
    title="Half plus single",
    task="A float16 tensor is added to a float32 tensor. Which dtype does the sum have? Put it in place of the three dots.",
    difficulty=1,
    importance=3,
    minutes=1,
    lines=1,
    hints=(
        "Neither number may be lost by the addition alone: which of the two dtypes can hold both?",
        "Try it in a cell of your own: `(torch.ones(1).half() + torch.ones(1)).dtype`.",
    ),
    judge=_judge,
    why="Dtypes meet in every line of a model, and autocast (chapter 04) decides by rules like this one.",
    alternative="`torch.result_type(a, b)` and `torch.promote_types(torch.float16, torch.float32)` tell it without adding.",
    takes="value",
)

ALL = (which_dtype,)
