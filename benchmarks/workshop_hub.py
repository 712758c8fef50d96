"""Start the hub of a measured workshop as a trial on loopback, end all that it started, and measure
what its processes take.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import requests

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "deploy" / "jupyterhub_config.py"
PASSWORD = "workshop"
PACKAGES = ("jupyterhub", "jupyter_server", "jupyterlab", "ipykernel", "torch", "amp_course")
Processes = Sequence[psutil.Process]


@dataclass(frozen=True)
class Hub:
    """A running hub: its process, its address, and the folder of its database and the homes."""

    process: psutil.Process
    url: str
    state: Path

    def groups(self) -> dict[str, list[psutil.Process]]:
        """Return the processes of each learner, server and kernels, by the name that the hub gives
        them in their environment; under "" those of the hub, its proxy and the idle culler.
        """
        found: dict[str, list[psutil.Process]] = {"": []}
        for one in [self.process, *self.process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                found.setdefault(one.environ().get("JUPYTERHUB_USER", ""), []).append(one)
        return found

    def home_bytes(self) -> int:
        """Return the bytes of the files in the learners' homes."""
        files = (self.state / "homes").rglob("*")
        return sum(file.stat().st_size for file in files if file.is_file())


@contextlib.contextmanager
def running_hub(python: Path, proxy: Path, learners: int, log: Path) -> Iterator[Hub]:
    """Start the course's hub as a trial, in a folder that is deleted afterwards.

    python:   of the environment that has the course and JupyterHub
    proxy:    the program configurable-http-proxy
    learners: that are to come, which decides the threads of a kernel
    log:      file for what hub and servers say
    """
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="amp-workshop-", ignore_cleanup_errors=True) as state:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("AMP_COURSE_")} | {
            "AMP_COURSE_HUB": "trial",
            "AMP_COURSE_HUB_STATE": state,
            "AMP_COURSE_HUB_URL": f"http://127.0.0.1:{port}",
            "AMP_COURSE_HUB_LEARNERS": str(learners),
            "PATH": f"{proxy.resolve().parent}{os.pathsep}{os.environ['PATH']}",
        }
        command = [str(python), "-m", "jupyterhub", "-f", str(CONFIG)]
        with log.open("wb") as said:
            hub = psutil.Popen(command, cwd=state, env=environment, stdout=said, stderr=said)
        found = Hub(hub, f"http://127.0.0.1:{port}", Path(state))
        try:
            _wait_for(f"{found.url}/hub/health", hub, log)
            yield found
        finally:
            tree = [*hub.children(recursive=True), hub] if hub.is_running() else []
            for process in tree:
                with contextlib.suppress(psutil.Error):
                    process.terminate()
            for process in psutil.wait_procs(tree, timeout=20)[1]:
                with contextlib.suppress(psutil.Error):
                    process.kill()


def _free_port() -> int:
    """Return a port that is free, and so are those that the hub derives from it."""
    for port in range(18000, 28000, 200):
        with contextlib.ExitStack() as stack:
            try:
                for one in (port, port + 1, port + 81):
                    probe = stack.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", one))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")


def _wait_for(url: str, hub: psutil.Popen, log: Path) -> None:
    for _ in range(600):
        with contextlib.suppress(requests.RequestException):
            if requests.get(url, timeout=2).ok:
                return
        if hub.poll() is not None:
            break
        time.sleep(0.2)
    raise RuntimeError(f"the hub did not start: {log} says why")


def versions(python: Path) -> dict[str, str]:
    """Return the versions of that environment's Python and of what a workshop uses."""
    code = (
        "import importlib.metadata as m, json, platform; print(json.dumps({'python':"
        f" platform.python_version(), **{{n: m.version(n) for n in {PACKAGES!r}}}}}))"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def memory_mb(group: Processes) -> tuple[float, float]:
    """Return (PSS, memory of these processes alone) in MB, from /proc/*/smaps_rollup."""
    pss = own = 0
    for process in group:
        with contextlib.suppress(psutil.Error):
            info = process.memory_full_info()
            pss, own = pss + info.pss, own + info.uss
    return pss / 2**20, own / 2**20


def largest_peak_mb(group: Processes) -> int:
    """Return the largest resident memory that one of the processes ever had, in MB."""
    peaks = [0]
    for process in group:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process.pid}/status").read_text("utf-8")
            peaks += [int(kilobytes) for kilobytes in re.findall(r"VmHWM:\s+(\d+)", status)]
    return max(peaks) // 1024


def cpu_seconds(group: Processes) -> float:
    """Return the CPU time that the processes have used so far, in seconds."""
    total = 0.0
    for process in group:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
