"""The notebooks under nbval in the environment that `make lab` makes,
without the tests' own packages.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = [  # as docs/notebook-ci.md has them
    "pytest --nbval-lax notebooks/05_scaler.ipynb",
    "pytest --nbval notebooks/01_bits.ipynb",
    "pytest --nbval --nbval-current-env solutions/01_bits.ipynb",
    "pytest --nbval-lax --nbval-current-env exercises/01_bits.ipynb",
]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of what git knows, set up as `make lab` does it."""
    folder = copy_of_the_course(tmp_path_factory.mktemp("clone") / "amp_course")
    index = os.environ.get("TORCH_INDEX", "")
    run(folder, [sys.executable, "tools/install.py", "--torch-index", index])
    yield folder
    shutil.rmtree(folder)  # 1.5 GB, which pytest would keep


def copy_of_the_course(folder: Path) -> Path:
    """Copy what git knows to a new folder; return that."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def run(folder: Path, command: list[str]) -> str:
    """Run a command in the folder as a user would; return what it printed."""
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "AMP_COURSE"))
    }
    done = subprocess.run(
        command, cwd=folder, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def run_commands(folder: Path, commands: list[str]) -> None:
    for command in commands:
        printed = run(folder, [str(folder / ".venv/bin/python"), "-m", *command.split()])
        assert (
            " passed in " in printed and "timeout-" not in printed
        )  # pytest-timeout is the tests' own


def test_after_make_lab(clone: Path) -> None:
    run_commands(clone, COMMANDS)


def test_after_an_install_that_is_not_editable(clone: Path) -> None:
    pip = [str(clone / ".venv/bin/python"), "-m", "pip"]
    run(clone, [*pip, "install", "--force-reinstall", "--no-deps", "."])
    where = run(clone / "docs", [pip[0], "-c", "import amp_course; print(amp_course.__file__)"])
    assert "site-packages" in where
    run_commands(clone, COMMANDS[:2])


def test_the_page_has_these_commands() -> None:
    page = (ROOT / "docs" / "notebook-ci.md").read_text("utf-8")
    assert [command for command in COMMANDS[:2] if command not in page] == []
