"""A real `make lab` in a copy of the course, and a real Chromium to look at it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = Path(__file__).parent / "screenshots"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LEFT_OUT = shutil.ignore_patterns(".venv", ".git", "my_work", "*cache*", "screenshots", "*.egg-info")


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.path).parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(400))
            # Playwright's event loop and Chromium's pipes are closed by the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session")
def browser():
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        how = (
            "no Chromium was found, so the browser tests did not run: install one (Debian and Ubuntu: "
            "`sudo apt-get install chromium`; macOS: `brew install --cask chromium`) and run `make test` again"
        )
        if os.environ.get("AMP_COURSE_REQUIRE_BROWSER") == "1":
            pytest.fail(how)
        pytest.skip(how)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 1500, "height": 1000})
    page = context.new_page()
    yield page
    context.close()


class Lab:
    """A copy of the course in `folder`, served by the reader's own command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT, folder, ignore=LEFT_OUT)
        self._share_environment()
        settings = folder / "settings" / "@jupyterlab" / "notebook-extension"
        settings.mkdir(parents=True)
        # Draw every cell, also those below the window: else what the test looks for is not in the page yet.
        (settings / "tracker.jupyterlab-settings").write_text(json.dumps({"windowingMode": "none"}))
        self.environment = os.environ | {
            "AMP_COURSE_ROOT": str(folder),
            "AMP_COURSE_WORK": str(folder / "my_work"),
            "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        }
        self.process: subprocess.Popen[str] | None = None

    def _share_environment(self) -> None:
        """Let the copy use the packages of the clone's .venv, with a stamp of its own: several labs start at once, and one
        that installed anew, for its new folder, would take the stamp from under the others.
        """
        venv, stamp = ROOT / ".venv", ROOT / ".venv" / "installed.json"
        if not stamp.exists():
            return
        shared = self.folder / ".venv"
        shared.mkdir()
        for part in venv.iterdir():
            if part != stamp:
                (shared / part.name).symlink_to(part)
        (shared / stamp.name).write_text(json.dumps(json.loads(stamp.read_text()) | {"folder": str(self.folder)}))

    def start(self) -> None:
        """Start the server as the README says, and wait until it answers; sets `address`, `token`, `seconds`."""
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
                command, cwd=self.folder, env=self.environment, stdout=file, stderr=file, start_new_session=True
            )
        while not (found := re.search(r"http://127\.0\.0\.1:\d+/lab\S*token=(\w+)", log.read_text())):
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() - began < 60, log.read_text()
            time.sleep(0.1)
        self.seconds = time.monotonic() - began
        self.address, self.token = f"http://127.0.0.1:{port}", found[1]

    def stop(self) -> None:
        """Stop it as Ctrl-C twice does."""
        if self.process is None:
            return
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None

    def url(self, notebook: str) -> str:
        return f"{self.address}/lab/tree/{notebook}?token={self.token}&reset"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("course") / "amp_course")
    lab.start()
    yield lab
    lab.stop()


@pytest.fixture(scope="session")
def screenshots():
    SCREENSHOTS.mkdir(exist_ok=True)
    return SCREENSHOTS


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
