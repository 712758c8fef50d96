"""Load the course's data (handwritten digits, real prose, random vectors) in batches.

Nothing is downloaded: the digits come with scikit-learn, the prose with Python, as documentation.
Batches are drawn by a generator of their own, so the global random state is neither used nor
changed, and two recipes with the same seed get the same batches in the same order.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Digits:
    """Pictures of digits, split in two: x (n, 1, 8, 8) float32 in [0, 1], y (n,) int64."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def digits() -> Digits:
    """Load scikit-learn's 1,797 digits, shuffled and split: four in five are for training.

    Example: digits().train_x.shape → (1437, 1, 8, 8)
    Source: sklearn.datasets.load_digits, from the UCI "Optical Recognition of Handwritten Digits"
            test set.
    """
    from sklearn.datasets import load_digits  # here: it takes a second to import

    bunch = load_digits()
    x = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16  # grey levels are 0 … 16
    y = torch.tensor(bunch.target, dtype=torch.int64)
    train_size = len(y) * 4 // 5
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = order[:train_size], order[train_size:]
    return Digits(x[train], y[train], x[test], y[test])


def documentation_text() -> str:
    """Return the text of Python's language reference: prose and code, some 465,000 characters.

    It differs a little between Python versions, and so does what a model learns from it.
    Source: pydoc_data.topics, which `help("topics")` shows.
    """
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


@dataclass(frozen=True, eq=False)
class CharText:
    """A text as ids, one a character, split by position: the first nine tenths are for training.

    Example: CharText("banana").encode("ban") → tensor([1, 0, 2]), since the vocabulary is "abn"
    """

    text: str

    @cached_property
    def vocabulary(self) -> str:
        """The characters of the text, sorted: the id of a character is its place here."""
        return "".join(sorted(set(self.text)))

    @cached_property
    def ids(self) -> Tensor:
        """The whole text as ids, (characters,) int64."""
        return self.encode(self.text)

    @property
    def train_ids(self) -> Tensor:
        return self.ids[: len(self.text) * 9 // 10]

    @property
    def validation_ids(self) -> Tensor:
        return self.ids[len(self.text) * 9 // 10 :]

    def encode(self, text: str) -> Tensor:
        """Return the ids of `text`, (characters,) int64;
        ValueError for a character not in the vocabulary.
        """
        id_of = {character: i for i, character in enumerate(self.vocabulary)}
        if unknown := sorted(set(text) - id_of.keys()):
            raise ValueError(
                f"no id for {unknown[:5]}: the text this vocabulary was made from has no such "
                "character. Leave it out, or make the CharText from a text that has it."
            )
        return torch.tensor([id_of[character] for character in text], dtype=torch.int64)


class Batches:
    """The same batches in the same order, each time it is iterated over; `len` says how many."""

    def __init__(self, length: int, make: Callable[[], Iterator[Batch]]) -> None:
        self._length = length
        self._make = make

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        return self._make()


def digit_batches(
    data: Digits,
    batch_size: int,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Batches:
    """Cut the training digits into batches on `device`: x (batch_size, 1, 8, 8), y (batch_size,).

    Every epoch is a new shuffle; at its end, fewer pictures than a batch are dropped. Give either
    `steps` or `epochs`.

    Raises ValueError for a batch larger than the data set, and for both lengths or neither.
    Example: len(digit_batches(digits(), 64, epochs=2)) → 44, twice 1437 // 64
    """
    if (steps is None) == (epochs is None):
        raise ValueError("how long? Pass either steps=… or epochs=…, one of the two.")
    size = len(data.train_x)
    if batch_size > size:
        raise ValueError(
            f"batch_size {batch_size} is more than the {size} pictures: choose a smaller one."
        )
    per_epoch = size // batch_size
    length = steps if steps is not None else (epochs or 0) * per_epoch
    x, y = data.train_x.to(device), data.train_y.to(device)

    def make() -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        for step in range(length):
            if step % per_epoch == 0:
                order = torch.randperm(size, generator=generator).to(device)
            start = step % per_epoch * batch_size
            chosen = order[start : start + batch_size]
            yield x[chosen], y[chosen]

    return Batches(length, make)


def text_batches(
    text: CharText,
    batch_size: int,
    context: int,
    steps: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
    split: Literal["train", "validation"] = "train",
) -> Batches:
    """Draw pieces of text at random: inputs and targets (batch_size, context), targets one
    character later.

    Raises ValueError for a context too long for the text.
    Example: inputs "the cat sa", targets "he cat sat"
    """
    ids = text.train_ids if split == "train" else text.validation_ids
    starts = len(ids) - context
    if starts < 1:
        raise ValueError(
            f"a context of {context} needs {context + 1} characters, and the {split} text has "
            f"{len(ids)}: choose a shorter context or a longer text."
        )
    ids = ids.to(device)
    offsets = torch.arange(context, device=device)

    def make() -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            start = torch.randint(starts, (batch_size, 1), generator=generator).to(device)
            yield ids[start + offsets], ids[start + offsets + 1]

    return Batches(steps, make)


def random_batches(
    width: int, batch_size: int, steps: int, seed: int = 0, device: torch.device | str = "cpu"
) -> Batches:
    """Draw inputs and targets (batch_size, width) for SimpleNet from the standard normal
    distribution.

    All are drawn at once, so that taking one costs no time in a timed loop. They take steps ×
    batch_size × width × 8 bytes.

    Source: the data of Paddle's mixed precision tutorial, 50 batches of (512, 4096).
    """
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        return torch.randn(batch_size, width, generator=generator).to(device)

    batches = [(draw(), draw()) for _ in range(steps)]
    return Batches(steps, lambda: iter(batches))
