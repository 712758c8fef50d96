"""The course's exception, and words for failures outside of it, such as an OSError."""

from __future__ import annotations

import errno
import os


class CourseError(RuntimeError):
    """Something that the user can fix; the message is one line, with the cause and the fix."""


# Packages whose modules have other names.
_DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow", "jupyter_core": "jupyterlab"}


def describe_missing(error: ModuleNotFoundError) -> str:
    """Say in one sentence what has to be installed. Raises the error again for a module of the
    course.
    """
    name = (error.name or "").partition(".")[0]
    if name in ("", "amp_course"):
        raise error
    package = _DISTRIBUTIONS.get(name, name)
    return (
        f"this needs the package {package}, which is not installed here: type `python -m pip "
        f"install {package}`."
    )


# errno's name → (cause, fix); {path} is the file or folder that the system named.
_CAUSES: dict[str, tuple[str, str]] = {
    "ENOSPC": ("the disk is full", "delete something from it"),
    "EDQUOT": ("your disk quota is used up", "delete some of your files"),
    "EROFS": ("{path} is on a read-only disk", "use a folder on a disk that can be written"),
    "EACCES": (
        "you have no permission to use {path}",
        "change its permissions or its folder's, or use another folder",
    ),
    "EPERM": (
        "the system does not permit this with {path}",
        "change its permissions or owner, or use another folder",
    ),
    "ENOENT": ("{path} does not exist", "create the folder it belongs in, or correct the path"),
    "ENOTDIR": (
        "part of the path {path} is a file, not a folder",
        "move that file away, or correct the path",
    ),
    "EEXIST": ("{path} already exists and is something else", "move it away"),
    "EISDIR": ("{path} is a folder, and a file belongs there", "move the folder away"),
    "ENAMETOOLONG": (
        "the name or path {path} is too long for this system",
        "use a folder with a shorter path",
    ),
    "EBUSY": ("another program is using {path}", "close that program"),
    "EMFILE": ("too many files are open", "close some programs, or restart the notebook's kernel"),
    "ENOMEM": ("the machine is out of memory", "close some programs"),
    "EIO": (
        "the disk failed to read or write",
        "copy your files to another disk, and check this one",
    ),
    **dict.fromkeys(
        ("ESTALE", "ENOTCONN", "EHOSTDOWN"),
        (
            "the network folder that holds {path} is gone",
            "connect to it again, or use a folder on this machine",
        ),
    ),
}
_BY_NUMBER = {
    getattr(errno, name): words for name, words in _CAUSES.items() if hasattr(errno, name)
}
_IN_USE = (32, 33)  # `winerror` of a file that another program has open; its errno is EACCES


def cause_and_fix(error: OSError) -> tuple[str, str]:
    """Say why an operation on a file failed and what to do:
    ENOSPC → ("the disk is full", "delete something from it").
    """
    number = errno.EBUSY if getattr(error, "winerror", None) in _IN_USE else error.errno
    if number not in _BY_NUMBER:
        fix = (
            "wait until it has finished, or close it"
            if isinstance(error, TimeoutError)
            else "put that right"
        )
        return error.strerror or str(error) or type(error).__name__, fix
    cause, fix = _BY_NUMBER[number]
    path = error.filename if isinstance(error.filename, str | bytes | os.PathLike) else "the file"
    return cause.format(path=os.fsdecode(path)), fix


def describe_os_error(error: OSError, what: str) -> str:
    """Return one sentence on a failed file operation: what failed, why, and what to do about it.

    Example: OSError(ENOSPC), "your progress could not be saved" →
    "your progress could not be saved: the disk is full. Delete something from it, then try again."
    """
    cause, fix = cause_and_fix(error)
    return f"{what}: {cause}. {fix[0].upper()}{fix[1:]}, then try again."
