"""Start JupyterLab for the course: in this process, on this machine's own address,
behind Jupyter's token.
"""

from __future__ import annotations

import difflib
import errno
import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from amp_course.kit.errors import CourseError
from amp_course.kit.paths import course_root, work_dir

ADDRESS = "127.0.0.1"
FIRST_PORT = 8888


def start(port: int | None = None, browser: bool = True, jupyter_args: Sequence[str] = ()) -> None:
    """Run JupyterLab until it is stopped, open at the start page.

    Without a port, takes the first free one from 8888 on. Raises CourseError when the port asked
    for is in use.
    """
    root = course_root()
    port = _free_port() if port is None else _checked(port)
    use_writable_folders()
    _use_own_settings()
    # kernels look no further, wherever the package is installed
    os.environ["AMP_COURSE_ROOT"] = str(root)

    from jupyterlab.labapp import LabApp

    print("Starting JupyterLab; Ctrl-C here stops it.", flush=True)
    ours = {
        "ServerApp.ip": ADDRESS,
        "ServerApp.port": str(port),
        "ServerApp.port_retries": "0",  # a port is the one we said, or an error
        "ServerApp.root_dir": str(root),
        "LabApp.default_url": "/lab/tree/notebooks/00_start.ipynb",
        "LabApp.extra_labextensions_path": str(
            Path(__file__).parent / "lab_settings" / "labextensions"
        ),
        # the address, which is always shown, stays the last thing on the screen
        "Application.log_level": "ERROR",
    }
    theirs = _settings(jupyter_args)
    try:
        LabApp.launch_instance(
            [
                *(
                    f"--{setting}={value}"
                    for setting, value in ours.items()
                    if setting not in theirs
                ),
                *([] if browser else ["--no-browser"]),
                *(["--allow-root"] if _is_root() else []),
                *jupyter_args,
            ]
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise CourseError(
            f"JupyterLab could not run: {error}. Check the options that you gave it."
        ) from error


def _settings(arguments: Sequence[str]) -> set[str]:
    """Return what JupyterLab's arguments set, by its full name: ["--ip=::1"] → {"ServerApp.ip"}."""
    from jupyter_server import serverapp

    names = {
        argument.partition("=")[0].lstrip("-") for argument in arguments if argument.startswith("-")
    }
    return {serverapp.aliases.get(name, name) for name in names}


def check_options(arguments: Sequence[str], own: Sequence[str] = ()) -> None:
    """Raise CourseError for the first argument that is neither an option of JupyterLab's nor the
    value of one.

    own: further options to suggest for a misspelt one, such as "--port". Imports JupyterLab.
    """
    known = _jupyter_options() if arguments else {}
    value_may_follow = False
    for argument in arguments:
        name, assigned, _ = argument.partition("=")
        if argument.startswith("-"):
            # --ServerApp.tornado_settings.x sets a part of a known one
            option = ".".join(name.split(".")[:2])
            if option not in known:
                near = difflib.get_close_matches(name, [*own, *known], n=1, cutoff=0.7)
                meant = f" Did you mean {near[0]}?" if near else ""
                raise CourseError(
                    f"neither amp-course nor JupyterLab has an option {name}.{meant} (Put an "
                    f"option that only an extension of "
                    "JupyterLab knows after `--`.)"
                )
            value_may_follow = known[option] and not assigned
        elif value_may_follow:
            value_may_follow = False
        else:
            raise CourseError(
                f"'{argument}' is not an option: `amp-course lab` opens the start page, and you "
                f"choose a notebook there."
            )


def _jupyter_options() -> dict[str, bool]:
    """Return the options that JupyterLab knows, and whether each takes a value: {"--debug":
    False, "--ip": True, …}.
    """
    from jupyter_server import serverapp
    from jupyterlab.labapp import LabApp
    from traitlets.config import Configurable

    options = {"--help-all": False, "--version": False}
    for names, takes_value in (
        ({**serverapp.aliases, **LabApp.aliases}, True),
        ({**serverapp.flags, **LabApp.flags}, False),
    ):
        for as_list in names:  # one name, or a tuple of names for the same
            for name in [as_list] if isinstance(as_list, str) else as_list:
                options[f"-{name}" if len(name) == 1 else f"--{name}"] = takes_value
    classes = [Configurable]
    for found in classes:  # grows as it goes: all that are loaded
        classes += found.__subclasses__()
        options |= {
            f"--{found.__name__}.{trait}": True for trait in found.class_trait_names(config=True)
        }
    return options


def use_writable_folders() -> None:
    """Where Jupyter's own folders in the reader's home cannot be written, give it others, for this
    process and its kernels.

    They lie in `my_work/.jupyter`, so that settings stay from one start to the next.
    """
    from jupyter_core import paths

    fallback = work_dir() / ".jupyter"
    try:
        Path.home()
    except RuntimeError:  # as in a container whose user is only a number
        os.environ["HOME"] = str(fallback)
    for variable, folder in (
        ("JUPYTER_CONFIG_DIR", paths.jupyter_config_dir()),
        ("JUPYTER_DATA_DIR", paths.jupyter_data_dir()),
        ("JUPYTER_RUNTIME_DIR", paths.jupyter_runtime_dir()),
        ("IPYTHONDIR", os.environ.get("IPYTHONDIR", "~/.ipython")),
        ("MPLCONFIGDIR", os.environ.get("MPLCONFIGDIR", "~/.config/matplotlib")),
    ):
        if not _can_write(folder):
            os.environ[variable] = str(fallback / variable.lower())
            Path(os.environ[variable]).mkdir(mode=0o700, parents=True, exist_ok=True)


def _can_write(folder: str) -> bool:
    """Return True if files can be made in the folder, which need not exist yet. Makes it."""
    try:
        path = Path(folder).expanduser()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # for what a network folder or a full disk refuses, only trying tells
        with tempfile.TemporaryFile(dir=path):
            return True
    except (OSError, RuntimeError):  # RuntimeError: the home of a user who does not exist
        return False


def _use_own_settings() -> None:
    """Add the course's settings to JupyterLab's for this server alone: the reader's own stay as
    they are.

    They switch off the news prompt, and the menus of nbgrader, which the tests install but readers
    have no use for.
    """
    ours = str(Path(__file__).parent / "lab_settings")
    theirs = os.environ.get("JUPYTER_CONFIG_PATH")
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join([ours, theirs] if theirs else [ours])


def _is_root() -> bool:
    # A rented GPU machine or a container often has no other user. On loopback and behind a token,
    # that is all right.
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _checked(port: int) -> int:
    """Return the port if a server can listen there; raise CourseError with the reason and the fix
    if not.
    """
    if problem := _problem(port):
        raise CourseError(
            f"port {port} {problem}: choose another with `--port N`, or leave --port out to get a "
            f"free one."
        )
    return port


def _free_port() -> int:
    for port in range(FIRST_PORT, FIRST_PORT + 100):
        if not _problem(port):
            if port != FIRST_PORT:
                print(f"Port {FIRST_PORT} is in use; JupyterLab starts on {port}.")
            return port
    raise CourseError(
        f"no port from {FIRST_PORT} to {FIRST_PORT + 99} is free: stop a server, or name a port "
        f"with `--port N`."
    )


def _problem(port: int) -> str | None:
    """Say why nothing can listen on the port, or return None."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # as Jupyter does; else a server that stopped a moment ago still seems to be there
        if os.name == "posix":
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
