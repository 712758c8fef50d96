"""The set-up, `tools/install.py`: run for real on a tiny package,
with no network and nothing to download.
"""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # `make test` would take too long with it

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


def installed(clone: Path) -> bool:
    code = "import importlib.metadata as m; print(m.version('tiny'))"
    return (
        subprocess.run([clone / ".venv/bin/python", "-c", code], capture_output=True).returncode
        == 0
    )


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone that is set up; tests copy it or leave it working."""
    clone = make_clone(
        tmp_path_factory.mktemp("ready") / "a clone"
    )  # a space in the path, as users have
    code, out, err = set_up(clone)
    assert code == 0, out + err
    return clone


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """install.py itself, taken to lie in an empty folder."""
    clone = make_clone(tmp_path / "clone")
    monkeypatch.syspath_prepend(str(clone / "tools"))
    found = types.ModuleType("install")
    found.__file__ = str(clone / "tools" / "install.py")
    exec(compile(INSTALL.read_text(), found.__file__, "exec"), found.__dict__)
    return found


def one_line(err: str) -> str:
    (line,) = err.strip().splitlines()
    assert line.startswith("amp_course: ")
    return line


@pytest.mark.parametrize("name", ["install.py", "trouble.py"])
def test_an_old_python_can_read_it(name: str) -> None:
    ast.parse(INSTALL.with_name(name).read_text(), feature_version=(3, 6))


def test_the_same_line_without_an_old_python(module: types.ModuleType, monkeypatch, capsys) -> None:
    monkeypatch.setattr(module.sys, "version_info", (3, 8, 10, "final", 0))
    assert module.main([]) == 1
    assert "amp_course needs Python 3.11 or newer; this is 3.8.10 at " in one_line(
        capsys.readouterr().err
    )


def test_a_second_run_does_nothing_and_is_quick(ready: Path) -> None:
    before = (ready / ".venv/installed.json").stat().st_mtime_ns
    began = time.perf_counter()
    assert set_up(ready) == (0, "", "")
    assert time.perf_counter() - began < 2  # about 0.05 s; pip alone would take longer than this
    assert (ready / ".venv/installed.json").stat().st_mtime_ns == before


def test_a_changed_requirement_is_installed_and_the_extras_are_kept(ready: Path) -> None:
    assert set_up(ready, "--extra", "test")[0] == 0
    stamp = json.loads((ready / ".venv/installed.json").read_text())
    assert stamp["extras"] == ["test"]
    assert set_up(ready) == (0, "", "")  # what `test` needs is enough for `lab`
    (ready / "constraints.txt").write_text("torch==2.13.1\n")
    code, out, err = set_up(ready)
    assert (code, err) == (0, "") and "Installed" in out and "Making" not in out
    renewed = json.loads((ready / ".venv/installed.json").read_text())
    assert renewed["extras"] == ["test"] and renewed["requirements"] != stamp["requirements"]


def test_a_killed_set_up_is_picked_up_by_running_again(tmp_path: Path) -> None:
    clone = make_clone(tmp_path / "clone")
    (clone / "slow").touch()
    first = start(clone)
    wait_for(clone / "building")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert not (clone / ".venv/installed.json").exists()
    os.killpg(first.pid, signal.SIGKILL)  # pip, which lives on
    (clone / "slow").unlink()
    code, out, err = set_up(clone)
    assert code == 0, out + err
    assert installed(clone)


def test_the_next_run_waits_for_the_pip_that_a_kill_left_behind(ready: Path) -> None:
    (ready / "slow").touch()
    (ready / ".venv/installed.json").unlink()
    first = start(ready)
    wait_for(ready / "building")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    (ready / "slow").unlink()
    second = start(ready)
    assert second.stdout is not None and "Another set-up is at work" in second.stdout.readline()
    os.killpg(first.pid, signal.SIGKILL)
    out, err = second.communicate(timeout=90)
    assert second.returncode == 0, out + err
    assert installed(ready)


@pytest.mark.parametrize("damage", ["no pip", "no python", "half a package", "half a stamp"])
def test_a_half_made_venv_is_made_whole(ready: Path, damage: str) -> None:
    venv = ready / ".venv"
    if damage == "no pip":
        (pip,) = venv.glob("lib/python*/site-packages/pip")
        shutil.rmtree(pip)
        (venv / "installed.json").unlink()
    elif damage == "no python":
        for python in venv.glob("bin/python*"):
            python.unlink()
    elif damage == "half a package":
        (site,) = venv.glob("lib/python*/site-packages")
        (site / "half-1.dist-info").mkdir()
        (site / "half-1.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: half\nVersion: 1\n"
        )
        (venv / "installed.json").unlink()
    else:
        (venv / "installed.json").write_text('{"requirements": "')
    code, out, err = set_up(ready)
    assert code == 0, out + err
    assert installed(ready)
    assert not list(venv.glob("lib/python*/site-packages/half-1.dist-info"))
    assert set_up(ready) == (0, "", "")


def test_without_a_network_one_line_says_so(ready: Path) -> None:
    lost = make_clone(ready.parent / "lost", requires="surely-not-there")
    shutil.copytree(ready / ".venv", lost / ".venv", symlinks=True)
    began = time.perf_counter()
    code, out, err = set_up(
        lost, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_CONFIG_FILE=os.devnull
    )
    assert code == 1
    assert "the package index cannot be reached. Check the network" in one_line(err)
    assert (
        "No matching distribution found for surely-not-there" in out
    )  # pip's own words stay above it
    assert "surely-not-there" in (lost / ".venv/install.log").read_text()
    assert time.perf_counter() - began < 30
    assert not (lost / ".venv/installed.json").exists()


@pytest.mark.parametrize(
    "output, said",
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on "
            "device",
            "the disk is full",
        ),
        ("OSError: [Errno 122] Disk quota exceeded", "the disk is full"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...", "PIP_CERT"),
        (
            "WARNING: Retrying (Retry(total=0, connect=None)) after ...\nERROR: No matching "
            "distribution",
            "be reached",
        ),
        (
            "ERROR: Could not install packages: HTTPSConnectionPool: Max retries exceeded with url",
            "be reached",
        ),
        ("ERROR: Exception:\nERROR: Read timed out.", "be reached"),
        ("ERROR: [Errno 13] Permission denied: '/x'", "cannot be written"),
        ("[Errno 30] Read-only file system: '/x'", "cannot be written"),
        (
            "ERROR: No matching distribution found for torch==2.13.0",
            "there is no torch 2.13.0 for Python 3.",
        ),
        (
            "ERROR: Ignored the following versions that require a different python version: 4.1.1 "
            "Requires-Python >=3.11.5\nERROR: Could not find a version that satisfies the "
            "requirement soupsieve==4.1.1 (from versions: 0.4)\nERROR: No matching distribution "
            "found for soupsieve==4.1.1",
            "soupsieve==4.1.1 needs another Python than 3.",
        ),
        (
            "ERROR: Package 'x' requires a different Python: 3.11.2 not in '>=3.12'",
            "x needs another Python than 3.",
        ),
        ("ERROR: No matching distribution found for six>=2", "pip found no six>=2 for Python 3."),
        (
            "WARNING: Location 'foo/torch/' is ignored: it is neither a file nor a directory.",
            "foo is no address of a package",
        ),
        ("ERROR: HTTP error 403 while getting https://x", "refuses to serve you"),
        ("ERROR: HTTP error 503 while getting https://x", "is out of order"),
        (
            "OSError('Tunnel connection failed: 407 Proxy Authentication Required')",
            "the proxy asks for a name",
        ),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE",
            "arrived damaged",
        ),
        ("ERROR: ResolutionImpossible: for help visit", "PIP_CONSTRAINT"),
        (
            "ERROR: Invalid requirement: '<<<<<<< HEAD'",
            "is damaged. Get them back with `git checkout",
        ),
        (
            "error: subprocess-exited-with-error\nERROR: Failed to build 'mpi4py' when",
            "mpi4py has no ready-made build",
        ),
        ("MemoryError", "out of memory"),
        # a first retry that helped is not what went wrong
        ("WARNING: Retrying (Retry(total=2, connect=None)) after ...\nERROR: something else", None),
    ],
)
def test_trouble_is_named_with_its_cure(
    module: types.ModuleType, output: str, said: str | None
) -> None:
    explained = module.explain(output)
    assert explained is None if said is None else said in explained
    assert "\n" not in (explained or "")


def test_a_pin_for_another_python_is_named(ready: Path, tmp_path: Path) -> None:
    """With a pin in constraints.txt, pip itself speaks of a conflict, and names no cause."""
    page = tmp_path / "simple" / "needs-new" / "index.html"
    page.parent.mkdir(parents=True)
    links = {version: f"needs_new-{version}-py3-none-any.whl" for version in ("1", "2")}
    page.write_text(
        f'<a href="{links["1"]}">1</a> <a href="{links["2"]}" '
        f'data-requires-python="&gt;=3.99">2</a>'
    )
    lost = make_clone(tmp_path / "lost", requires="needs-new")
    (lost / "constraints.txt").write_text("needs-new==2\ntorch==2.13.0\n")
    shutil.copytree(ready / ".venv", lost / ".venv", symlinks=True)
    code, _, err = set_up(lost, PIP_INDEX_URL=page.parents[1].as_uri(), PIP_CONFIG_FILE=os.devnull)
    assert code == 1
    assert f"needs-new==2 needs another Python than {sys.version.split()[0]}" in one_line(err)


@pytest.mark.parametrize("setting", ["PIP_TARGET", "PIP_USER"])
def test_settings_of_pips_that_lead_elsewhere_do_not_count(
    ready: Path, tmp_path: Path, setting: str
) -> None:
    clone = make_clone(tmp_path / "clone")
    shutil.copytree(ready / ".venv", clone / ".venv", symlinks=True)
    (clone / ".venv" / "installed.json").unlink()
    code, out, err = set_up(
        clone, **{setting: "1" if setting == "PIP_USER" else str(tmp_path / "elsewhere")}
    )
    assert (code, err) == (0, ""), out
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["constraints.txt", "pyproject.toml"])
def test_a_missing_file_is_named(module: types.ModuleType, name: str, capsys) -> None:
    (module.ROOT / name).unlink()
    assert module.main([]) == 1
    assert f"{name} is missing, so this folder is not whole" in one_line(capsys.readouterr().err)


@pytest.mark.parametrize("wrong", ["a file", "a dangling link"])
def test_something_else_called_venv(tmp_path: Path, wrong: str) -> None:
    clone = make_clone(tmp_path / "clone")
    (clone / ".venv").touch() if wrong == "a file" else (clone / ".venv").symlink_to("nowhere")
    code, _, err = set_up(clone)
    assert code == 1 and f"Remove {clone / '.venv'} and run the same command again" in one_line(err)


def test_trouble_that_nobody_foresaw_ends_with_pips_last_word(
    module: types.ModuleType, monkeypatch
) -> None:
    monkeypatch.setattr(
        module, "run", lambda command, show=False: (1, "ERROR: first\nERROR: the moon is full\n")
    )
    module.VENV.mkdir()
    with pytest.raises(
        module.Stop, match=r"pip failed \(the moon is full\); all that it said is in .*install.log"
    ):
        module.pip("-e", ".")


MAKEFILE = INSTALL.parents[1] / "Makefile"


def make(python: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    clone = make_clone(tmp_path / "a clone")
    shutil.copy(MAKEFILE, clone)
    return subprocess.run(
        ["make", "lab", f"PYTHON={python}"], cwd=clone, capture_output=True, text=True
    )


@pytest.mark.skipif(not shutil.which("make"), reason="no make on this machine")
@pytest.mark.parametrize("python", ["nosuch", "false", "cat"])
def test_make_with_no_python_says_what_to_do(python: str, tmp_path: Path) -> None:
    done = make(python, tmp_path)
    assert done.returncode != 0
    said, stop = done.stderr.strip().splitlines()
    assert (
        said.startswith(f"amp_course: {python} does not run here as a Python 3")
        and "make lab PYTHON=python3.12" in said
    )
    assert re.match(r"make(\[\d+\])?: \*\*\*", stop)  # a number where make runs the tests


def test_a_full_disk_is_seen_before_it_begins(
    module: types.ModuleType, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=3e8))
    assert module.main([]) == 1
    assert "0.3 GB are free in " in one_line(capsys.readouterr().err)
    assert not module.VENV.exists()


def test_a_python_without_ensurepip(module: types.ModuleType, monkeypatch, capsys) -> None:
    monkeypatch.setattr(
        module.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else name
    )
    assert module.main([]) == 1
    line = one_line(capsys.readouterr().err)
    assert f"sudo apt install python3.{sys.version_info[1]}-venv" in line


def test_another_build_of_torch_replaces_the_one_that_is_there(
    module: types.ModuleType, monkeypatch
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(
        module, "run", lambda command, show=False: (calls.append(command), (0, ""))[1]
    )
    module.VENV.mkdir()
    options = {"extra": "", "torch_index": "https://example.org/cpu"}
    module.install(types.SimpleNamespace(**options))
    torch, course = (call[call.index("install") :] for call in calls[-2:])
    assert torch[-4:] == [
        "--index-url",
        "https://example.org/cpu",
        "torch==2.13.0",
        "--force-reinstall",
    ]
    assert course[-2:] == ["-e", "."]
    module.install(
        types.SimpleNamespace(extra="test", torch_index="")
    )  # remembers the index; replaces nothing
    torch, course = (call[call.index("install") :] for call in calls[-2:])
    assert torch[-3:] == ["--index-url", "https://example.org/cpu", "torch==2.13.0"]
    assert course[-2:] == ["-e", ".[test]"]


def wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            path.unlink()
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} did not come")
