"""Load the course's data: handwritten digits, real prose, random vectors; and cut it into batches.

Nothing is downloaded: the digits come with scikit-learn, the prose is the documentation that ships
inside Python. Batches are drawn by a generator of their own, so the global random state is neither
used nor changed, and two recipes given the same seed see the same batches in the same order.
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
    """Hold pictures of digits, split in two: x (n, 1, 8, 8) float32 in [0, 1], y (n,) int64."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def digits(seed: int = 0, train_fraction: float = 0.8) -> Digits:
    """Load scikit-learn's 1,797 digits, shuffled by `seed` and split.

    Raises ValueError if the fraction leaves one side without a picture.
    Example: digits().train_x.shape → (1437, 1, 8, 8)
    Source: sklearn.datasets.load_digits, from the UCI "Optical Recognition of Handwritten Digits"
            test set.
    """
    from sklearn.datasets import load_digits  # late, for it takes a second to import

    bunch = load_digits()
    x = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16  # grey levels are 0 … 16
    y = torch.tensor(bunch.target, dtype=torch.int64)
    train_size = int(len(y) * train_fraction)
    if not 0 < train_size < len(y):
        raise ValueError(
            f"train_fraction {train_fraction} leaves one side of the split empty: choose one "
            f"between 0 and 1."
        )
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    train, test = order[:train_size], order[train_size:]
    return Digits(x[train], y[train], x[test], y[test])


def documentation_text() -> str:
    """Return the text of Python's own language reference: prose and code, some 465,000 characters.

    It differs a little between Python versions, and so does what a model learns from it.
    Source: pydoc_data.topics, what `help("topics")` shows.
    """
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


@dataclass(frozen=True, eq=False)
class CharText:
    """Turn a text into ids, one a character, and split it by position: what comes first is for
    training.

    Example: CharText("banana").encode("ban") → tensor([1, 0, 2]), since the vocabulary is "abn"
    Raises ValueError for an empty text, or a `train_fraction` outside (0, 1].
    """

    text: str
    train_fraction: float = 0.9

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be split."""
        if not self.text:
            raise ValueError("the text is empty: pass some, such as documentation_text().")
        if not 0 < self.train_fraction <= 1:
            raise ValueError(
                f"train_fraction is {self.train_fraction}: choose one above 0 and at most 1."
            )

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
        """The ids of the first part, for training."""
        return self.ids[: int(len(self.text) * self.train_fraction)]

    @property
    def validation_ids(self) -> Tensor:
        """The ids of the rest, for validation."""
        return self.ids[int(len(self.text) * self.train_fraction) :]

    def encode(self, text: str) -> Tensor:
        """Return the ids of `text`, (characters,) int64;
        ValueError for a character not in the vocabulary.
        """
        id_of = {character: i for i, character in enumerate(self.vocabulary)}
        unknown = sorted(set(text) - id_of.keys())
        if unknown:
            raise ValueError(
                f"no id for {unknown[:5]}: the text this vocabulary was made from has no such "
                f"character. "
                "Leave it out, or make the CharText from a text that has it."
            )
        return torch.tensor([id_of[character] for character in text], dtype=torch.int64)

    def decode(self, ids: Tensor) -> str:
        """Return the text of `ids`, (characters,); ValueError for an id not in the vocabulary."""
        numbers = ids.flatten().tolist()
        outside = [i for i in numbers if not 0 <= i < len(self.vocabulary)]
        if outside:
            raise ValueError(
                f"no character has the id {outside[0]}: ids run from 0 to "
                f"{len(self.vocabulary) - 1}. "
                "Were these made with another text's vocabulary?"
            )
        return "".join(self.vocabulary[i] for i in numbers)


class Batches:
    """Give the same batches, in the same order, each time it is iterated over;
    `len` says how many.
    """

    def __init__(self, length: int, make: Callable[[], Iterator[Batch]]) -> None:
        """Call `make` for each pass; it gives `length` batches."""
        self._length = length
        self._make = make

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        """Start a pass."""
        return self._make()


def _require_batch(batch_size: int, steps: int) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: a batch needs at least 1 example.")
    if steps < 1:
        raise ValueError(f"the number of steps is {steps}: ask for at least 1.")


def digit_batches(
    data: Digits,
    batch_size: int,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Batches:
    """Cut the training digits into (x, y) batches on `device`: x (batch_size, 1, 8, 8), y
    (batch_size,).

    Every epoch is a new shuffle; the pictures left over at its end, fewer than a batch, are
    dropped. Give either `steps` or `epochs`.

    Raises ValueError for an empty data set, a batch size below 1 or above the data set's, both or
    neither length.
    Example: len(digit_batches(digits(), 64, epochs=2)) → 44, twice 1437 // 64
    """
    if (steps is None) == (epochs is None):
        raise ValueError("how long? Pass either steps=… or epochs=…, one of the two.")
    size = len(data.train_x)
    if size == 0:
        raise ValueError(
            "the data set is empty: there is nothing to train on. Check how it was split."
        )
    if batch_size > size:
        raise ValueError(
            f"batch_size {batch_size} is more than the {size} pictures: choose a smaller one."
        )
    _require_batch(batch_size, 1)
    per_epoch = size // batch_size
    length = steps if steps is not None else (epochs or 0) * per_epoch
    _require_batch(batch_size, length)
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
    """Draw stretches of text at random: inputs and targets (batch_size, context), targets one
    character on.

    Raises ValueError for a batch size or number of steps below 1, or a context too long for the
    text.
    Example: inputs "the cat sa", targets "he cat sat"
    """
    _require_batch(batch_size, steps)
    if context < 1:
        raise ValueError(f"context is {context}: a model needs at least 1 character to go on.")
    ids = text.train_ids if split == "train" else text.validation_ids
    starts = len(ids) - context
    if starts < 1:
        raise ValueError(
            f"a context of {context} needs {context + 1} characters, and the {split} text has "
            f"{len(ids)}: "
            "choose a shorter context, a longer text or another train_fraction."
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
    """Draw inputs and targets (batch_size, width) from the standard normal distribution, for
    SimpleNet.

    All are drawn at once, so that taking one costs nothing in a timed loop. They hold steps ×
    batch_size × width × 8 bytes.

    Raises ValueError for a width, batch size or number of steps below 1.
    Source: the data of Paddle's mixed precision tutorial, 50 batches of (512, 4096).
    """
    _require_batch(batch_size, steps)
    if width < 1:
        raise ValueError(f"width is {width}: a vector needs at least 1 number.")
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        return torch.randn(batch_size, width, generator=generator).to(device)

    batches = [(draw(), draw()) for _ in range(steps)]
    return Batches(steps, lambda: iter(batches))
