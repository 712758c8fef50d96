"""What a run logs, saved and read: equal, and of plain types.
What cannot be kept is refused by name.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from amp_course.kit.plain_values import as_plain
from amp_course.patterns import load_checkpoint, save_checkpoint


class Level(enum.IntEnum):
    LOW, HIGH = 1, 7


class Name(str, enum.Enum):  # noqa: UP042  (as people wrote it before Python 3.11)
    TRAIN, TEST = "train", "test"


Point = collections.namedtuple("Point", "x y")
NESTED = {"a": [1, (2.5, None)], 3: {"b": torch.ones(2)}}

PAIRS: list[tuple[Any, Any]] = [  # a value, and the plain value that it is to become
    (None, None),
    (True, True),
    (np.bool_(False), False),
    (-(2**200), -(2**200)),
    (np.int8(-128), -128),
    (np.longlong(2**62), 2**62),
    (-0.0, -0.0),
    (float("nan"), float("nan")),
    (np.float64(0.1), 0.1),
    (np.float32(0.1), float(np.float32(0.1))),
    (np.float16(0.1), float(np.float16(0.1))),
    (np.complex128(1 - 2j), 1 - 2j),
    ("é€", "é€"),
    (np.str_("abc"), "abc"),
    (b"\x00\xff", b"\x00\xff"),
    (Level.HIGH, 7),
    (Name.TEST, "test"),
    (torch.float16, torch.float16),
    (torch.Size([2]), torch.Size([2])),
    (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")])),
    (nn.Parameter(torch.ones(2)), torch.ones(2)),
    (torch.tensor(3, dtype=torch.int8), torch.tensor(3, dtype=torch.int8)),
    (NESTED, NESTED),
    (Point(1, np.float64(2)), (1, 2.0)),
    (collections.defaultdict(list, a=[1]), {"a": [1]}),
    (collections.OrderedDict(b=1, a=2), collections.OrderedDict(b=1, a=2)),
    (collections.Counter(a=2), collections.Counter(a=2)),
    ({np.int64(3): 1, Name.TRAIN: 2, (1, "a"): 3}, {3: 1, "train": 2, (1, "a"): 3}),
]


def same(got: Any, plain: Any) -> bool:
    """Equal to the last bit, NaN like NaN, and of the same types all through."""
    if isinstance(plain, Tensor):
        return type(got) is Tensor and torch.equal(got.nan_to_num(9), plain.nan_to_num(9))
    if isinstance(plain, dict):
        pairs = zip(got.items(), plain.items(), strict=True)
        return type(got) is type(plain) and all(same(one, other) for one, other in pairs)
    if isinstance(plain, (list, tuple)):
        pairs = zip(got, plain, strict=True)
        return type(got) is type(plain) and all(same(one, other) for one, other in pairs)
    return type(got) is type(plain) and repr(got) == repr(plain)  # -0.0 and NaN too


def save(data: Any, folder: Path) -> tuple[nn.Module, Path]:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    path = folder / "run.pt"
    return model, save_checkpoint(path, model=model, optimizer=optimizer, step=1, data=data)


def test_what_is_saved_is_read_equal_and_plain(tmp_path: Path) -> None:
    model, path = save([value for value, _ in PAIRS], tmp_path)
    read = torch.load(path, weights_only=True)["data"]  # which knows no class of this file
    for content in (read, load_checkpoint(path, model=model).data):
        for got, (value, plain) in zip(content, PAIRS, strict=True):
            assert same(got, plain), value


def test_without_conversion_a_logged_mean_could_not_be_read(tmp_path: Path) -> None:
    torch.save({"loss": np.mean([0.25, 0.75])}, tmp_path / "run.pt")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "run.pt", weights_only=True)


@dataclasses.dataclass
class Record:
    loss: float


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Path("run"), r"Path, .* save `str\(path\)`"),
        (Record(1.0), r"Record, .* save `dataclasses.asdict\(…\)`"),
        (Colour.RED, r"Colour, .* save its `.value` or its `.name`"),
        (np.zeros(2), r"ndarray, .* save `torch.from_numpy\(array\)`"),
        ({1, 2}, "set, .* save it as a list"),
        (collections.deque([1]), "deque, .* save it as a list"),
        (nn.Linear(1, 1), r"Linear, .* save its `state_dict\(\)`"),
        (lambda: 1, "function, .* plain values"),
        (np.datetime64("2026-11-21T12", "ns"), "datetime64, which no plain type can hold"),
        (np.timedelta64(3), "timedelta64, which no plain type can hold"),
        (np.longdouble(1) / 3, "longdouble, which no plain type can hold"),
        (math, "module, .* plain values"),
    ],
)
def test_refuses_what_cannot_be_kept_and_names_the_entry(
    value: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=rf"^data\['log'\]\[1\] is an? .*{words}"):
        save({"log": [0, value]}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_keys() -> None:
    with pytest.raises(TypeError, match="data uses a Tensor as a key"):
        as_plain({torch.ones(1): 1}, "data")
    with pytest.raises(
        TypeError, match=r"the key \w+Path\('x'\) of data is a \w+, .* save `str\(path\)`"
    ):
        as_plain({Path("x"): 1}, "data")


def test_the_versions_of_a_models_modules_are_kept() -> None:
    state = nn.BatchNorm1d(2).state_dict()
    assert as_plain(state, "model")._metadata == state._metadata
