"""Compare what an answer gave with what is right, and say where the two differ."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from amp_course.kit.dtypes import dtype_name

Show = Callable[[Any], str]

_SHORT = 12  # a number of so few characters is not rounded
_DECIMAL = re.compile(r"-?\d+\.\d*[1-9]\d*(e[+-]\d+)?")  # not 0.0, which reads well next to 2^-10


class Results(dict[str, Any]):
    """The results of many calls: the arguments in words, "for 0x0001" → what came back.

    what: the part of the answer that they are, for messages: "the next scale"; "" for all of it
    """

    def __init__(
        self, results: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), what: str = ""
    ) -> None:
        super().__init__(results)
        self.what = what or "your answer"
        self.as_what = f" as {what}" if what else ""


class _Missing:
    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()


def alike(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    """Return True if two values are equal, in dtypes and shapes too; NaN is like NaN.

    tolerance: relative; 0 means to the last bit, and then −0.0 is not 0.0
    """
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same_kind = one.dtype == other.dtype and one.shape == other.shape
        return same_kind and bool(_equal(one, other, tolerance).all())
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        same_keys = one.keys() == other.keys()
        return same_keys and all(alike(one[key], other[key], tolerance) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(
            alike(a, b, tolerance) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, float) or isinstance(other, float):
        return _numbers_alike(one, other, tolerance)
    return type(one) is type(other) and bool(one == other)


def describe(output: str, want: Any, got: Any, show: Show, tolerance: float = 0.0) -> str:
    """Say where a value differs from the right one: "the scale is 512, and 1024 is right"."""
    if isinstance(want, Results) and isinstance(got, Results):
        case = next(
            (key for key in want if not alike(want[key], got.get(key, MISSING), tolerance)), None
        )
        if case is None:
            return ""
        right, returned = want[case], got.get(case, MISSING)
        if isinstance(right, (Tensor, list, tuple)):
            return f"{case}, {describe(want.what, right, returned, show, tolerance)}"
        got_text, want_text = _distinct_texts(returned, right, show)
        return f"{case}, you return {got_text}{want.as_what}, and {want_text} is right"
    if isinstance(want, Tensor) and isinstance(got, Tensor):
        return _describe_tensors(output, want, got, show, tolerance)
    if isinstance(want, (list, tuple)) and isinstance(got, (list, tuple)) and len(want) == len(got):
        pairs = enumerate(zip(want, got, strict=True))
        place = next((n for n, (a, b) in pairs if not alike(a, b, tolerance)), None)
        if place is not None and (isinstance(want[place], Tensor) or len(want) > 4):
            one_of = f"{output} ({place + 1} of {len(want)})" if len(want) > 1 else output
            return describe(one_of, want[place], got[place], show, tolerance)
    if isinstance(want, Mapping) and isinstance(got, Mapping):
        for key in want:
            if key not in got:
                return f"`{key}` is missing from {output}"
            if not alike(want[key], got[key], tolerance):
                return describe(f"`{key}` in {output}", want[key], got[key], show, tolerance)
        extra = " and ".join(f"`{key}`" for key in got if key not in want)
        return f"in {output}, {extra} should not be there"
    got_text, want_text = _distinct_texts(got, want, show)
    return f"{output} {_is(output)} {got_text}, and {want_text} is right"


def show_value(value: Any) -> str:
    """Write a value for people: 2049.0 → "2049", 2^-24 → "2^-24", 1.5 · 2^-15 → "1.5 · 2^-15"."""
    if isinstance(value, float):
        return show_number(value)
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, Tensor):
        is_one = value.numel() == 1
        return show_value(value.item()) if is_one else f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(show_value, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    return value if isinstance(value, str) else repr(value)


def show_number(value: float) -> str:
    """Write a float with as many digits as it needs, or as a power of two where that is shorter."""
    if not math.isfinite(value):
        return repr(value)
    significand, exponent = math.frexp(value)
    power = f"2^{exponent - 1}"
    if abs(significand) == 0.5 and not 0.1 < abs(value) < 1e7:
        return power if value > 0 else f"-{power}"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value) if value == 0 else repr(value).removesuffix(".0")
    return min(f"{2 * significand!r} · {power}", repr(value), key=len)


def _describe_tensors(output: str, want: Tensor, got: Tensor, show: Show, tolerance: float) -> str:
    has = "have" if _is(output) == "are" else "has"
    if want.dtype != got.dtype:
        got_name, want_name = dtype_name(got.dtype), dtype_name(want.dtype)
        return f"{output} {has} the dtype {got_name}, and {want_name} is right"
    if want.shape != got.shape:
        return f"{output} {has} the shape {tuple(got.shape)}, and {tuple(want.shape)} is right"
    if want.numel() == 1:
        return describe(output, want.item(), got.item(), show)
    if (factor := _factor(want, got, tolerance)) is not None:
        return f"{output} {_times(factor, _is(output))}"
    wrong = (~_equal(want, got, tolerance)).nonzero()
    place = tuple(wrong[0].tolist())
    many = f"; {len(wrong):,} of {want.numel():,} are wrong" if len(wrong) > 1 else ""
    where = ", ".join(map(str, place))
    got_text, want_text = _distinct_texts(got[place].item(), want[place].item(), show)
    return f"in {output}, element [{where}] is {got_text}, and {want_text} is right{many}"


def _times(factor: float, be: str) -> str:
    """Say how a tensor differs by a factor: 0.25, "is" → "is 1/4 of what it should be"."""
    have, it = ("have", "they") if be == "are" else ("has", "it")
    if math.isclose(factor, -1.0, rel_tol=1e-3):
        return f"{have} the wrong sign"
    if factor > 1:
        times = _whole(factor) if factor > 100 else f"{factor:.4g}"
        return f"{be} {'twice' if times == '2' else f'{times} times'} as large as {it} should be"
    if factor > 0 and math.isclose(1 / factor, round(1 / factor), rel_tol=1e-3):
        return f"{be} 1/{_whole(1 / factor)} of what {it} should be"
    return f"{be} {factor:.4g} times what {it} should be"


def _whole(number: float) -> str:
    """Write a power of two in full, and any other number with four digits:
    65536.2 → "65,536", 6004797 → "6,005,000".
    """
    power = 2 ** round(math.log2(number))
    return f"{power if math.isclose(number, power, rel_tol=1e-3) else float(f'{number:.4g}'):,.0f}"


def _factor(want: Tensor, got: Tensor, tolerance: float) -> float | None:
    """Return the factor by which every element differs from the right one, if there is one."""
    if not want.dtype.is_floating_point:
        return None
    right, got = want.double().flatten(), got.double().flatten()
    factor = float(right @ got / (right @ right)) if bool(right.any()) else math.nan
    usable = math.isfinite(factor) and factor and abs(factor - 1) > 0.02
    return factor if usable and alike(got, right * factor, max(tolerance, 1e-4)) else None


def _distinct_texts(one: Any, other: Any, show: Show) -> tuple[str, str]:
    """Write two values in one notation, with as many digits as it takes to see the difference:
    4737.61328125, 4737.6 → "4737.61", "4737.6".
    """
    shown = show(one), show(other)
    if shown[0] == shown[1] or not (_has_floats(one) and _has_floats(other)):
        return shown
    # as 2^-10 and 0.0253754
    mixed = any("^" in text for text in shown) and any(map(_DECIMAL.fullmatch, shown))
    if max(map(len, shown)) <= _SHORT and not mixed:
        return shown
    for digits in (6, 9):
        first, second = (
            f"{value:.{digits}g}" if mixed else show(_rounded(value, digits))
            for value in (one, other)
        )
        if first != second:
            return first, second
    return shown


def _has_floats(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(_has_floats, value))
    return isinstance(value, float)


def _rounded(value: Any, digits: int) -> Any:
    """Round to so many significant digits; what is short to write, like 2^-10, stays exact."""
    if isinstance(value, (list, tuple)):
        return type(value)(_rounded(part, digits) for part in value)
    return value if len(show_number(value)) <= _SHORT else float(f"{value:.{digits}g}")


def _is(output: str) -> str:
    """Return the verb for a noun phrase: "the weights after the step" → "are",
    "the norm of all gradients" → "is".
    """
    head = re.split(
        r" (?:of|in|at|about|after|before|from|that|for|with|on|by|when|under) ", output
    )[0]
    plural = re.search(r"(?<![su'i])s$", head) and not head.startswith(("what ", "`"))
    return "are" if plural else "is"


def _equal(one: Tensor, other: Tensor, tolerance: float) -> Tensor:
    if not one.dtype.is_floating_point:
        return one == other
    if tolerance == 0.0:
        return (one == other) | (one.isnan() & other.isnan())
    size = float(other.detach().nan_to_num(0.0, 0.0, 0.0).abs().max()) if other.numel() else 0.0
    return torch.isclose(one, other, rtol=tolerance, atol=tolerance * size, equal_nan=True)


def _numbers_alike(one: Any, other: Any, tolerance: float) -> bool:
    if not isinstance(one, (int, float)) or not isinstance(other, (int, float)):
        return False
    if one != one or other != other:
        return one != one and other != other
    if tolerance:
        return math.isclose(one, other, rel_tol=tolerance)
    return one == other and math.copysign(1.0, one) == math.copysign(1.0, other)
