"""Turn what an answer raised into words: which line, what torch means by it, what to do.

This runs code of the reader's, an exception's `__str__` for one: call it within the time limit.
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
from typing import cast

from amp_course.kit.errors import cause_and_cure

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_STDLIB = str(Path(sysconfig.get_path("stdlib")).resolve()) + os.sep
_LIBRARY = re.compile(r"[\\/](site|dist)-packages[\\/]")
_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO}
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


# (pattern in "Type: message", cause and cure). The first that matches is told.
_KNOWN: list[tuple[str, str]] = [
    (
        r"No inf checks were recorded prior to update",
        "`scaler.update()` ran with no `scaler.step(optimizer)` since the last `update()`, or since the start: it adjusts the "
        "scale by what the step has found, so call it once, after the step of every optimizer",
    ),
    (
        r"No inf checks were recorded",
        "the scaler found no gradient to look at. Either `backward()` never ran on the scaled loss, or only later, or the "
        "gradients were cleared (`zero_grad`) in between, or the loss does not depend on this optimizer's parameters",
    ),
    (
        r"_scale is None",
        "the scaler was never asked to scale a loss. Call `scaler.scale(loss).backward()` before `scaler.step(optimizer)`",
    ),
    (
        r"unscale_\(\) has already been called",
        "`scaler.unscale_(optimizer)` ran twice with no `scaler.update()` in between. Unscale once per step, and call "
        "`scaler.update()` after every `scaler.step(optimizer)`, skipped or not",
    ),
    (
        r"unscale_\(\) is being called after step",
        "in every step, `scaler.unscale_(optimizer)` comes before `scaler.step(optimizer)`, and `scaler.update()` after it: one "
        "of these calls is missing or out of place",
    ),
    (
        r"step\(\) has already been called",
        "`scaler.step(optimizer)` ran twice with no `scaler.update()` in between: one step, one update",
    ),
    (
        r"Attempting to unscale FP16 gradients",
        "some of the optimizer's parameters are fp16, so their gradients are too. Under AMP what is trained stays fp32: leave "
        "out `.half()` there, and let autocast cast",
    ),
    (
        r"Trying to backward through the graph a second time",
        "two passes went back through one graph, and the first had freed it. Compute the loss again for every step; to "
        "differentiate a gradient, compute it with `create_graph=True`",
    ),
    (
        r"grad can be implicitly created only for scalar outputs",
        "`backward()` was called on a tensor with more than one element: reduce the loss to one number (a mean) first",
    ),
    (
        r"does not require grad and does not have a grad_fn",
        "the loss is not connected to the parameters: was it computed under `no_grad` or `inference_mode`, or detached, or "
        "turned into a number before `backward()`?",
    ),
    (
        r"leaf Variable that requires grad .* in-place operation",
        "a parameter is changed in place where autograd is watching: do it under `torch.no_grad()`",
    ),
    (
        r"Inference tensors cannot be saved for backward|Inplace update to inference tensor",
        "a tensor made in inference mode met autograd: keep the evaluation and the training apart",
    ),
    (
        r"same dtype|expected scalar type|must have the type torch|mixed dtype|does not match weight dtype"
        r"|Input type .* should be the same",
        "two tensors of different dtypes met in one op that does not mix them. `torch.autocast` casts both to one dtype; "
        "outside a region, or in one with `enabled=False`, you have to cast them yourself",
    ),
    (
        r"not implemented for '(Half|BFloat16)'|Low precision dtypes not supported",
        "this op has no 16-bit version here: hand it `.float()` tensors, outside of the region if need be",
    ),
    (
        r"cannot be converted to type .*Half without overflow",
        "a constant lies beyond fp16's range: take `torch.finfo(x.dtype).min` for a mask, or do this in fp32",
    ),
    (r"Got unsupported ScalarType BFloat16", "NumPy has no bf16: convert with `.float()` first"),
    (
        r"tensors to be on the same device|is not on the expected device",
        "the model and the data live on different devices: send both to one",
    ),
    (
        r"TypeError: .*(positional argument|unexpected keyword|missing \d+ required|multiple values for argument)",
        "a function was called with other arguments than it takes: compare its signature with the call (the task shows how "
        "the check calls yours)",
    ),
    (
        r"No usable temporary directory",
        "Python found no folder for temporary files: free some space on the disk, or set TMPDIR to a folder that you can write",
    ),
    (
        r"^(EOFError: (nobody types|EOF when reading)|StdinNotImplementedError|BdbQuit)",
        "nobody can answer `input()` or use `breakpoint()` while a check runs: take what you need from "
        "the arguments, and to debug your function, call it yourself",
    ),
    (r"^NameError", "a name is used before it is defined: run the cells above, or look for a typo"),
    (r"^RecursionError", "the function calls itself endlessly, or deeper than Python allows"),
    (r"^SystemExit", "`exit()` is for ending programs: leave a function with `return`"),
    (r"Torch not compiled with CUDA", "torch finds no GPU here: take the device from the tensors that you are given"),
    (r"^AssertionError", "an `assert` did not hold"),
]


def is_readers(file: str) -> bool:
    """Tell whether a file (or cell) of code is the reader's: not the course's, Python's or an installed library's."""
    return not file.startswith((_PACKAGE, _STDLIB, "<frozen ")) and not _LIBRARY.search(file)


def where(error: BaseException) -> str:
    """Return " in line 3, `loss.backward()`" for the innermost line of the reader's, or "" if there is none."""
    found = raised_in(error)
    if found is None:
        return ""
    line = linecache.getline(found[0].co_filename, found[1])
    text = short(line.strip().removesuffix(":"))  # ours may follow
    return f" in line {found[1]}, `{text}`" if text else f" in line {found[1]}"


def raised_in(error: BaseException) -> tuple[CodeType, int] | None:
    """Return the innermost function of the reader's that an exception passed through, and the line there."""
    found, traceback = None, error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_readers(code.co_filename):
            found = code, traceback.tb_lineno
        traceback = traceback.tb_next
    return found


def explain(error: BaseException) -> str:
    """Say what an exception from the reader's code means, in words that continue "Not yet, because …"."""
    if type(error) is Explained:
        return error.told
    kind, message = _kind(error), _message(error)
    raised = f"{kind}: {message}" if message else kind
    meaning = _machines_fault(error) or next((text for pattern, text in _KNOWN if re.search(pattern, raised)), None)
    line = where(error)
    if raised == "NotImplementedError":
        return f"your code raised NotImplementedError{line}: part of it is still to be written"
    message = message.removesuffix(".")
    if not line:  # the judge fell over the answer, or could not call it
        doubt = meaning or "does it take and return what the task says, with that shape and dtype?"
        return (
            f"the check could not continue with your answer ({raised.removesuffix('.')}). {doubt[0].upper()}{doubt[1:]}"
        )
    words = f" ({message})" if message else ""
    return f"your code raised {kind}{words}{line}" + (f": {meaning}" if meaning else "")


def signature(error: BaseException) -> str:
    """Name an exception so that two of one cause are alike: its type, and the first sentence of its message, without folders.

    Each time that an answer plays, its files are in another temporary folder.
    """
    if type(error) is Explained:
        return error.signature
    return f"{_kind(error)}: {_FOLDERS.sub('…/', _message(error)).split('. ')[0]}"


def short(text: str, length: int = _LONG) -> str:
    """Cut a text that nobody would read to its end: "aaaaaaaa", 4 → "aaa…"."""
    cut = text if len(text) <= length else text[: length - 1] + "…"
    return cut.encode("utf-8", "replace").decode()  # a lone surrogate can be neither printed nor sent to the browser


def _machines_fault(error: BaseException) -> str | None:
    """Explain an error of a full or failing disk, or of a machine at its limits: the answer may be right."""
    if not issubclass(type(error), OSError):  # not `isinstance`, which may run the reader's `__class__`
        return None
    failed = cast(OSError, error)
    return ", so ".join(cause_and_cure(failed)) if failed.errno in _MACHINE else None


def _kind(error: BaseException) -> str:
    return str(type.__dict__["__name__"].__get__(type(error)))  # a metaclass of the reader's may have another opinion


def _message(error: BaseException) -> str:
    try:
        line = short(_ANSI.sub("", str.strip(str(error))).split("\n")[0])
        return re.sub(r"(, but expected one of)?:$", "", line)  # what it announces is on the lines below
    except Exception:  # an exception of the reader's own may be broken too
        return ""
