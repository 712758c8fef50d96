"""Write the learner's files so that nothing is lost: whole or not at all, one writer at a time."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path to write to; when the block ends, move it to `path` in one step.

    A kill at any moment leaves the old file or the new one, whole. An exception leaves the old one,
    and no temporary file. A symbolic link stays a link: the file it points to is replaced. A
    replaced file keeps its permissions. A kill leaves a file that ends in ".part", which the next
    write replaces; so the caller holds `locked`, or is the only writer.

    Example: with replacing("progress.json") as part: part.write_text("{}")
    """
    target = Path(os.path.realpath(path))
    part = target.with_name(target.name + ".part")
    try:
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())  # else a power cut may keep the new name and lose the bytes
        if target.exists():
            shutil.copymode(target, part)
        os.replace(part, target)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename in (part, str(part)):
            error.filename = str(target)  # the name that the user knows
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace the file's content by `text`, in UTF-8, as `replacing` does."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def locked(path: Path, seconds: float = 5.0) -> Iterator[None]:
    """Keep out other processes that use the same lock until the block ends; the lock is the file
    `.NAME.lock` next to `path`.

    Raises TimeoutError if another process holds it for longer than `seconds`. On a file system
    without locks, or one that cannot be written, the block runs unlocked; if it cannot write, it
    will raise.
    """
    from filelock import FileLock, Timeout  # here: reading does not need this package

    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        raise TimeoutError(
            f"another process has been using {path} for {seconds:g} seconds"
        ) from None
    except (OSError, NotImplementedError):
        pass
    try:
        yield
    finally:
        lock.release()


def unused_name(path: Path, word: str) -> Path:
    """Return an unused name in the same folder: 06_loop.ipynb, "new-2026-11-21" →
    06_loop.new-2026-11-21.ipynb.

    Hold `locked` until the name is used, or another process may get the same.
    """
    candidate, count = path.with_name(f"{path.stem}.{word}{path.suffix}"), 1
    while candidate.exists():
        count += 1
        candidate = path.with_name(f"{path.stem}.{word}-{count}{path.suffix}")
    return candidate
