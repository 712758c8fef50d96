"""What the set-up says of trouble, and what it passes to pip."""

import ast
import sys
import types
from pathlib import Path

import pytest

from tests.small_clone import INSTALL, make_clone, one_line


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """install.py itself, taken to lie in an empty folder."""
    clone = make_clone(tmp_path / "clone")
    monkeypatch.syspath_prepend(str(clone / "tools"))
    found = types.ModuleType("install")
    found.__file__ = str(clone / "tools" / "install.py")
    exec(compile(INSTALL.read_text(), found.__file__, "exec"), found.__dict__)
    return found


@pytest.mark.parametrize("name", ["install.py", "trouble.py"])
def test_an_old_python_can_read_it(name: str) -> None:
    ast.parse(INSTALL.with_name(name).read_text(), feature_version=(3, 6))


def test_the_same_line_without_an_old_python(module: types.ModuleType, monkeypatch, capsys) -> None:
    monkeypatch.setattr(module.sys, "version_info", (3, 8, 10, "final", 0))
    assert module.main([]) == 1
    line = one_line(capsys.readouterr().err)
    assert "amp_course needs Python 3.11 or newer; this is 3.8.10 at " in line


@pytest.mark.parametrize(
    "output, said",
    [
        ("ERROR: OSError: [Errno 28] No space left on device", "the disk is full"),
        ("OSError: [Errno 122] Disk quota exceeded", "the disk is full"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...", "PIP_CERT"),
        (
            "WARNING: Retrying (Retry(total=0, connect=None)) after ...\nERROR: No matching "
            "distribution",
            "be reached",
        ),
        ("ERROR: HTTPSConnectionPool: Max retries exceeded with url", "be reached"),
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


@pytest.mark.parametrize("name", ["constraints.txt", "pyproject.toml"])
def test_a_missing_file_is_named(module: types.ModuleType, name: str, capsys) -> None:
    (module.ROOT / name).unlink()
    assert module.main([]) == 1
    assert f"{name} is missing, so this folder is not whole" in one_line(capsys.readouterr().err)


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
    index = "https://example.org/cpu"
    module.install(types.SimpleNamespace(extra="", torch_index=index))
    torch, course = (call[call.index("install") :] for call in calls[-2:])
    assert torch[-4:] == ["--index-url", index, "torch==2.13.0", "--force-reinstall"]
    assert course[-2:] == ["-e", "."]
    # Remembers the index; replaces nothing
    module.install(types.SimpleNamespace(extra="test", torch_index=""))
    torch, course = (call[call.index("install") :] for call in calls[-2:])
    assert torch[-3:] == ["--index-url", index, "torch==2.13.0"]
    assert course[-2:] == ["-e", ".[test]"]
