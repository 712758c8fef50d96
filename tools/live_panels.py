"""What the book needs to run panels in the reader's browser: Pyodide, the course's modules that
they import, and what was recorded for them.

`python tools/live_panels.py` makes every live panel in a Python without torch, NumPy or matplotlib,
as the browser will.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIVE = ROOT / "docs" / "book" / "live.py"
PYODIDE = "314.0.7"  # on npm
_LOADED = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "python_stdlib.zip",
    "pyodide-lock.json",
)
# Run without site-packages, so that nothing but the standard library is there.
_MAKE = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
import live
live.install()
data = json.load(sys.stdin)
from amp_course.kit.panel_page import page_of
pages = {name: page_of(live.make(name, data.get(name))) for name in live.PANELS}
files = [one.__file__ for one in sys.modules.values() if getattr(one, "__file__", None)]
print(json.dumps([pages, [one for one in files if "amp_course" in one]]))
"""
_FRAME = (
    '<div class="amp-live" data-panel="{name}" data-recorded="{recorded}" '
    'data-python="pyodide-{pyodide}" data-code="panels.zip?{code}">'
    '{page}<div class="amp-state" role="status">This panel moves where JavaScript runs.</div></div>'
)


def record() -> dict[str, str]:
    """Record what the live panels show of trainings, by name of the panel, as JSON."""
    modules = {name: importlib.import_module(module) for name, module in panels().items()}
    classes = {name: getattr(module, name) for name, module in modules.items()}
    return {
        name: json.dumps(panel.record(), separators=(",", ":"))
        for name, panel in classes.items()
        if hasattr(panel, "record")
    }


def panels() -> dict[str, str]:
    """Return the live panels: their class → their module."""
    scope: dict[str, dict[str, str]] = {}
    exec(compile(LIVE.read_text("utf-8"), LIVE, "exec"), scope)  # it imports nothing of ours
    return scope["PANELS"]


def make(data: Mapping[str, str]) -> tuple[dict[str, str], list[Path]]:
    """Make each live panel as the browser does; return their pages and the files that took.

    data: a panel's name → what was recorded for it, as JSON

    Raises RuntimeError for a panel that needs more than Python.
    """
    paths = json.dumps([str(ROOT), str(LIVE.parent)])
    command = [sys.executable, "-B", "-I", "-S", "-c", _MAKE, paths]
    done = subprocess.run(
        command, input=json.dumps(data), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"a panel does not run without torch:\n{done.stderr}")
    pages, files = json.loads(done.stdout)
    return pages, [Path(file) for file in files]


def write(static: Path) -> dict[str, str]:
    """Put all that live panels load into the site's static files; return each panel's HTML.

    Raises OSError or CalledProcessError where npm is missing or cannot reach its registry.
    """
    data = record()
    pages, files = make(data)
    _copy_pyodide(static / f"pyodide-{PYODIDE}")
    _zip(static / "panels.zip", files)
    recorded = {}
    for name, text in data.items():
        recorded[name] = f"{name}.{_short_hash(text.encode())}.json"
        (static / recorded[name]).write_text(text, "utf-8")
    shutil.copy(ROOT / "amp_course" / "kit" / "panel_page.css", static)
    code = _short_hash((static / "panels.zip").read_bytes())
    return {
        name: _FRAME.format(
            name=name, recorded=recorded.get(name, ""), pyodide=PYODIDE, code=code, page=page
        )
        for name, page in pages.items()
    }


def _short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _zip(path: Path, files: list[Path]) -> None:
    """Pack modules and the tables beside them, with equal times, so that equal ones are equal."""
    tables = {table for file in files for table in file.parent.glob("*.toml")}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted({*files, *tables}):
            name = zipfile.ZipInfo(str(file.relative_to(ROOT)))
            archive.writestr(name, file.read_bytes(), zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo("live.py"), LIVE.read_bytes(), zipfile.ZIP_DEFLATED)


def _copy_pyodide(folder: Path) -> None:
    """Copy Pyodide's core from npm, which is asked once: build/ keeps it, with Python's standard
    library compiled, so that a page has not to.
    """
    build = ROOT / "build" / f"pyodide-{PYODIDE}"
    compiled = build / "stdlib.zip"
    if not build.is_dir():
        if shutil.which("npm") is None:
            sys.exit("The book's panels run on Pyodide, which comes from npm: install npm first.")
        build.parent.mkdir(exist_ok=True)
        command = ["npm", "pack", f"pyodide@{PYODIDE}", "--silent"]
        done = subprocess.run(command, cwd=build.parent, capture_output=True, text=True, check=True)
        packed = build.parent / done.stdout.split()[-1]
        with tarfile.open(packed) as archive:
            archive.extractall(build, filter="data")
        packed.unlink()
    if not compiled.is_file():
        script = ROOT / "tools" / "compile_stdlib.mjs"
        subprocess.run(["node", script, build / "package", compiled], check=True)
    folder.mkdir(exist_ok=True)
    for name in _LOADED:
        shutil.copy(build / "package" / name, folder)
    shutil.copy(compiled, folder / "python_stdlib.zip")


if __name__ == "__main__":
    for name, page in make(record())[0].items():
        print(f"{name}: {len(page):,} characters")
