"""Small settings of the interpreter and of the process: put back, and remarked on."""

from __future__ import annotations

import os
import sys

from amp_course.checking.state.item import Item, restored


def _umask() -> int:
    now = os.umask(0o077)  # can be read only by setting it; nobody else may read a file that is created in between
    os.umask(now)
    return now


def _set_arguments(was: list[str]) -> None:
    sys.argv[:] = was


INTERPRETER = (
    Item(
        _umask,
        os.umask,
        restored("the permissions that new files get (`os.umask`)"),
        fault=False,
    ),
    Item(lambda: list(sys.argv), _set_arguments, restored("the arguments in `sys.argv`"), fault=False),
    Item(
        sys.getswitchinterval,
        sys.setswitchinterval,
        restored("how often Python switches between threads (`sys.setswitchinterval`)"),
        fault=False,
    ),
    Item(
        lambda: sys.get_int_max_str_digits(),
        lambda was: sys.set_int_max_str_digits(was),
        restored("how many digits of an integer Python prints or reads (`sys.set_int_max_str_digits`)"),
        fault=False,
    ),
)
