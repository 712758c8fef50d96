"""The tools in an environment that has torch, numpy and what these need,
and nothing of the course's other packages.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.notebooks.test_fresh_environment import copy_of_the_course

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TRAINING = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(30)]


def step(x, y):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    return loss


if __name__ == "__main__":
    for batch in batches:
        step(*batch)
"""
CLIPS = next(
    number for number, line in enumerate(TRAINING.splitlines(), 1) if "clip_grad_norm_" in line
)
TOOLS = {  # how each is called, and a part of what it says
    "audit": (
        "from amp_course.audit import audit as tool",
        "tool(step, model=model, optimizer=optimizer, batches=batches, scaler=scaler, "
        "max_norm=0.1)",
        "clipped-while-scaled",
    ),
    "doctor": (
        "from amp_course.doctor import doctor as tool",
        "tool(model, step, batches, optimizer, scaler, timing=0.2)",
        "clipped-while-scaled",
    ),
    "trace": (
        "from amp_course.autocast import trace as tool",
        "tool(model, batches[0][0], dtype=torch.float16)",
        "casts inserted",
    ),
    "explain": (
        "from amp_course.speed.explain import explain as tool",
        "tool(step, batches, seconds=0.2)",
        "A step t",
    ),
    "first_nonfinite": (
        "from amp_course.debugging.nonfinite import first_nonfinite as tool",
        "tool(step, [(batches[0][0] * 1e6, batches[0][1])], model=model)",
        "It reached the GradScaler",
    ),
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Its folder, with the course installed from a copy by `pip install --no-deps`."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for name in needed("torch", "numpy"):
        for file in importlib.metadata.files(name) or []:
            source = Path(str(file.locate()))
            if source.is_file() and ".." not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                (packages / file).unlink(missing_ok=True)
                (packages / file).symlink_to(source)
    copy = copy_of_the_course(folder / "course")
    install = ["-m", "pip", "install", "--no-deps", "--no-build-isolation", str(copy)]
    subprocess.run([folder / "bin" / "python", *install], check=True, capture_output=True)
    (folder / "work").mkdir()
    (folder / "work" / "train.py").write_text(TRAINING, "utf-8")
    yield folder


def needed(*names: str) -> set[str]:
    """Return packages with all that they require on this system."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # of another system, or of CUDA
            continue
        if name not in found:
            found.add(name)
            waiting += [re.match(r"[\w.-]+", one)[0] for one in requires if "extra ==" not in one]  # type: ignore[index]
    return found


def call(bare: Path, *command: str) -> tuple[int, str]:
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "AMP_COURSE", "PYTHON"))
    }
    ran = subprocess.run(
        [bare / "bin" / command[0], *command[1:]],
        cwd=bare / "work",
        env=own,
        capture_output=True,
        text=True,
    )
    return ran.returncode, ran.stdout + ran.stderr


def test_it_has_no_other_package(bare):
    code, printed = call(bare, "python", "-c", "import matplotlib")
    assert code == 1 and "No module named 'matplotlib'" in printed


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool(bare, tool):
    given, called, words = TOOLS[tool]
    code = (
        f"from train import *\n{given}\nfound = {called}\nprint(found, getattr(found, "
        f"'_repr_html_', str)())"
    )
    returned, printed = call(bare, "python", "-c", code)
    assert returned == 0 and words in printed, printed


def test_the_command_that_examines_a_script(bare):
    code, printed = call(bare, "amp-course", "doctor", "--html", "page.html", "train.py")
    assert (
        code == 1 and "clipped-while-scaled" in printed and f"line {CLIPS} of train.py" in printed
    ), printed
    assert "clipped-while-scaled" in (bare / "work" / "page.html").read_text("utf-8")


def test_the_command_that_describes_the_machine(bare):
    code, printed = call(bare, "amp-course", "report")
    assert code == 0 and "bf16" in printed, printed


def test_what_is_missing_is_one_sentence(bare):
    code, printed = call(bare, "amp-course", "bench", "--quick", "--json", "-")
    sentence = (
        "amp-course: this needs the package tqdm, which is not installed here: type `python "
        "-m pip install tqdm`."
    )
    assert (code, printed.splitlines()[-1]) == (2, sentence)
