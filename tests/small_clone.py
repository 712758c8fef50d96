"""A folder that `tools/install.py` takes for the course's, with a tiny package in it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

INSTALL = Path(__file__).parents[1] / "tools" / "install.py"

PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""

# The smallest build backend: an editable wheel that holds only metadata. `slow` makes the build
# last, to be killed in.
BACKEND = """
import pathlib, time, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    if pathlib.Path("slow").exists():
        pathlib.Path("building").touch()
        time.sleep(60)
    info, files = "tiny-1.dist-info/", {{}}
    files[info + "METADATA"] = "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\n{requires}"
    lines = "Wheel-Version: 1.0", "Generator: tiny", "Root-Is-Purelib: true", "Tag: py3-none-any"
    files[info + "WHEEL"] = "".join(f"{{line}}\\n" for line in lines)
    files[info + "RECORD"] = "".join(f"{{name}},,\\n" for name in [*files, info + "RECORD"])
    with zipfile.ZipFile(pathlib.Path(folder, "tiny-1-py3-none-any.whl"), "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return "tiny-1-py3-none-any.whl"
"""


def make_clone(folder: Path, requires: str = "") -> Path:
    """Lay out a folder that install.py takes for the course's."""
    (folder / "tools").mkdir(parents=True)
    shutil.copy(INSTALL, folder / "tools")
    shutil.copy(INSTALL.with_name("trouble.py"), folder / "tools")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "constraints.txt").write_text("torch==2.13.0\n")
    requirement = f"Requires-Dist: {requires}\\n" if requires else ""
    (folder / "backend.py").write_text(BACKEND.format(requires=requirement))
    return folder


def start(clone: Path, *arguments: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(clone / "tools" / "install.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(clone), **environment},
        start_new_session=True,
    )


def set_up(clone: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    with start(clone, *arguments, **environment) as process:
        out, err = process.communicate(timeout=90)
    return process.returncode, out, err


def one_line(err: str) -> str:
    (line,) = err.strip().splitlines()
    assert line.startswith("amp_course: ")
    return line
