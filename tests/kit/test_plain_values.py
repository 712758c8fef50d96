"""What a run logs, saved and read by another process: equal, and of plain types.
What cannot be kept is refused by name.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import pickle
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from amp_course.kit.plain_values import as_plain
from amp_course.patterns import load_checkpoint, save_checkpoint


class Level(enum.IntEnum):
    LOW, HIGH = 1, 7


class Name(enum.StrEnum):
    TRAIN, TEST = "train", "test"


class Loud(str):
    def __str__(self) -> str:
        return "not what it holds"


class Steps(int):
    def __int__(self) -> int:
        return -1


class Rate(float):
    def __float__(self) -> float:
        return -1.0


Point = collections.namedtuple("Point", "x y")
Pair = tuple[Any, Any]  # a value, and the plain value that it is to become

_text = st.text(max_size=4)
_ints = st.integers(-(2**200), 2**200)
_floats = st.floats(width=64)


def _as(*kinds: Any) -> Any:
    return lambda value: st.sampled_from(kinds).map(lambda kind: (kind(value), value))


def _small(kind: Any, bits: int) -> st.SearchStrategy[Pair]:
    return st.floats(width=bits).map(lambda value: (kind(value), value))


_LEAVES: st.SearchStrategy[Pair] = st.one_of(
    st.none().map(lambda _: (None, None)),
    st.booleans().flatmap(_as(bool, np.bool_)),
    _ints.flatmap(_as(int, Steps)),
    st.integers(-128, 127).flatmap(_as(np.int8, np.int64, np.longlong)),
    _floats.flatmap(_as(float, np.float64, Rate)),
    _small(np.float32, 32),
    _small(np.float16, 16),
    _text.flatmap(_as(str, Loud)),
    st.text("abcé€", max_size=4).flatmap(_as(np.str_)),
    st.binary(min_size=1, max_size=4).flatmap(_as(bytes)),
    st.complex_numbers().flatmap(_as(complex, np.complex128)),
    st.sampled_from(
        [
            (Level.HIGH, 7),
            (Name.TEST, "test"),
            (torch.float16, torch.float16),
            (torch.Size([2]), (2,)),
        ]
    ),
    st.lists(st.floats(width=32), max_size=3).map(lambda v: (torch.tensor(v), torch.tensor(v))),
    st.lists(st.floats(width=32), max_size=3).map(
        lambda v: (nn.Parameter(torch.tensor(v)), torch.tensor(v))
    ),
    st.integers(-9, 9).map(
        lambda v: (torch.tensor(v, dtype=torch.int8), torch.tensor(v, dtype=torch.int8))
    ),
)


def _both(parts: list[Pair], make: Any, plain: Any) -> Pair:
    return make([one for one, _ in parts]), plain([other for _, other in parts])


def _default(items: Any) -> Any:
    return collections.defaultdict(list, items)


def _nested(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    lists = st.lists(inner, max_size=3)
    keys = st.one_of(_text, _ints, st.sampled_from([np.int64(3), Name.TRAIN, (1, "a"), None, 0.5]))
    dicts = st.lists(st.tuples(keys, inner), max_size=3, unique_by=lambda pair: pair[0])
    return st.one_of(
        lists.map(lambda parts: _both(parts, list, list)),
        lists.map(lambda parts: _both(parts, tuple, tuple)),
        st.tuples(inner, inner).map(
            lambda parts: _both(list(parts), lambda two: Point(*two), tuple)
        ),
        st.tuples(st.sampled_from([dict, collections.OrderedDict, _default]), dicts).map(
            lambda drawn: (
                drawn[0]((key, value) for key, (value, _) in drawn[1]),
                {key: plain for key, (_, plain) in drawn[1]},
            )
        ),
        st.dictionaries(_text, st.integers(1, 9), max_size=3).map(
            lambda d: (collections.Counter(d), d)
        ),
    )


VALUES = st.recursive(_LEAVES, _nested, max_leaves=8)
_PLAIN = {
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    type(None),
    list,
    tuple,
    dict,
    torch.Size,
    torch.dtype,
    Tensor,
}
_KEPT_DICTS = {collections.OrderedDict, collections.Counter}


def same(got: Any, plain: Any) -> bool:
    """Equal to the last bit, NaN like NaN, and of plain types all through."""
    if type(got) not in _PLAIN | _KEPT_DICTS:
        return False
    if isinstance(plain, Tensor):
        return torch.equal(got.isnan(), plain.isnan()) and torch.equal(
            got.nan_to_num(), plain.nan_to_num()
        )
    if isinstance(plain, dict):
        return list(got) == list(plain) and all(
            type(k) in _PLAIN and same(got[k], plain[k]) for k in got
        )
    if isinstance(plain, (list, tuple)) and not isinstance(plain, torch.Size):
        return (
            isinstance(got, type(plain)) and len(got) == len(plain) and all(map(same, got, plain))
        )
    if isinstance(plain, float):
        return isinstance(got, float) and repr(got) == repr(plain)  # -0.0 and NaN too
    if isinstance(plain, complex):
        return repr(got) == repr(plain)
    return bool(got == plain)


_READER = """
import pickle, sys, torch
for line in sys.stdin:
    content = torch.load(line.strip(), weights_only=True)
    with open(line.strip() + ".read", "wb") as file:
        pickle.dump(content["data"], file)
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def reader() -> Iterator[subprocess.Popen[str]]:
    """Another process, which knows no class of this one."""
    child = subprocess.Popen(
        [sys.executable, "-c", _READER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    yield child
    child.kill()
    child.communicate()


def read_elsewhere(reader: subprocess.Popen[str], path: Path) -> Any:
    assert reader.stdin is not None and reader.stdout is not None
    reader.stdin.write(f"{path}\n")
    assert reader.stdout.readline() == "done\n"
    return pickle.loads(path.with_name(path.name + ".read").read_bytes())


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@given(pair=VALUES)
@settings(
    max_examples=150,
    deadline=timedelta(seconds=20),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_what_is_saved_is_read_by_another_process_equal_and_plain(
    pair: Pair, reader: subprocess.Popen[str], tmp_path: Path
) -> None:
    model = nn.Linear(1, 1)
    path = save_checkpoint(
        tmp_path / "run.pt",
        model=model,
        optimizer=torch.optim.SGD(model.parameters()),
        step=1,
        data=pair[0],
    )
    assert same(read_elsewhere(reader, path), pair[1])
    assert same(load_checkpoint(path, model=model).data, pair[1])


def test_without_conversion_a_logged_mean_could_not_be_read(tmp_path: Path) -> None:
    torch.save({"loss": np.mean([0.25, 0.75])}, tmp_path / "run.pt")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "run.pt", weights_only=True)


def test_the_oracle_can_fail() -> None:
    for got, plain in (
        (np.float64(1), 1.0),
        (Level.HIGH, 7),
        (0.0, -0.0),
        ([1], (1,)),
        ({1: 2}, {1: 3}),
        (collections.defaultdict(list), {}),
        (torch.ones(2), torch.zeros(2)),
    ):
        assert not same(got, plain)


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
        (b"", "empty bytes object"),
        (1 << 3000, "int of more than 2,000 bits"),
        (torch.empty(2, device="meta"), "holds no numbers"),
        (math, "module, .* plain values"),
    ],
)
def test_refuses_what_cannot_be_kept_and_names_the_entry(
    value: Any, words: str, tmp_path: Path
) -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(TypeError, match=rf"^data\['log'\]\[1\] is an? .*{words}"):
        save_checkpoint(
            tmp_path / "run.pt",
            model=model,
            optimizer=torch.optim.SGD(model.parameters()),
            step=1,
            data={"log": [0, value]},
        )
    assert not list(tmp_path.iterdir())


def test_loops_depth_and_keys() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TypeError, match=r"data\[0\] contains itself"):
        as_plain(loop, "data")
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(TypeError, match="nested more than 100 deep"):
        as_plain(deep, "data")
    with pytest.raises(TypeError, match="data uses a Tensor as a key"):
        as_plain({torch.ones(1): 1}, "data")
    with pytest.raises(
        TypeError, match=r"the key \w+Path\('x'\) of data is a \w+, .* save `str\(path\)`"
    ):
        as_plain({Path("x"): 1}, "data")
    twice = [1]
    assert as_plain([twice, twice], "data") == [[1], [1]]  # twice is no loop


def test_the_versions_of_a_models_modules_are_kept() -> None:
    state = nn.BatchNorm1d(2).state_dict()
    assert as_plain(state, "model")._metadata == state._metadata
