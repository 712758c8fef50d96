"""What is installed: the requirements agree wherever they stand,
and importing the package costs nothing.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import amp_course

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA_NAMES = {"pytorch": "torch"}


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in found}


def direct_requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    return [
        Requirement(line) for line in [*PROJECT["dependencies"], *extras["test"], *extras["peers"]]
    ]


def conda_requirements() -> dict[str, str]:
    text = (ROOT / "environment.yml").read_text()
    lines = re.findall(r"^  - ([a-z][\w-]*)([<>=][^\s#]*)?(?:\s+#.*)?$", text, re.MULTILINE)
    return {
        CONDA_NAMES.get(name, name): version
        for name, version in lines
        if name not in ("conda-forge", "nodefaults")
    }


def newest_tested_python() -> str:
    cells = re.findall(r'Cell\("[\w-]+", "(\d+\.\d+)"', (ROOT / "tools" / "matrix.py").read_text())
    return max(cells, key=Version)


def test_the_workflow_runs_each_row_of_the_matrix_with_its_python() -> None:
    matrix = (ROOT / "tools" / "matrix.py").read_text()
    cells = dict(re.findall(r'Cell\("([\w-]+)", "(\d+\.\d+)', matrix))
    workflow = (ROOT / ".github" / "workflows" / "machines.yml").read_text()
    rows = dict(re.findall(r'cell: ([\w-]+), python: "([\d.]+)"', workflow))
    assert "container: debian:12" in workflow  # which has 3.11.2
    assert {**rows, **dict.fromkeys(re.findall(r"--only (\w+)\"", workflow), "3.11")} == cells


def test_conda_and_pip_ask_for_the_same() -> None:
    pip = {
        requirement.name: set(requirement.specifier)
        for requirement in map(Requirement, PROJECT["dependencies"])
    }
    major, minor = map(int, newest_tested_python().split("."))
    pip["python"] = set(SpecifierSet(f"{PROJECT['requires-python']},<{major}.{minor + 1}"))
    conda = {
        name: set(Requirement(name + version).specifier)
        for name, version in conda_requirements().items()
    }
    assert conda.pop("pip") == set()
    assert conda == pip
    assert "- -e ." in (ROOT / "environment.yml").read_text()


@pytest.mark.parametrize("requirement", direct_requirements(), ids=str)
def test_each_direct_requirement_is_pinned_to_a_version_it_allows(requirement: Requirement) -> None:
    assert pins()[canonicalize_name(requirement.name)] in requirement.specifier


def test_no_pin_names_one_build() -> None:
    assert pins()["torch"] == Version("2.13.0")
    assert [name for name, version in pins().items() if version.local] == []


LOWEST_PYTHON = "3.11.0"  # any 3.11 is promised: Debian 12 has 3.11.2


def test_each_pin_allows_the_lowest_python_and_the_newest() -> None:
    """What a package asks of Python is in its own metadata,
    which is here for every pin that is installed.
    """
    wanted = pins()
    found = {
        canonicalize_name(each.name): SpecifierSet(each.metadata.get("Requires-Python") or "")
        for each in distributions()
        if wanted.get(canonicalize_name(each.name)) == Version(Version(each.version).public)
    }
    assert len(found) > 100
    refused = {
        name: str(range_)
        for name, range_ in found.items()
        for python in (LOWEST_PYTHON, "3.12.0", "3.13.0")
        if python not in range_
    }
    assert refused == {}


def test_the_pins_stand_in_order_once_each() -> None:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    names = [canonicalize_name(line.partition("==")[0]) for line in lines]
    assert names == sorted(set(names))


def modules_after(code: str) -> set[str]:
    command = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
    return set(
        subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    )


def test_importing_the_package_loads_nothing_else() -> None:
    assert modules_after("import amp_course") - modules_after("pass") == {"amp_course"}


@pytest.mark.parametrize(
    "module", ["amp_course.cli", "amp_course.course", "amp_course.work", "amp_course.lab"]
)
def test_the_command_is_ready_without_torch_or_jupyter(module: str) -> None:
    loaded = {name.partition(".")[0] for name in modules_after(f"import {module}")}
    assert not loaded & {
        "torch",
        "numpy",
        "matplotlib",
        "ipywidgets",
        "IPython",
        "sklearn",
        "jupyterlab",
        "tornado",
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str]]:
    """The files of the source distribution and of the wheel, made from a copy of the course."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("built")
    unwanted = shutil.ignore_patterns(".*", "build", "my_work", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder / "course", ignore=unwanted)
    make = "from setuptools import build_meta as b; b.build_sdist('..'); b.build_wheel('..')"
    command = [sys.executable, "-c", make]
    done = subprocess.run(command, cwd=folder / "course", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        return inside, set(archive.namelist())


@pytest.mark.slow
def test_the_source_distribution_holds_the_course_and_the_wheel_what_it_imports(
    built: tuple[set[str], set[str]],
) -> None:
    sdist, wheel = built
    for folder in ("notebooks", "exercises", "solutions"):
        books = {f"{folder}/{path.name}" for path in (ROOT / folder).glob("*.ipynb")}
        assert books and books <= sdist
    for name in (
        "Makefile",
        "constraints.txt",
        "CITATION.cff",
        "tests/conftest.py",
        "docs/tour.md",
    ):
        assert name in sdist
    here = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "amp_course").rglob("*")
        if path.suffix in (".py", ".toml", ".css", ".template", ".typed")
    }
    package = {name for name in wheel if not name.startswith("amp_course-")}
    assert here <= package and not any(name.startswith("tests") for name in package)


def test_the_version_is_the_same_wherever_it_stands() -> None:
    version = amp_course.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")
