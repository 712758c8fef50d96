"""The words of a diagnosis: names of ranks and lines, and what obscure messages of torch and gloo
mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from amp_course.distributed.launching.evidence import End, Place, Rank
from amp_course.kit.toml_data import read_toml

_PORT_IN_USE = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
# pattern of a message of torch or gloo → what it means, with the fix; {0} is the first group
MEANINGS: dict[str, str] = {
    entry["pattern"]: entry["meaning"] for entry in read_toml(__file__, "messages.toml")["message"]
}


def who(ranks: Sequence[Rank], of: int) -> str:
    """Name ranks. Example: ranks 0 and 1, 2 → "every rank" """
    return "every rank" if 1 < len(ranks) == of else names(ranks)


def names(ranks: Sequence[Rank]) -> str:
    """Name ranks by their numbers. Example: → "ranks 0 and 1" """
    numbers = [str(rank.rank) for rank in sorted(ranks, key=lambda rank: rank.rank)]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def at(place: End | Place | None) -> str:
    """Return where a script was. Example: → " in line 7, `dist.all_reduce(x)`";
    "" if that is unknown.
    """
    if place is None or place.line is None:
        return ""
    return f" in line {place.line}" + (f", `{short(place.source)}`" if place.source else "")


def quoted(end: End) -> str:
    """Return an exception. Example: → "ValueError: bad batch" """
    message = short(end.message)
    return f"{end.what}: {message}" if message else end.what


def meaning(message: str) -> str:
    """Return what an obscure message of torch or gloo means, with the fix; "" for any other."""
    if _PORT_IN_USE.search(message):
        port = re.search(r"port: (\d+)", message)
        return (
            f" The port is in use{f' ({port[1]})' if port else ''}: choose another, or leave it to "
            f"torchrun by `init_process_group()`."
        )
    for pattern, meaning in MEANINGS.items():
        if found := re.search(pattern, message):
            return f" That is: {meaning.format(*found.groups())}."
    return ""


def short(text: str) -> str:
    """Return the first line of a text, without a full stop, cut to 200 characters."""
    line = (text.strip().splitlines() or [""])[0].rstrip(".")
    return line if len(line) <= 200 else line[:199] + "…"
