"""Turn what an answer raised into words: which line, what torch means by it, what to do.

`messages.toml` explains the errors that people meet while writing AMP loops; others are quoted.
"""

from __future__ import annotations

import errno
import linecache
import os
import re
import sysconfig
import traceback
from pathlib import Path
from types import CodeType

from amp_course.checking import families
from amp_course.kit.errors import cause_and_fix
from amp_course.kit.markup import without_codes
from amp_course.kit.toml_data import read_toml

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_STDLIB = str(Path(sysconfig.get_path("stdlib")).resolve()) + os.sep
_LIBRARY = re.compile(r"[\\/](site|dist)-packages[\\/]")
_MACHINE = {  # a full or failing disk, or a machine at its limits: the answer may be right
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EIO,
}
_FOLDERS = re.compile(r"/(?:[^/\s'\"]+/)+")  # the folders of an absolute path
_LONG = 300  # characters of a message or a line that are quoted
_NONE = re.compile(r"NoneType|are supposed to be defined but")
# A pattern in "Type: message" → cause and fix. The first that matches counts.
_KNOWN: dict[str, str] = {
    known["pattern"]: known["meaning"] for known in read_toml(__file__, "messages.toml")["message"]
}


class Explained(Exception):
    """Stands for an exception of another process: what `explain` and `signature` returned there."""

    def __init__(self, message: str, signature: str) -> None:
        super().__init__(message)
        self.message, self.signature = message, signature


def is_learners(file: str) -> bool:
    """Return True if a file (or cell) of code is the learner's:
    not the course's, Python's or an installed library's.
    """
    return not file.startswith((_PACKAGE, _STDLIB, "<frozen ")) and not _LIBRARY.search(file)


def where(error: BaseException) -> str:
    """Return " in line 3, `loss.backward()`" for the innermost line of the learner's,
    or "" if there is none.
    """
    found = raised_in(error)
    if found is None:
        return ""
    code, number = found
    line = linecache.getline(code.co_filename, number)
    text = short(line.strip().removesuffix(":"))  # the message may add a colon of its own
    return f" in line {number}, `{text}`" if text else f" in line {number}"


def raised_in(error: BaseException) -> tuple[CodeType, int] | None:
    """Return the innermost function of the learner's that an exception passed through,
    and the line there.
    """
    frames = traceback.walk_tb(error.__traceback__)
    lines = [(f.f_code, n) for f, n in frames if is_learners(f.f_code.co_filename)]
    return lines[-1] if lines else None


def explain(error: BaseException) -> str:
    """Say what an exception of the learner's code means, in words that continue "Not quite: …"."""
    if isinstance(error, Explained):
        return error.message
    kind, message = type(error).__name__, _message(error)
    raised = f"{kind}: {message}" if message else kind
    if isinstance(error, OSError) and error.errno in _MACHINE:
        meaning = ", so ".join(cause_and_fix(error))
    else:
        known = (text for pattern, text in _KNOWN.items() if re.search(pattern, raised))
        meaning = next(known, "")
    line = where(error)
    if not meaning and "grad" in line and _NONE.search(message):
        meaning = families.A_GRADIENT_IS_NONE[1]
    if raised == "NotImplementedError":
        return f"your code raised NotImplementedError{line}: part of it is still to be written"
    if not line:  # the judge stumbled over the answer, or could not call it
        doubt = meaning or "does it take and return what the task says, with that shape and dtype?"
        return (
            f"the check could not continue with your answer ({raised.removesuffix('.')}). "
            f"{doubt[0].upper()}{doubt[1:]}"
        )
    quoted = f" ({message.removesuffix('.')})" if message else ""
    return f"your code raised {kind}{quoted}{line}" + (f": {meaning}" if meaning else "")


def signature(error: BaseException) -> str:
    """Name an exception so that two of one cause are equal: its type, and the first sentence of its
    message, without folders, for each run has a temporary folder of its own.
    """
    if isinstance(error, Explained):
        return error.signature
    return f"{type(error).__name__}: {_FOLDERS.sub('…/', _message(error)).split('. ')[0]}"


def short(text: str, length: int = _LONG) -> str:
    """Cut a text that nobody would read to its end: "aaaaaaaa", 4 → "aaa…"."""
    cut = text if len(text) <= length else text[: length - 1] + "…"
    # a lone surrogate can be neither printed nor sent to the browser
    return cut.encode("utf-8", "replace").decode()


def _message(error: BaseException) -> str:
    try:
        line = short(without_codes(str(error).strip()).split("\n")[0])
        # drop the announcement of what is on the lines below
        return re.sub(r"(, but expected one of)?:$", "", line)
    except Exception:  # an exception class of the learner's may be broken too
        return ""
