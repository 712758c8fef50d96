"""The doctor on steps, its page, its command, and its hands off files.
Whole scripts are in test_doctor_scripts.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course import cli
from amp_course.debugging.clinic.examining import KNOWN, Round
from amp_course.diagnosis.report import Report
from amp_course.diagnosis.rules.training import check_lost
from amp_course.doctor import doctor, examine_script
from amp_course.doctor.files import put_back
from amp_course.doctor.machine import _number
from amp_course.doctor.reasons import reason
from amp_course.doctor.running import Outcome, last_lines
from amp_course.kit.errors import CourseError
from amp_course.watching.fp32_shadow import Twin


class Training:
    """A small training, and steps for it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.batches = [(torch.randn(8, 8), torch.randint(0, 4, (8,))) for _ in range(4)]

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def examine(self, timing: float = 0.0) -> Report:
        given = self.model, self.step, self.batches, self.optimizer, self.scaler
        return doctor(*given, steps=4, timing=timing)


def state(training: Training) -> list[torch.Tensor]:
    return [
        *training.model.state_dict().values(),
        torch.tensor(training.scaler.get_scale()),
        torch.get_rng_state(),
    ]


def test_a_sound_step_is_clean_and_everything_is_put_back() -> None:
    training = Training()
    before = [one.clone() for one in state(training)]
    found = training.examine(timing=0.2)
    told = dict(found.facts)
    assert "torch " + torch.__version__ in told["machine"]
    assert "times as long as in fp32" in told["fp16 here"] or "busy" in told["fp16 here"]
    assert "bf16 here" not in told and re.search(" [mµ]s: ", told["a step takes"])
    assert found and found.exit_code == 0 and not found.findings, found
    assert all(torch.equal(a, b) for a, b in zip(before, state(training), strict=True))
    assert "100% in float16" in str(found)


def data_are_nan(training: Training) -> None:
    training.batches = [(x.fill_(float("nan")), y) for x, y in training.batches]


def weights_are_nan(training: Training) -> None:
    nn.init.constant_(training.model[0].weight, float("nan"))


def inputs_are_large(training: Training) -> None:
    training.batches = [(x * 1e6, y) for x, y in training.batches]


@pytest.mark.parametrize(
    ("change", "name", "op"),
    [
        (data_are_nan, "nan-in-data", ""),
        (weights_are_nan, "weights-not-finite", ""),
        (inputs_are_large, "beyond-fp16", "_to_copy"),
    ],
)
def test_what_is_not_finite_is_named_by_where_it_comes_from(
    change: Callable[[Training], None], name: str, op: str
) -> None:
    training = Training()
    change(training)
    found = training.examine()
    assert name in found.names and op in str(found), found
    assert "not-finite" not in found.names


def test_bad_input() -> None:
    training = Training()
    with pytest.raises(TypeError, match="train_step has to be the function"):
        doctor(training.model, None, training.batches, training.optimizer)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps is 0"):
        doctor(training.model, training.step, training.batches, training.optimizer, steps=0)
    assert "empty" in doctor(training.model, training.step, [], training.optimizer).problem


def lost(
    dtype: torch.dtype, lr: float, make: type[torch.optim.Optimizer] = torch.optim.SGD
) -> list[str]:
    """Names of what a twin finds after six steps with gradients of 1, for weights of 1."""
    weight = nn.Parameter(torch.ones(16, dtype=dtype))
    optimizer = make([weight], lr=lr)  # type: ignore[call-arg]
    twin = Twin(optimizer)
    for _ in range(6):
        weight.grad = torch.ones_like(weight)
        twin.before()
        optimizer.step()
        twin.after()
    return [one.name for one in check_lost([twin.lost()])]


def test_an_update_below_half_the_distance_is_lost_and_one_above_is_not() -> None:
    below = torch.finfo(torch.bfloat16).eps / 4  # below 1, neighbours are eps / 2 apart
    assert lost(torch.bfloat16, 0.9 * below) == ["updates-vanish"]
    assert lost(torch.bfloat16, 1.1 * below) == []
    assert lost(torch.float16, 1e-5) == ["updates-vanish"] and lost(torch.float16, 1e-2) == []


def test_a_schedule_does_not_step_the_original_by_its_twin() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    twin = Twin(optimizer)
    weight.grad = torch.ones_like(weight)
    twin.before()
    twin.after()
    assert torch.equal(weight, torch.ones(2, dtype=torch.bfloat16))


# ---- files ----

WRITER = """
import os, shutil, torch
from pathlib import Path
torch.save({"new": 1}, "model.pt")
Path("log.txt").open("a").write("more")
os.remove("gone.txt")
os.makedirs("runs/today")
Path("runs/today/new.csv").write_text("1")
os.replace("model.pt", "renamed.pt")
shutil.rmtree("tree")
"""


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else ""
        for path in folder.rglob("*")
    }


def test_what_a_script_writes_is_put_back(tmp_path: Path) -> None:
    folder, kept = tmp_path / "work", tmp_path / "kept"
    folder.mkdir()
    for name in ("model.pt", "log.txt", "gone.txt"):
        (folder / name).write_text(f"old {name}")
    (folder / "tree" / "deep").mkdir(parents=True)
    (folder / "tree" / "deep" / "leaf.txt").write_text("old leaf")
    before = contents(folder)
    code = (
        f"from pathlib import Path\nfrom amp_course.doctor.journal import Journal\n"
        f"Journal(Path({str(kept)!r}), [Path({str(tmp_path)!r})]).install()\n{WRITER}"
        f"open({str(kept / 'progress')!r}, 'w').close()"  # the doctor's own
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    assert (folder / "renamed.pt").exists() and not (folder / "gone.txt").exists()
    changed, made = put_back(kept)
    assert contents(folder) == before
    assert {Path(one).name for one in changed} == {"model.pt", "log.txt", "gone.txt", "leaf.txt"}
    assert {Path(one).name for one in made} == {"renamed.pt", "new.csv"}


# ---- the command ----

TRAINS = """
import sys, torch
from torch import nn
print("its own output")
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(int(sys.argv[1])):
    loss = model(torch.ones(2, 4)).square().sum()
    loss.backward()
    optimizer.step()
    {clear}
"""


def script(folder: Path, clear: str = "optimizer.zero_grad()") -> str:
    path = folder / "train.py"
    path.write_text(TRAINS.format(clear=clear))
    return str(path)


def command(path: Path, *options: str, **streams: Any) -> subprocess.Popen[Any]:
    """Start the command on a script, in a process of its own."""
    words = [sys.executable, "-m", "amp_course", "doctor", *options, str(path)]
    return subprocess.Popen(words, stderr=streams.pop("stderr", subprocess.PIPE), **streams)


@pytest.mark.slow
def test_the_command_prints_the_page_and_writes_html(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert cli.main(["doctor", "--html", str(page), script(tmp_path, clear="pass"), "6"]) == 1
    out = capsys.readouterr().out
    assert "never-cleared" in out and "its own output" not in out and "arguments" in out
    assert "never-cleared" in page.read_text("utf-8")
    assert cli.main(["doctor", "--html", str(page), script(tmp_path), "6"]) == 2
    assert "already exists" in capsys.readouterr().err
    assert cli.main(["doctor", "--json", "--steps", "7", script(tmp_path), "9"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["state"] == "clean" and data["seen"]["updates"].startswith("7")


@pytest.mark.slow
def test_a_module_gets_its_own_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package").mkdir()
    Path(script(tmp_path)).rename(tmp_path / "package" / "train.py")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["doctor", "-m", "package.train", "9", "--json", "-m", "--", "-1"]) == 0
    out = capsys.readouterr().out
    assert "No fault found in -m package.train" in out and "9 --json -m -- -1" in out
    assert cli.main(["doctor", "-m", "package.no_such", "9"]) == 2
    assert "No module named" in capsys.readouterr().out


LOOP = """
import pathlib, time, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(5000):
    model(torch.ones(4, 2)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
    if step == 40:
        pathlib.Path(__file__).with_name("far").touch()
"""
ASKS = """
import os, shutil, sys
print(os.isatty(0), os.get_terminal_size(), os.popen("stty size").read().split())
try:
    input()
except EOFError:
    print("nobody answers")
sys.exit("enough")
"""


@pytest.mark.slow
def test_a_script_has_a_terminal_where_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "asks.py"
    path.write_text(ASKS)
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (33, 77))
    process = command(path, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    said = process.communicate()[0].decode()
    os.close(ours)
    assert (
        "True os.terminal_size(columns=77, lines=33) ['33', '77']" in said
        and "nobody answers" in said
    )
    assert process.returncode == 2 and "exit code 1" in said


@pytest.mark.slow
def test_an_interrupt_ends_all_and_puts_files_back(tmp_path: Path) -> None:
    path, made = tmp_path / "endless.py", tmp_path / "made.txt"
    path.write_text(
        f"import pathlib, time\npathlib.Path({str(made)!r}).write_text('new')\ntime.sleep(999)\n"
    )
    process = command(path)
    while not made.exists():
        time.sleep(0.05)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    said = process.communicate()[1].decode()
    assert said.splitlines() == [
        "Interrupted: the script is ended, and the files that it changed are as they were before."
    ]
    assert process.returncode == 130 and [*tmp_path.iterdir()] == [path]


@pytest.mark.slow
def test_an_interrupt_shows_what_was_seen_until_then(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOOP)
    process = command(path, "--steps", "5000", stdout=subprocess.PIPE, text=True)
    while not path.with_name("far").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, warned = process.communicate()
    assert process.returncode == 130 and "Interrupted" in warned
    assert "1. never-cleared" in said and "(interrupted)" in said


def test_the_last_lines_are_those_that_a_terminal_shows() -> None:
    output = b"one\r\n  \x1b[31mtwo\x1b[0m \n 1%|\r 99%|#\r100%|##|\r\n\xff\n" + b"\n" * 3
    assert last_lines(output) == ("one", "  two", "100%|##|", "\ufffd")
    assert len(last_lines(b"line\n" * 99)) == 12


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({}, "made no optimizer, and ran no backward pass"),
        ({"passes": 1}, "It ran 1 backward pass, and made no"),
        ({"by_hand": 3, "passes": 2}, "2 backward passes and called `torch.autograd.grad` 3 times"),
        ({"optimizers": ["SGD", "SGD"], "passes": 9}, "made 2 SGD, and ran 9 backward passes, but"),
        ({"programs": ["python a.py"]}, "started other programs"),
        ({"ended": "time"}, "In 5 seconds it took no step"),
        ({"ended": "exit"}, "ended on its own with exit code 3"),
        ({"error": "ValueError: no"}, "before an optimizer stepped: ValueError: no"),
    ],
)
def test_why_there_is_nothing_to_judge(seen: dict[str, Any], words: str) -> None:
    result = {"ended": "end", "error": "", "optimizers": [], "passes": 0, "by_hand": 0}
    assert words in reason([result | {"programs": []} | seen], Outcome(3, (), late=False), 5)


def test_ratios_are_rounded_so_that_they_hold() -> None:
    told = [_number(times) for times in (166.0, 31.0, 7.0, 1.234, 0.43)]
    assert told == ["over 100", "over 20", "over 5", "about 1", "about 0.4"]


@pytest.mark.slow
def test_files_that_cannot_be_examined(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="does not exist"):
        examine_script(tmp_path / "none.py")
    with pytest.raises(CourseError, match="is a folder"):
        examine_script(tmp_path)
    (tmp_path / "a.ipynb").write_text("{}")
    with pytest.raises(CourseError, match="In a notebook, call"):
        examine_script(tmp_path / "a.ipynb")
    broken = tmp_path / "broken.py"
    broken.write_text("for\n")
    found = examine_script(broken)
    assert found.exit_code == 2 and "SyntaxError" in found.problem


@pytest.mark.slow
def test_no_process_is_left_and_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "sleeper.py"
    mark = f"sleeper-{os.getpid()}"
    sleeps = f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)', '{mark}'])"
    path.write_text(f"import subprocess, sys, time\n{sleeps}\ntime.sleep(99)\n")
    found = examine_script(path, seconds=8)
    assert found.exit_code == 2 and "8 seconds it" in found.problem
    running = subprocess.check_output(["ps", "ax", "-o", "args"], text=True)
    assert mark not in running and [*tmp_path.iterdir()] == [path]


def test_the_ward_round_shows_its_causes_on_a_click_alone() -> None:
    ward = Round({name: Report(subject=f"{name}.py") for name in ("scaled_clip", "zero_amax")})
    page = ward._repr_html_()
    open_part, folded = page.split("<details>")
    assert "0 of 2 causes named" in open_part and "</summary>" in folded
    for name in ward.diagnoses:
        assert KNOWN[name] not in open_part and KNOWN[name] in folded
