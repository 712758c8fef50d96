"""Start JupyterLab for the course: in this process, for this machine alone, behind a token."""

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
_SETTINGS = Path(__file__).parent / "lab_settings"


def start(port: int | None = None, browser: bool = True, jupyter_args: Sequence[str] = ()) -> None:
    """Run JupyterLab until it is stopped, open at the start page.

    Without a port, takes the first free one from 8888 on. Raises CourseError if the port is in use.
    """
    root = course_root()
    port = _free_port() if port is None else _checked(port)
    use_writable_folders()
    _use_own_settings()
    os.environ["AMP_COURSE_ROOT"] = str(root)  # for kernels, wherever the package is installed

    from jupyterlab.labapp import LabApp

    print("Starting JupyterLab; Ctrl-C here stops it.", flush=True)
    ours = {
        "ServerApp.ip": ADDRESS,
        "ServerApp.port": str(port),
        "ServerApp.port_retries": "0",  # take this port, or fail
        "ServerApp.root_dir": str(root),
        "LabApp.default_url": "/lab/tree/notebooks/00_start.ipynb",
        "LabApp.extra_labextensions_path": str(_SETTINGS / "labextensions"),
        # so that the address, which is always shown, stays at the end of the screen
        "Application.log_level": "ERROR",
    }
    theirs = _settings(jupyter_args)
    options = [f"--{name}={value}" for name, value in ours.items() if name not in theirs]
    options += [] if browser else ["--no-browser"]
    options += ["--allow-root"] if _is_root() else []
    try:
        LabApp.launch_instance([*options, *jupyter_args])
    except (OSError, ValueError, RuntimeError) as error:
        raise CourseError(
            f"JupyterLab could not run: {error}. Check the options that you gave it."
        ) from error


def _settings(arguments: Sequence[str]) -> set[str]:
    """Return the full names of what arguments set: ["--ip=::1"] → {"ServerApp.ip"}."""
    from jupyter_server import serverapp

    options = [argument for argument in arguments if argument.startswith("-")]
    names = [option.partition("=")[0].lstrip("-") for option in options]
    return {serverapp.aliases.get(name, name) for name in names}


def check_options(arguments: Sequence[str], own: Sequence[str] = ()) -> None:
    """Raise CourseError for the first argument that is neither an option of JupyterLab nor the
    value of one. Imports JupyterLab.

    own: other options to suggest for a misspelt one, such as "--port"
    """
    known = _jupyter_options() if arguments else {}
    value_may_follow = False
    for argument in arguments:
        name, assigned, _ = argument.partition("=")
        if argument.startswith("-"):
            # --ServerApp.tornado_settings.x sets a part of a known option
            option = ".".join(name.split(".")[:2])
            if option not in known:
                near = difflib.get_close_matches(name, [*own, *known], n=1, cutoff=0.7)
                meant = f" Did you mean {near[0]}?" if near else ""
                raise CourseError(
                    f"neither amp-course nor JupyterLab has an option {name}.{meant} (Put an "
                    "option that only an extension of JupyterLab knows after `--`.)"
                )
            value_may_follow = known[option] and not assigned
        elif value_may_follow:
            value_may_follow = False
        else:
            raise CourseError(
                f"'{argument}' is not an option: `amp-course lab` opens the start page, and you "
                "choose a notebook there."
            )


def _jupyter_options() -> dict[str, bool]:
    """Return {"--debug": False, "--ip": True, …}: JupyterLab's options; True: it takes a value."""
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
    for kind in classes:  # the list grows as the loop goes on
        classes += kind.__subclasses__()
        traits = kind.class_trait_names(config=True)
        options |= {f"--{kind.__name__}.{trait}": True for trait in traits}
    return options


def use_writable_folders() -> None:
    """Where Jupyter's folders in the user's home cannot be written, set others for this process and
    its kernels.

    These are in `my_work/.jupyter`, so that settings last.
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
        # try, for a network folder or a full disk may refuse
        with tempfile.TemporaryFile(dir=path):
            return True
    except (OSError, RuntimeError):  # RuntimeError: the home of a user who does not exist
        return False


def _use_own_settings() -> None:
    """Add the course's settings to JupyterLab's, for this server alone.

    They switch off the news prompt and the menus of nbgrader, which learners do not need.
    """
    theirs = os.environ.get("JUPYTER_CONFIG_PATH")
    paths = [str(_SETTINGS), theirs] if theirs else [str(_SETTINGS)]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(paths)


def _is_root() -> bool:
    # A rented GPU machine or a container often has no other user; loopback and a token protect it.
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _checked(port: int) -> int:
    """Return the port if a server can listen there, else raise CourseError."""
    if problem := _problem(port):
        raise CourseError(
            f"port {port} {problem}: choose another with `--port N`, or leave --port out to get a "
            "free one."
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
        "with `--port N`."
    )


def _problem(port: int) -> str | None:
    """Say why nothing can listen on the port, or return None."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # as Jupyter does; else a server that has just stopped still seems to run
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
