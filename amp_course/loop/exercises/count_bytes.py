"""Exercise 5 of chapter 06: predict the bytes per parameter. A test measures them."""

import random
from collections.abc import Iterator
from typing import Any

from amp_course.checking import Card, Case, Exercise, Mistake, read_dict, read_number

card = Card(
    chapter="loop",
    name="count_bytes",
    number=5,
    title="Predict the bytes per parameter",
    difficulty=2,
    importance=4,
    minutes=5,
    lines=1,
    takes="value",
    task='Fill in `count_bytes = {"fp32": …, "amp": …, "half": …}`: how many bytes per parameter '
    "does training with Adam keep between two steps, its gradient included, in fp32, under AMP, "
    "and in a model converted by `.half()` or `.bfloat16()`?",
    hints=(
        "Four numbers are kept for each parameter. One is the weight. What are the others?",
        "The weight, its gradient, and Adam's running averages of the gradient and of its square.",
        "Gradients have the dtype of their parameters, and so do Adam's averages. Which dtype do "
        "parameters have under AMP?",
    ),
    why="AMP saves time and activation memory. If weights and optimizer state fill your memory, "
    "you need something else.",
    alternative="with SGD and no momentum: 8, 8 and 4 bytes. `step_memory` counts them for any "
    "optimizer.",
)

right = {"fp32": 4 + 4 + 4 + 4, "amp": 4 + 4 + 4 + 4, "half": 2 + 2 + 2 + 2}
NAMES = {"fp32": "bytes in fp32", "amp": "bytes under AMP", "half": "bytes in the converted model"}
FOUR = "there are four: weight, gradient and Adam's two averages"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    got = read_dict(answer, right, subject="`count_bytes` is")
    outputs = {
        name: read_number(got[key], "", f"the number of {name} is") for key, name in NAMES.items()
    }
    yield Case("", outputs)


def numbers(*given: float) -> dict[str, float]:
    """Return an answer with these numbers for the first keys; those after them do not matter."""
    return dict(zip(right, (*given, 0, 0), strict=False))


mistakes = [
    *(
        Mistake(
            f"fp32: {what}",
            f"{size} bytes in fp32 hold {what}, and {FOUR}",
            answer=numbers(size),
            violates="its gradient included",
        )
        for size, what in {4: "one number", 8: "two numbers", 12: "three numbers"}.items()
    ),
    *(
        Mistake(
            f"AMP: {many} of four in 16 bits",
            f"{size} bytes under AMP would put {many} of the four numbers into 16 bits. Weight, "
            "gradient and both averages stay fp32",
            answer=numbers(16, size),
            violates="under AMP",
        )
        for size, many in {14: "one", 12: "two", 10: "three", 8: "all"}.items()
    ),
    Mistake(
        "AMP: copies kept",
        "18 bytes are 2 too many. If they are the weight's 16-bit copy, it is gone after the "
        "backward pass",
        answer=numbers(16, 18),
        violates="between two steps",
    ),
    Mistake(
        "half: two of four in fp32",
        "12 bytes would keep two of the four numbers in fp32. Gradients and Adam's averages take "
        "the dtype of their parameters, so all four take 2 bytes each",
        answer=numbers(16, 16, 12),
    ),
    Mistake(
        "half: two numbers",
        f"4 bytes hold two numbers of 16 bits, and {FOUR}",
        answer=numbers(16, 16, 4),
    ),
    Mistake(
        "half: as in fp32",
        "16 bytes would be as in fp32, but a converted model keeps nothing in fp32. All four "
        "numbers take 2 bytes each",
        answer=numbers(16, 16, 16),
        violates="converted by `.half()` or `.bfloat16()`",
    ),
]

count_bytes = Exercise(
    card,
    right,
    cases,
    mistakes,
    messages={
        name: f"{{got}} is not the number of {name}. Add up weight, gradient and Adam's two "
        "averages, in their dtypes"
        for name in NAMES.values()
    },
)
