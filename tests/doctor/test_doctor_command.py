"""The doctor's command: what it prints and returns, files that it puts back, how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from amp_course import cli
from amp_course.doctor import examine_script, inside, running
from amp_course.doctor.files import put_back
from amp_course.doctor.journal import Journal
from amp_course.kit.errors import CourseError

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


def test_two_threads_that_write_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, first = tmp_path / "kept", tmp_path / "work" / "first"
    first.parent.mkdir()
    first.write_text("old")
    journal = Journal(kept, [first.parent])
    journal.folder.mkdir(parents=True)
    copying, saved, copy = Event(), Event(), shutil.copy2

    def slow_copy(*paths: Any) -> Any:
        copying.set()
        assert saved.wait(30)
        return copy(*paths)

    monkeypatch.setattr(shutil, "copy2", slow_copy)
    thread = Thread(target=journal.keep, args=(first,))
    thread.start()
    assert copying.wait(30)
    journal.keep(first.parent / "second")
    saved.set()
    thread.join()
    (first.parent / "second").write_text("new")
    first.unlink()
    put_back(kept)
    assert contents(first.parent) == {"first": "old"}


SAVES = """
import torch
from torch import nn
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for step in range(30):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.randn(8, 4)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 9:
        torch.save(scaler.state_dict(), "model.pt")
        torch.save(scaler.state_dict(), "new.pt")
        open("log.txt", "a").write("more")
"""


def test_files_are_put_back_after_a_second_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model.pt", "log.txt"):
        (tmp_path / name).write_text(f"old {name}")
    (tmp_path / "train.py").write_text(SAVES)
    before = contents(tmp_path)
    report = examine_script(tmp_path / "train.py")
    assert "overflow" in report.checked  # which only the second run can show
    assert contents(tmp_path) == before


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


def test_the_time_that_imports_take_is_part_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def end(*arguments: Any, **_: Any) -> None:
        seen.append(arguments)
        raise SystemExit

    monkeypatch.setattr(running, "Child", end)
    monkeypatch.setattr(inside, "begin", end)
    with pytest.raises(SystemExit):
        running.run_script(["train.py"], 9, 500.0, tmp_path)
    clock = time.time() + 300
    monkeypatch.setattr(time, "time", lambda: clock)  # Python starts, and torch is imported
    with pytest.raises(SystemExit):
        inside.main(seen[0][0][2:])
    assert 100 < seen[1][1] <= 200


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


def test_a_process_may_finish_writing_its_result_when_the_first_has_ended(tmp_path: Path) -> None:
    part = tmp_path / "result-1.part"
    path = tmp_path / "starter.py"
    path.write_text(
        "import subprocess, sys\nopen(sys.argv[1], 'w').close()\n"
        "subprocess.Popen(['sh', '-c', 'sleep 2; echo seen > $0; mv $0 $1', *sys.argv[1:]])\n"
    )
    done = part.with_suffix(".json")
    running.run_script([str(path), str(part), str(done)], 9, 60.0, tmp_path)
    assert done.read_text() == "seen\n"


@pytest.mark.slow
def test_a_long_start_takes_no_updates_away(tmp_path: Path) -> None:
    path = tmp_path / "late.py"
    path.write_text(
        "import time\nimport torch\nfrom amp_course.doctor import examination\n"
        "examination._PATIENCE = 10.0  # seconds of training\ntime.sleep(11)\n"
        "net = torch.nn.Linear(2, 1)\nsgd = torch.optim.SGD(net.parameters(), 0.1)\n"
        "for _ in range(99):\n    net(torch.ones(1, 2)).sum().backward()\n    sgd.step()\n"
        "    sgd.zero_grad()\n"
    )
    found = examine_script(path, steps=40)
    assert dict(found.facts)["updates"].startswith("40 ")
