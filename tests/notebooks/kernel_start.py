"""A plugin for nbval: start a kernel again if it died at once, as it does where another process
took one of its ports first.

jupyter_client looks for free ports, lets go of them, and the kernel takes them a second later. In
between, the kernel of another test process can be given the same: seen once in some two hundred
starts.
"""

from typing import Any

from nbval import kernel

_start = kernel.start_new_kernel
_TRIES = 3


def start_new_kernel(**options: Any) -> Any:
    """Start a kernel as nbval does, up to three times."""
    for _ in range(_TRIES - 1):
        try:
            return _start(**options)
        except RuntimeError as error:
            if "Kernel died before replying" not in str(error):
                raise
    return _start(**options)


kernel.start_new_kernel = start_new_kernel
