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


def test_the_split_does_not_depend_on_the_global_seed() -> None:
    torch.manual_seed(1)
    first = digits()
    torch.manual_seed(2)
    assert torch.equal(first.train_x, digits().train_x)


def test_the_documentation_is_prose_and_always_the_same() -> None:
    text = documentation_text()
    assert len(text) > 300_000
    assert text == documentation_text()
    assert 'The "while" statement is used for repeated execution' in " ".join(text.split())


def decoded(text: CharText, ids: torch.Tensor) -> str:
    return "".join(text.vocabulary[i] for i in ids.flatten().tolist())


def test_ids_stand_for_characters() -> None:
    text = CharText(documentation_text())
    assert text.vocabulary == "".join(sorted(set(text.text)))
    assert text.ids.dtype == torch.int64
    assert decoded(text, text.ids) == text.text
    assert CharText("banana").encode("ban").tolist() == [1, 0, 2]
    with pytest.raises(ValueError, match=r"no id for \['d', 'x'\]"):
        CharText("abc").encode("abxd")


def test_the_text_is_split_by_position() -> None:
    text = CharText("abcdefghij")
    assert decoded(text, text.train_ids) == "abcdefghi"
    assert decoded(text, text.validation_ids) == "j"


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
    alphabet = CharText("abcdefghijklmnopqrstuvwxyz____")  # of which the last three are kept back
    starts = set()
    for inputs, targets in text_batches(alphabet, batch_size=50, context=25, steps=4):
        assert inputs.shape == targets.shape == (50, 25)
        for line, following in zip(inputs, targets, strict=True):
            assert decoded(alphabet, following) in alphabet.text
            assert decoded(alphabet, line)[1:] == decoded(alphabet, following)[:-1]
            starts.add(decoded(alphabet, line)[0])
    assert starts == {"a", "b"}  # every place that leaves room for a target, and no other


def test_validation_batches_come_from_the_rest() -> None:
    text = CharText("a" * 90 + "b" * 10)
    inputs, targets = next(iter(text_batches(text, 4, 5, 1, split="validation")))
    assert decoded(text, inputs) == decoded(text, targets) == "b" * 20


def test_random_batches_are_standard_normal() -> None:
    batches = list(random_batches(width=64, batch_size=32, steps=10))
    inputs, targets = (torch.stack(tensors) for tensors in zip(*batches, strict=True))
    assert inputs.shape == targets.shape == (10, 32, 64)
    for values in (inputs, targets):
        assert abs(values.mean()) < 0.03  # 4 standard errors of 20,480 numbers
        assert abs(values.std() - 1) < 0.02
    assert abs((inputs * targets).mean()) < 0.03


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: digit_batches(digits(), 1438, steps=1), "more than the 1437 pictures"),
        (lambda: digit_batches(digits(), 4), "one of the two"),
        (lambda: digit_batches(digits(), 4, steps=1, epochs=1), "one of the two"),
        (lambda: text_batches(TEXT, 4, 432, 1), "needs 433 characters, and the train text has 432"),
        (
            lambda: text_batches(CharText("ab"), 4, 1, 1, split="validation"),
            "validation text has 1",
        ),
    ],
)
def test_batches_refuse(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
