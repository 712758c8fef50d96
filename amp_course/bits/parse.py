"""Read what a person types, exactly: a decimal, a fraction, a power of two, a pattern, inf or NaN.

No input can hang: lengths and exponents have limits, checked before any power is taken.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import NamedTuple

from amp_course.bits.formats import FORMATS, FloatFormat
from amp_course.bits.nearest import Exact, exact_value, pattern_for

LONGEST = 1000  # characters
LARGEST_POWER_OF_TEN, LARGEST_POWER_OF_TWO = 5000, 16384  # fp64 ends at 10^308 and 10^−324

_DIGITS = "[0-9]+(?:_[0-9]+)*"
_DECIMAL = rf"(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:e[+-]?[0-9]+)?"
_NUMBER = re.compile(rf"([+-]?)({_DECIMAL})(?:/({_DECIMAL}))?", re.IGNORECASE)
_POWER = re.compile(r"([+-]?)(?:([0-9]+) ?[*×·] ?)?2(?:\^|\*\*)([+-]?[0-9]+)")
_PATTERN = re.compile(r"0(?:(x)([0-9a-f]+)|b([01]+))", re.IGNORECASE)
_WORDS = {"inf": math.inf, "infinity": math.inf, "∞": math.inf, "nan": math.nan}
_EXAMPLES = (
    "type a number such as 2049, −0.1, 6.1e-5, 1/3 or 2^-24, a bit pattern such as 0x3C00 "
    "or 0b11, inf or nan"
)


class Entry(NamedTuple):
    """The exact number that was typed, and the format's nearest pattern."""

    pattern: int
    exact: Exact


def read(text: str, fmt: FloatFormat) -> Entry:
    """Read a number or a pattern: "2049" in fp16 → Entry(0x6800, Fraction(2049)).

    Raises only ValueError, with the cause and the fix.
    """
    plain = text.strip().replace("−", "-")
    if not plain:
        raise ValueError(f"The field is empty: {_EXAMPLES}")
    if len(plain) > LONGEST:
        raise ValueError(
            f"{len(plain):,} characters are too many: the limit is {LONGEST:,}, and 17 decimal "
            f"digits tell any two numbers apart"
        )
    if plain.lstrip("+-").lower().startswith(("0x", "0b")):
        pattern = read_pattern(plain, fmt)
        return Entry(pattern, exact_value(pattern, fmt))
    exact = read_number(plain)
    return Entry(pattern_for(exact, fmt), exact)


def read_pattern(text: str, fmt: FloatFormat) -> int:
    """Read "0x3c00" or "0b0 01111 0000000000" as bits, ignoring spaces and underscores.

    Raises ValueError for any other text, and for more bits than the format has.
    """
    found = _PATTERN.fullmatch(re.sub(r"[\s_]", "", text))
    if not found:
        sign = ", and no sign goes in front: the first bit is the sign" if text[0] in "+-" else ""
        raise ValueError(
            f"“{clip(text)}” is not a bit pattern: 0x is followed by 0-9 and A-F, 0b only by 0 and "
            f"1{sign}"
        )
    pattern = int(found[2], 16) if found[1] else int(found[3], 2)
    if pattern.bit_length() > fmt.bits:
        wider = [other.name for other in FORMATS[::-1] if other.bits >= pattern.bit_length()]
        fix = f"choose {wider[0]}, or " if wider else ""
        raise ValueError(
            f"“{clip(text)}” needs {pattern.bit_length()} bits and {fmt.name} has {fmt.bits}: "
            f"{fix}type one up to {hex_text(2**fmt.bits - 1, fmt)}"
        )
    return pattern


def read_number(text: str) -> Exact:
    """Read a number with ASCII signs exactly: "0.1" → Fraction(1, 10), "-0" → -0.0, "inf" → inf.

    Raises ValueError for anything but a number, and beyond 10^±5000 or 2^±16384.
    """
    word = text.lstrip("+-").lower()
    if word in _WORDS and len(text) - len(word) <= 1:
        return -_WORDS[word] if text[0] == "-" else _WORDS[word]
    if power := _POWER.fullmatch(text):
        _check_exponent(power[3], 2, LARGEST_POWER_OF_TWO, text)
        number = int(power[2] or 1) * Fraction(2) ** int(power[3])
        return _with_sign(power[1], number)
    found = _NUMBER.fullmatch(text)
    if not found:
        raise ValueError(_no_number(text))
    number = _decimal(found[2], text)
    if found[3]:
        under = _decimal(found[3], text)
        if not under:
            raise ValueError(f"“{clip(text)}” divides by zero: if you mean inf or nan, type that")
        number /= under
    return _with_sign(found[1], number)


def clip(text: str, longest: int = 32) -> str:
    """Shorten a long text for a message, keeping its beginning and its end."""
    return text if len(text) <= longest else f"{text[: longest - 9]}…{text[-8:]}"


def hex_text(pattern: int, fmt: FloatFormat) -> str:
    """Write a pattern in hexadecimal, with all of the format's digits: 1 in fp16 → "0x0001"."""
    return f"0x{pattern:0{-(-fmt.bits // 4)}X}"


def _decimal(digits: str, text: str) -> Fraction:
    significand, _, power = digits.replace("_", "").lower().partition("e")
    if not significand.strip("0."):
        return Fraction(0)
    _check_exponent(power, 10, LARGEST_POWER_OF_TEN, text)
    whole, _, part = significand.partition(".")
    return Fraction(int(whole + part)) * Fraction(10) ** (int(power or "0") - len(part))


def _with_sign(sign: str, number: Fraction) -> Exact:
    if sign != "-":
        return number
    return -number if number else -0.0


def _check_exponent(power: str, base: int, largest: int, text: str) -> None:
    if int(power.lstrip("+-") or "0") > largest:
        end, instead = ("0", "1e-999") if power.startswith("-") else ("inf", "1e999")
        sign = "-" if text[0] == "-" else ""
        raise ValueError(
            f"“{clip(text)}” is beyond {base}^±{largest}, the limit here: type {sign}{instead}, "
            f"which rounds to {sign}{end} too"
        )


def _no_number(text: str) -> str:
    quoted = f"“{clip(text)}” cannot be read as a number"
    bare = re.sub("[ ,'’\u00a0\u202f]", "", text)
    if re.fullmatch(r"[+-]?[0-9]+,[0-9]+(e[+-]?[0-9]+)?", text, re.IGNORECASE):
        fix = f"write the decimal point as a point, {clip(text.replace(',', '.'))}"
        return f"{quoted}: {fix}" + (
            f", or thousands without a comma, {clip(bare)}"
            if re.search(r",[0-9]{3}$", text)
            else ""
        )
    if re.fullmatch(r"[+-]?[0-9]{1,3}([ ,'’\u00a0\u202f][0-9]{3})+(\.[0-9]*)?", text):
        return f"{quoted}: leave out the separators, {clip(bare)}"
    if re.search("[½⅓⅔¼¾⅕⅛]", text):
        return f"{quoted}: write the fraction as 1/2 or 0.5"
    if re.fullmatch(r"[0-9a-f]*[a-f][0-9a-f]*", text, re.IGNORECASE) and text[0] in "0123456789":
        return f"{quoted}: a hex pattern starts with 0x: 0x{clip(text)}"
    return f"{quoted}: {_EXAMPLES}"
