"""The data: what it is, that it is split without loss,
and that batches repeat and leave the random state alone.
"""

from collections.abc import Callable

import pytest
import torch
from sklearn.datasets import load_digits

from amp_course.kit.data import (
    Batches,
    CharText,
    Digits,
    digit_batches,
    digits,
    documentation_text,
    random_batches,
    text_batches,
)

TEXT = CharText("the cat sat on the mat. " * 20)


def rows(x: torch.Tensor) -> list[tuple[float, ...]]:
    return sorted(tuple(row.tolist()) for row in x.flatten(1))


def test_digits_are_those_of_scikit_learn_each_once() -> None:
    data = digits()
    images = torch.cat([data.train_x, data.test_x])
    labels = torch.cat([data.train_y, data.test_y])
    bunch = load_digits()
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert images.shape == (1797, 1, 8, 8)
    assert len(data.train_x) == len(data.train_y) == 1437
    expected = torch.tensor(bunch.data / 16, dtype=torch.float32)
    together = torch.cat([images.flatten(1), labels[:, None]], dim=1)
    assert rows(together) == rows(torch.cat([expected, torch.tensor(bunch.target)[:, None]], dim=1))
    assert images.min() == 0
    assert images.max() == 1


def test_the_split_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = digits(seed=3)
    torch.manual_seed(2)
    assert torch.equal(first.train_x, digits(seed=3).train_x)
    assert not torch.equal(first.train_x, digits(seed=4).train_x)


@pytest.mark.parametrize("fraction", [0.0, 1.0, 1.5, -0.1])
def test_a_split_without_one_side_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="leaves one side of the split empty"):
        digits(train_fraction=fraction)


def test_the_documentation_is_prose_and_always_the_same() -> None:
    text = documentation_text()
    assert len(text) > 300_000
    assert text == documentation_text()
    assert 'The "while" statement is used for repeated execution' in " ".join(text.split())


def test_ids_and_text_are_each_others_inverse() -> None:
    text = CharText(documentation_text())
    assert text.vocabulary == "".join(sorted(set(text.text)))
    assert text.ids.dtype == torch.int64
    assert text.decode(text.ids) == text.text
    assert CharText("banana").encode("ban").tolist() == [1, 0, 2]


def test_the_text_is_split_by_position() -> None:
    text = CharText("abcdefghij", train_fraction=0.7)
    assert text.decode(text.train_ids) == "abcdefg"
    assert text.decode(text.validation_ids) == "hij"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CharText(""), "text is empty"),
        (lambda: CharText("abc", train_fraction=0), "above 0 and at most 1"),
        (lambda: CharText("abc").encode("abxd"), r"no id for \['d', 'x'\]"),
        (lambda: CharText("abc").decode(torch.tensor([0, 3])), "no character has the id 3"),
        (lambda: CharText("abc").decode(torch.tensor([-1])), "no character has the id -1"),
    ],
)
def test_text_refuses(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def make_batches(seed: int) -> list[Batches]:
    return [
        digit_batches(digits(), 64, steps=30, seed=seed),
        text_batches(TEXT, 4, 10, 6, seed),
        random_batches(8, 4, 6, seed),
    ]


def flat(batches: Batches) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for batch in batches for tensor in batch])


def test_batches_repeat_and_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = make_batches(0)
    before = [flat(batches) for batches in first]
    torch.manual_seed(2)
    for batches, again, other, values in zip(
        first, make_batches(0), make_batches(1), before, strict=True
    ):
        assert torch.equal(flat(batches), values)
        assert torch.equal(flat(again), values)
        assert not torch.equal(flat(other), values)
        assert len(batches) == len(list(batches))


def test_two_passes_at_once_do_not_disturb_each_other() -> None:
    for batches in make_batches(0):
        for (x, y), (again_x, again_y) in zip(batches, batches, strict=True):
            assert torch.equal(x, again_x)
            assert torch.equal(y, again_y)


def test_the_global_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    for batches in make_batches(0):
        list(batches)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_epoch_shows_each_picture_at_most_once_with_its_own_label() -> None:
    numbers = torch.arange(10)
    data = Digits(numbers.float().view(10, 1, 1, 1), numbers, numbers, numbers)
    batches = list(digit_batches(data, 3, epochs=2))
    assert len(batches) == 6  # 10 // 3, twice
    epochs = [torch.cat([x.flatten() for x, _ in batches[i : i + 3]]).tolist() for i in (0, 3)]
    assert all(len(set(epoch)) == 9 for epoch in epochs)
    assert epochs[0] != epochs[1]  # a new shuffle
    assert all(torch.equal(x.flatten().long(), y) for x, y in batches)


def test_targets_are_the_next_characters() -> None:
    ids = CharText("abcdefghijklmnopqrstuvwxyz", train_fraction=1.0)
    starts = set()
    for inputs, targets in text_batches(ids, batch_size=50, context=24, steps=4):
        assert inputs.shape == targets.shape == (50, 24)
        for line, following in zip(inputs, targets, strict=True):
            assert ids.decode(following) in "abcdefghijklmnopqrstuvwxyz"
            assert ids.decode(line)[1:] == ids.decode(following)[:-1]
            starts.add(ids.decode(line)[0])
    assert starts == {"a", "b"}  # every place that leaves room for a target, and no other


def test_validation_batches_come_from_the_rest() -> None:
    text = CharText("a" * 90 + "b" * 10)
    inputs, targets = next(iter(text_batches(text, 4, 5, 1, split="validation")))
    assert text.decode(inputs) == text.decode(targets) == "b" * 20


def test_random_batches_are_standard_normal() -> None:
    batches = list(random_batches(width=64, batch_size=32, steps=10))
    inputs, targets = (torch.stack(tensors) for tensors in zip(*batches, strict=True))
    assert inputs.shape == targets.shape == (10, 32, 64)
    for values in (inputs, targets):
        assert abs(values.mean()) < 0.03  # 4 standard errors of 20,480 numbers
        assert abs(values.std() - 1) < 0.02
    assert abs((inputs * targets).mean()) < 0.03


EMPTY = Digits(torch.empty(0, 1, 8, 8), torch.empty(0), torch.empty(0, 1, 8, 8), torch.empty(0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: digit_batches(EMPTY, 4, steps=1), "data set is empty"),
        (lambda: digit_batches(digits(), 0, steps=1), "batch_size is 0"),
        (lambda: digit_batches(digits(), 1438, steps=1), "more than the 1437 pictures"),
        (lambda: digit_batches(digits(), 4, steps=0), "ask for at least 1"),
        (lambda: digit_batches(digits(), 4, epochs=0), "ask for at least 1"),
        (lambda: digit_batches(digits(), 4), "one of the two"),
        (lambda: digit_batches(digits(), 4, steps=1, epochs=1), "one of the two"),
        (lambda: text_batches(TEXT, 0, 10, 1), "batch_size is 0"),
        (lambda: text_batches(TEXT, 4, 0, 1), "context is 0"),
        (lambda: text_batches(TEXT, 4, 10, 0), "ask for at least 1"),
        (lambda: text_batches(TEXT, 4, 432, 1), "needs 433 characters, and the train text has 432"),
        (
            lambda: text_batches(CharText("ab", 1.0), 4, 1, 1, split="validation"),
            "validation text has 0",
        ),
        (lambda: random_batches(0, 4, 1), "width is 0"),
        (lambda: random_batches(4, 0, 1), "batch_size is 0"),
        (lambda: random_batches(4, 4, 0), "ask for at least 1"),
    ],
)
def test_batches_refuse(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
