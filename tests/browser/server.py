"""A copy of the course, served by the reader's own command `make lab`."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
from nbformat import v4

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(
    ".venv", ".git", "my_work", "*cache*", "screenshots", "*.egg-info"
)
INSTALL = "python3 tools/install.py --extra test"


class Lab:
    """A copy of the course in `folder`, and JupyterLab for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT, folder, ignore=LEFT_OUT)
        self._share_environment()
        settings = folder / "settings" / "@jupyterlab" / "notebook-extension"
        settings.mkdir(parents=True)
        # Draw every cell, also those below the window: else what the test looks for is not in the
        # page yet.
        (settings / "tracker.jupyterlab-settings").write_text(json.dumps({"windowingMode": "none"}))
        self.environment = os.environ | {
            "AMP_COURSE_ROOT": str(folder),
            "AMP_COURSE_WORK": str(folder / "my_work"),
            "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            # Where the clone's .venv is older than pyproject.toml, `make lab` would install the
            # copy into it.
            "PIP_NO_INDEX": "1",
        }
        self.process: subprocess.Popen[str] | None = None

    def _share_environment(self) -> None:
        """Let the copy use the packages of the clone's .venv, with a stamp of its own: several labs
        start at once, and one that installed again, for its new folder, would take the stamp from
        under the others.
        """
        venv, stamp = ROOT / ".venv", ROOT / ".venv" / "installed.json"
        if not stamp.exists():
            return
        shared = self.folder / ".venv"
        shared.mkdir()
        for part in venv.iterdir():
            if part != stamp:
                (shared / part.name).symlink_to(part)
        (shared / stamp.name).write_text(
            json.dumps(json.loads(stamp.read_text()) | {"folder": str(self.folder)})
        )

    def start(self) -> None:
        """Start the server as the README says, and wait until it answers;
        sets `address`, `token`, `seconds`.
        """
        port = free_port()
        options = f"--no-browser --port {port}"
        if (self.folder / ".venv").exists():
            command = ["make", "lab", f"ARGS={options}"]
        else:  # the tests run in an environment of somebody's own
            command = [sys.executable, "-m", "amp_course", "lab", *options.split()]
        log = self.folder / "lab.log"
        began = time.monotonic()
        with open(log, "w") as file:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        while not (
            found := re.search(r"http://127\.0\.0\.1:\d+/lab\S*token=(\w+)", log.read_text())
        ):
            assert self.process.poll() is None, (
                f"{log.read_text()}\nIf pyproject.toml has changed, install first: {INSTALL}"
            )
            assert time.monotonic() - began < 120, log.read_text()
            time.sleep(0.05)
        self.seconds = time.monotonic() - began
        self.address, self.token = f"http://127.0.0.1:{port}", found[1]

    def stop(self) -> None:
        """Stop it as Ctrl-C twice does."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None

    def shut_down_kernels(self) -> None:
        """End what the notebooks left running: it takes memory, and time from the next test."""
        for session in json.loads(self._request("GET")):
            self._request("DELETE", f"/{session['id']}")

    def _request(self, method: str, path: str = "") -> bytes:
        address = f"{self.address}/api/sessions{path}"
        request = urllib.request.Request(
            address, method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()

    def url(self, notebook: str) -> str:
        return f"{self.address}/lab/tree/{notebook}?token={self.token}&reset"

    def small_notebook(self, chapter: str, *texts: str, setup: str = "") -> str:
        """Write a notebook of a chapter's cells, the first that holds each text,
        below a cell of `setup`; return its URL.
        """
        cells = [
            cell
            for cell in nbformat.read(ROOT / "notebooks" / f"{chapter}.ipynb", 4).cells
            if cell.cell_type == "code"
        ]
        chosen = [
            next((cell.source for cell in cells if text in cell.source), None) for text in texts
        ]
        assert None not in chosen, f"{chapter} has no cell with {texts[chosen.index(None)]!r}"
        return self.write(f"small/{chapter}.ipynb", *filter(None, [setup, *chosen]))

    def write(self, notebook: str, *sources: str) -> str:
        """Write a notebook of code cells; return its URL."""
        book = v4.new_notebook(cells=[v4.new_code_cell(source) for source in sources])
        book.metadata["kernelspec"] = {
            "display_name": "Python 3 (ipykernel)",
            "language": "python",
            "name": "python3",
        }
        path = self.folder / notebook
        path.parent.mkdir(exist_ok=True)
        nbformat.write(book, path)
        return self.url(notebook)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
