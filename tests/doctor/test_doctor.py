"""The doctor on steps, its page, its command, and its hands off files. Whole scripts are in test_doctor_scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course import cli
from amp_course.debugging.clinic.ward import KNOWN, Round
from amp_course.diagnosis.faults import ADVICE, FAULTS, finding, in_order, without_consequences
from amp_course.diagnosis.rules.training import check_lost
from amp_course.doctor import Diagnosis, doctor, examine_script
from amp_course.doctor.files import put_back
from amp_course.kit.errors import CourseError
from amp_course.watching.twins import Twin

Step = Callable[..., object]


class Training:
    """A small training, and steps for it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.batches = [(torch.randn(8, 8), torch.randint(0, 4, (8,))) for _ in range(4)]

    def step(self, x: torch.Tensor, y: torch.Tensor, clip: bool = False, factor: float = 1.0) -> torch.Tensor:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(self.model(x * factor) * factor, y)
        self.scaler.scale(loss).backward()
        if clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.01)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def examine(self, step: Step, timing: float = 0.0) -> Diagnosis:
        return doctor(self.model, step, self.batches, self.optimizer, self.scaler, steps=4, timing=timing)


def state(training: Training) -> list[torch.Tensor]:
    return [*training.model.state_dict().values(), torch.tensor(training.scaler.get_scale()), torch.get_rng_state()]


def test_a_sound_step_is_clean_and_everything_is_put_back() -> None:
    training = Training()
    before = [one.clone() for one in state(training)]
    found = training.examine(training.step, timing=0.5)
    told = dict(found.facts)
    assert "torch " + torch.__version__ in told["machine"] and "times as long as in fp32" in told["fp16 here"]
    assert ("bf16 here" not in told and " ms: " in told["a step takes"]) or " µs: " in told["a step takes"]
    assert found and found.exit_code == 0 and not found.findings, found
    assert all(torch.equal(a, b) for a, b in zip(before, state(training), strict=True))
    assert "100% in float16" in str(found)


def test_a_step_that_clips_scaled_gradients() -> None:
    training = Training()
    found = training.examine(lambda x, y: training.step(x, y, clip=True))
    assert found.names == ("clipped-while-scaled",) and found.exit_code == 1


def test_a_step_that_overflows_names_the_op() -> None:
    training = Training()
    found = training.examine(lambda x, y: training.step(x, y, factor=1e6))
    assert found.names[0] == "beyond-fp16", found
    assert "not-finite" not in found.names and "_to_copy" in str(found)


def test_a_nan_in_the_data() -> None:
    training = Training()
    training.batches = [(x.fill_(float("nan")), y) for x, y in training.batches]
    assert "nan-in-data" in training.examine(training.step).names


def test_weights_that_were_lost_before() -> None:
    training = Training()
    nn.init.constant_(training.model[0].weight, float("nan"))
    assert "weights-not-finite" in training.examine(training.step).names


def test_bad_input() -> None:
    training = Training()
    with pytest.raises(TypeError, match="train_step has to be the function"):
        doctor(training.model, None, training.batches, training.optimizer)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps is 0"):
        doctor(training.model, training.step, training.batches, training.optimizer, steps=0)
    assert "empty" in doctor(training.model, training.step, [], training.optimizer).problem


def lost(dtype: torch.dtype, lr: float, make: type[torch.optim.Optimizer] = torch.optim.SGD) -> list[str]:
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


# ---- the page ----


def test_every_fault_can_be_told() -> None:
    for name in [*FAULTS, *ADVICE]:
        one = finding(name, loss=1.5)
        assert str(one).startswith(f"{name}: ") and not one.cause.endswith(".") and one.section


def test_findings_come_in_order_of_harm_and_without_consequences() -> None:
    found = [
        finding(name) for name in ("scale-keeps-falling", "host-waits", "never-cleared", "masked-row", "never-cleared")
    ]
    assert [one.name for one in in_order(found)] == ["masked-row", "never-cleared", "scale-keeps-falling", "host-waits"]
    assert "scale-keeps-falling" not in [one.name for one in without_consequences(in_order(found))]


def test_the_page_as_text_html_and_json() -> None:
    one = Diagnosis("t.py <b>", (finding("masked-row", step=3),), (finding("host-waits"),), (("updates", "7"),), ("Odd.",),
                    (("gradient", "no loss"),), "", ("last line",))  # fmt: skip
    assert all(
        words in str(one)
        for words in ("1 fault found", "1. masked-row", "Advice", "updates", "Odd.", "no loss", "last line")
    )
    assert max(map(len, str(one).splitlines())) <= 100
    page = one.to_html()
    assert page.startswith("<!doctype html>") and "t.py &lt;b&gt;" in page
    data = json.loads(one.to_json())
    assert data["state"] == "fault" and data["faults"][0]["name"] == "masked-row" and data["seen"] == {"updates": "7"}


def test_exit_codes() -> None:
    assert Diagnosis("s").exit_code == 0 and bool(Diagnosis("s"))
    assert Diagnosis("s", problem="no").exit_code == 2 and not Diagnosis("s", problem="no")
    assert Diagnosis("s", (finding("diverges"),), problem="no").exit_code == 1


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
    return {str(path.relative_to(folder)): path.read_text() if path.is_file() else "" for path in folder.rglob("*")}


def test_what_a_script_writes_is_put_back(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("model.pt", "log.txt", "gone.txt"):
        (folder / name).write_text(f"old {name}")
    (folder / "tree" / "deep").mkdir(parents=True)
    (folder / "tree" / "deep" / "leaf.txt").write_text("old leaf")
    before = contents(folder)
    code = f"from pathlib import Path\nfrom amp_course.doctor.files import Journal\n" \
           f"Journal(Path({str(tmp_path)!r}), [Path({str(folder)!r})]).install()\n{WRITER}"  # fmt: skip
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    assert (folder / "renamed.pt").exists() and not (folder / "gone.txt").exists()
    changed, made = put_back(tmp_path)
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
    loss = model(torch.ones(2, 4)).square().sum() {more}
    loss.backward()
    optimizer.step()
    {clear}
"""


def script(folder: Path, more: str = "", clear: str = "optimizer.zero_grad()") -> str:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(TRAINS.format(more=more, clear=clear)))
    return str(path)


@pytest.mark.slow
def test_the_command_prints_the_page_and_writes_html(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert cli.main(["doctor", "--html", str(page), script(tmp_path, clear="pass"), "6"]) == 1
    out = capsys.readouterr().out
    assert "never-cleared" in out and "its own output" not in out and "train.py 6" in out
    assert "never-cleared" in page.read_text("utf-8")
    assert cli.main(["doctor", "--html", str(page), script(tmp_path), "6"]) == 2
    assert "already exists" in capsys.readouterr().err


@pytest.mark.slow
def test_json_alone_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json", "--steps", "3", script(tmp_path), "9"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["state"] == "clean" and data["seen"]["updates"].startswith("3")


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
    assert found.exit_code == 2 and "In 8 seconds" in found.problem
    running = subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert mark not in running and [*tmp_path.iterdir()] == [path]


def test_the_ward_round_shows_its_causes_on_a_click_alone() -> None:
    ward = Round({"scaled_clip": Diagnosis("scaled_clip.py"), "zero_amax": Diagnosis("zero_amax.py")})
    page = ward._repr_html_()
    open_part, folded = page.split("<details>")
    assert "0 of 2 causes named" in open_part and "</summary>" in folded
    for name in ward.diagnoses:
        assert KNOWN[name] not in open_part and KNOWN[name] in folded
