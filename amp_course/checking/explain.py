"""Turn what an answer raised into words: which line, what torch means by it, what to do.

The list holds the messages that people meet while writing AMP loops; others are quoted as they are.
"""

from __future__ import annotations

import errno
import linecache
import os
import re
import sysconfig
from pathlib import Path
from types import CodeType

from amp_course.checking import families
from amp_course.kit.errors import cause_and_fix
from amp_course.kit.toml_data import read_toml

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_STDLIB = str(Path(sysconfig.get_path("stdlib")).resolve()) + os.sep
_LIBRARY = re.compile(r"[\\/](site|dist)-packages[\\/]")
_MACHINE = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EIO,
}
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # colours of a terminal
_FOLDERS = re.compile(r"/(?:[^/\s'\"]+/)+")  # the folders of an absolute path
_LONG = 300  # characters of a message or a line that are quoted


class Explained(Exception):
    """Stands for an exception of another process, where it was explained.

    told, signature: what `explain` and `signature` returned there
    """

    def __init__(self, told: str, signature: str) -> None:
        super().__init__(told)
        self.told, self.signature = told, signature


_NONE = re.compile(r"NoneType|are supposed to be defined but")
# A pattern in "Type: message" → cause and fix. The first that matches counts.
_KNOWN: dict[str, str] = {
    one["pattern"]: one["meaning"] for one in read_toml(__file__, "messages.toml")["message"]
}


def is_readers(file: str) -> bool:
    """Return True if a file (or cell) of code is the reader's:
    not the course's, Python's or an installed library's.
    """
    return not file.startswith((_PACKAGE, _STDLIB, "<frozen ")) and not _LIBRARY.search(file)


def where(error: BaseException) -> str:
    """Return " in line 3, `loss.backward()`" for the innermost line of the reader's,
    or "" if there is none.
    """
    found = raised_in(error)
    if found is None:
        return ""
    line = linecache.getline(found[0].co_filename, found[1])
    text = short(line.strip().removesuffix(":"))  # ours may follow
    return f" in line {found[1]}, `{text}`" if text else f" in line {found[1]}"


def raised_in(error: BaseException) -> tuple[CodeType, int] | None:
    """Return the innermost function of the reader's that an exception passed through,
    and the line there.
    """
    found, traceback = None, error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_readers(code.co_filename):
            found = code, traceback.tb_lineno
        traceback = traceback.tb_next
    return found


def explain(error: BaseException) -> str:
    """Say what an exception from the reader's code means,
    in words that continue "Not quite: …".
    """
    if isinstance(error, Explained):
        return error.told
    kind, message = type(error).__name__, _message(error)
    raised = f"{kind}: {message}" if message else kind
    meaning = _machines_fault(error) or next(
        (text for pattern, text in _KNOWN.items() if re.search(pattern, raised)), None
    )
    line = where(error)
    if meaning is None and "grad" in line and _NONE.search(message):
        meaning = families.A_GRADIENT_IS_NONE[1]
    if raised == "NotImplementedError":
        return f"your code raised NotImplementedError{line}: part of it is still to be written"
    message = message.removesuffix(".")
    if not line:  # the judge fell over the answer, or could not call it
        doubt = meaning or "does it take and return what the task says, with that shape and dtype?"
        return (
            f"the check could not continue with your answer ({raised.removesuffix('.')}). "
            f"{doubt[0].upper()}{doubt[1:]}"
        )
    words = f" ({message})" if message else ""
    return f"your code raised {kind}{words}{line}" + (f": {meaning}" if meaning else "")


def signature(error: BaseException) -> str:
    """Name an exception so that two of one cause are alike: its type, and the first sentence of its
    message, without folders.

    Each time that an answer plays, its files are in another temporary folder.
    """
    if isinstance(error, Explained):
        return error.signature
    return f"{type(error).__name__}: {_FOLDERS.sub('…/', _message(error)).split('. ')[0]}"


def short(text: str, length: int = _LONG) -> str:
    """Cut a text that nobody would read to its end: "aaaaaaaa", 4 → "aaa…"."""
    cut = text if len(text) <= length else text[: length - 1] + "…"
    # a lone surrogate can be neither printed nor sent to the browser
    return cut.encode("utf-8", "replace").decode()


def _machines_fault(error: BaseException) -> str | None:
    """Explain an error of a full or failing disk, or of a machine at its limits:
    the answer may be right.
    """
    if isinstance(error, OSError) and error.errno in _MACHINE:
        return ", so ".join(cause_and_fix(error))
    return None


def _message(error: BaseException) -> str:
    try:
        line = short(_ANSI.sub("", str(error).strip()).split("\n")[0])
        # what it announces is on the lines below
        return re.sub(r"(, but expected one of)?:$", "", line)
    except Exception:  # an exception of the reader's own may be broken too
        return ""
