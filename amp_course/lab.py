"""Start JupyterLab for the course: in this process, on this machine's own address, behind Jupyter's token."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from amp_course.kit.errors import CourseError
from amp_course.kit.paths import course_root

ADDRESS = "127.0.0.1"
FIRST_PORT = 8888


def start(port: int | None = None, browser: bool = True, jupyter_args: Sequence[str] = ()) -> None:
    """Run JupyterLab until it is stopped, open at the start page.

    Without a port, takes the first free one from 8888 on. Raises CourseError when the port asked for is in use.
    """
    root = course_root()
    port = _free_port() if port is None else _checked(port)
    _quiet_the_news()
    os.environ["AMP_COURSE_ROOT"] = str(root)  # kernels look no further, wherever the package is installed

    from jupyterlab.labapp import LabApp

    LabApp.launch_instance(
        [
            f"--ServerApp.ip={ADDRESS}",
            f"--ServerApp.port={port}",
            "--ServerApp.port_retries=0",  # a port is the one we said, or an error
            f"--ServerApp.root_dir={root}",
            "--LabApp.default_url=/lab/tree/notebooks/00_start.ipynb",
            f"--LabApp.extra_labextensions_path={Path(__file__).parent / 'lab_settings' / 'labextensions'}",
            *([] if browser else ["--no-browser"]),
            *(["--allow-root"] if _is_root() else []),
            *jupyter_args,
        ]
    )


def _quiet_the_news() -> None:
    """Switch JupyterLab's news prompt off for this server alone: the reader's own settings stay as they are."""
    ours = str(Path(__file__).parent / "lab_settings")
    theirs = os.environ.get("JUPYTER_CONFIG_PATH")
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join([ours, theirs] if theirs else [ours])


def _is_root() -> bool:
    # A rented GPU machine or a container often has no other user. On loopback and behind a token, that is all right.
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _checked(port: int) -> int:
    """Return the port if a server can listen there; raise CourseError with the reason and the cure if not."""
    if problem := _problem(port):
        raise CourseError(
            f"port {port} {problem}: choose another with `--port N`, or leave --port out to get a free one."
        )
    return port


def _free_port() -> int:
    for port in range(FIRST_PORT, FIRST_PORT + 100):
        if not _problem(port):
            if port != FIRST_PORT:
                print(f"Port {FIRST_PORT} is in use; JupyterLab starts on {port}.")
            return port
    raise CourseError(
        f"no port from {FIRST_PORT} to {FIRST_PORT + 99} is free: stop a server, or name a port with `--port N`."
    )


def _problem(port: int) -> str | None:
    """Say why nothing can listen on the port, or return None."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if os.name == "posix":  # as Jupyter does; else a server that stopped a moment ago still seems to be there
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except PermissionError:
            return "is not open to you (ports below 1024 are the system's)"
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "is in use by another program"
            return f"cannot be used ({error.strerror})"
    return None
