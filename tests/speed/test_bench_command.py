"""`amp-course bench`: what it measures, writes and keeps after Ctrl-C."""

import errno
import getpass
import json
import os
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from amp_course import cli
from amp_course.kit import dtypes
from amp_course.kit.threads import one_thread
from amp_course.loop.recipe import AMP_BF16
from amp_course.loop.workloads import Workload
from amp_course.speed.bench import command, run
from amp_course.speed.bench.page import LeftOut
from amp_course.speed.bench.run import Bench
from tests.speed.bench_pages import CPU, GPU, TINY

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def measured():
    """A run that really measured, in a tiny size."""
    with one_thread(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(dtypes, "ROUNDS_SECONDS", 0.02)
        patch.setattr(dtypes, "SIZE_CPU", 64)
        bench = Bench(CPU, TINY)
        steps = []
        bench.run(lambda what, seconds: steps.append((what, seconds)))
    planned = pytest.approx(0.1 + 2 * 0.2)
    assert sum(seconds for _, seconds in steps) == planned and steps[-1][0] == "done"
    return vars(bench)


@pytest.fixture
def tiny(monkeypatch, tmp_path, measured):
    """An empty folder, and a command that finds there what was measured once;
    the reader's folder is my_work.
    """
    monkeypatch.setattr(Bench, "run", lambda self, tick: vars(self).update(measured))
    monkeypatch.setenv("AMP_COURSE_WORK", str(tmp_path / "my_work"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_it_measures_prints_and_saves_under_new_names(tiny, capsys):
    assert cli.main(["bench", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert "Recommendation\n" in out and "SimpleNet, width 8, batch 2\n" in out
    assert "launching one small op takes" in out
    assert err.count("written: ") == 2 and "%" not in err  # no bar where stderr is not a terminal
    assert cli.main(["bench", "--device", "cpu", "--out", "my_work"]) == 0
    data, second = sorted(Path("my_work").glob("*.json"), key=lambda path: len(path.name))
    assert re.fullmatch(r"bench-cpu-[a-z0-9-]+-\d{4}-\d\d-\d\d\.json", data.name)
    assert second.stem == data.stem + "-2"
    assert {path.stem for path in Path("my_work").glob("*.png")} == {data.stem, second.stem}


def test_the_json_says_what_was_measured_where_and_gives_nobody_away(tiny, capsys):
    assert cli.main(["bench", "--device", "cpu", "--json", "-"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)  # the standard output has nothing else
    assert not list(tiny.iterdir())
    assert found["schema"] == 1 and found["complete"] and found["recommendation"]["headline"]
    assert found["versions"]["torch"] == torch.__version__
    assert found["settings"]["keeps_freed_memory"] is False
    recipes = {one["recipe"] for one in found["results"] + found["left_out"]}
    assert recipes == {"amp_bf16", "amp_fp16"}
    assert found["measured"]["ridges"]["fp32"] > 0 and found["machine"]["device"] == "cpu"
    private = [str(ROOT), str(tiny), os.path.expanduser("~")]
    for one in (*private, socket.gethostname(), getpass.getuser()):
        assert one not in text


def test_an_existing_file_is_replaced_by_force_only(tiny, capsys):
    Path("a.json").write_text("mine")
    assert cli.main(["bench", "--device", "cpu", "--json", "a.json"]) == 2
    assert "a.json already exists: choose another name, or add" in capsys.readouterr().err
    assert Path("a.json").read_text() == "mine"
    assert cli.main(["bench", "--device", "cpu", "--json", "a.json", "--force"]) == 0
    assert json.loads(Path("a.json").read_text())["benchmark"] == "bench"
    assert [one.name for one in tiny.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    "options, meant",
    [
        ("--json folder", "folder is a folder or a device: name a file"),
        ("--json gone/a.json", "nothing can be written to gone: gone does not exist. Create the"),
        ("--png gone/a.png", "nothing can be written to gone: gone does not exist"),
        ("--out there", "nothing can be written to there: part of the path there is a file"),
        ("--json a --png ./a", "--json and --png both name a: give each a file of its own"),
    ],
)
def test_what_cannot_be_written_is_said_before_it_measures(
    tiny, monkeypatch, capsys, options, meant
):
    monkeypatch.setattr(Bench, "run", lambda *_: pytest.fail("it measured"))
    Path("there").touch()
    Path("folder").mkdir()
    assert cli.main(["bench", "--device", "cpu", *options.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("amp-course: ") and meant in line


@pytest.mark.parametrize(
    "options, meant",
    [
        ("--out . --json a.json", "--out chooses the names itself"),
        ("--compare a b --quick", "--compare reads two files and measures nothing"),
    ],
)
def test_options_that_contradict_each_other_are_refused(capsys, options, meant):
    with pytest.raises(SystemExit):
        cli.main(["bench", *options.split()])
    assert meant in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="has the device that this asks for in vain")
def test_a_device_that_is_not_there_is_one_line(capsys):
    assert cli.main(["bench", "--device", "cuda"]) == 2
    assert "torch finds no CUDA device here: leave --device out" in capsys.readouterr().err


def test_a_disk_that_fills_up_costs_the_file_not_the_result(tiny, monkeypatch, capsys):
    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(command, "write_text", full)
    assert cli.main(["bench", "--device", "cpu", "--json", "a.json"]) == 2
    out, err = capsys.readouterr()
    assert "the results could not be saved: the disk is full. Delete something from it" in err
    assert "Recommendation\n" in out and json.loads(out.splitlines()[-1])["benchmark"] == "bench"
    assert not list(tiny.iterdir())


def test_a_bar_is_shown_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with command._progress(60.0) as tick:
        tick("SimpleNet, AMP bf16", 30.0)
    assert "SimpleNet, AMP bf16" in capsys.readouterr().err


@pytest.mark.parametrize("early", [False, True])
def test_ctrl_c_keeps_what_is_done(tiny, measured, monkeypatch, capsys, early):
    def stop(self, tick):
        vars(self).update({} if early else measured | {"complete": False})
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "run", stop)
    assert cli.main(["bench", "--device", "cpu"]) == 130
    out, err = capsys.readouterr()
    assert "Interrupted.\n" in err
    if early:
        assert "Nothing had been measured yet, so nothing is written." in err
        assert not out and not list(tiny.rglob("*.*"))
        return
    assert "INCOMPLETE: this run was interrupted." in out
    assert "SimpleNet, width 8" in out or "too busy" in out
    (path,) = Path("my_work").glob("*.json")
    found = json.loads(path.read_text())
    assert found["complete"] is False and found["measured"]["rates"]
    assert path.with_suffix(".png").exists()


def test_a_file_that_appears_while_it_measures_is_kept(tiny, measured, monkeypatch, capsys):
    def slow(self, tick):
        Path("a.json").write_text("theirs")
        vars(self).update(measured)

    monkeypatch.setattr(Bench, "run", slow)
    assert cli.main(["bench", "--device", "cpu", "--json", "a.json"]) == 0
    assert Path("a.json").read_text() == "theirs" and Path("a.new.json").exists()
    assert "written: a.new.json" in capsys.readouterr().err


def test_an_interrupt_keeps_the_parts_that_are_done(monkeypatch):
    def hang(recipe):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "machine_report", lambda device: None)
    monkeypatch.setattr(run, "measure_machine", lambda *_, **__: GPU.measured)
    plan = replace(TINY, workloads=lambda device: [Workload("hung", "Hung", 1, hang, None)])
    bench = Bench(CPU, plan)
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert bench.measured is GPU.measured and not bench.complete


def test_a_recipe_that_needs_longer_than_planned_is_left_out_with_its_pace():
    bench = Bench(CPU, replace(TINY, seconds=1e-6))
    bench._compare(TINY.workloads(CPU)[0], AMP_BF16)
    (one,) = bench.left_out
    assert one.times_fp32 > 0
    assert re.fullmatch(r"left out: one step takes .* times as long as in fp32", one.why)


def test_a_training_that_fails_is_left_out_with_the_reason():
    def fails(recipe):
        raise torch.OutOfMemoryError("CUDA out of memory.\nSee the documentation")

    bench = Bench(CPU, TINY)
    bench._compare(Workload("simple_net", "SimpleNet", 1, fails, None), AMP_BF16)
    assert bench.left_out == [LeftOut("SimpleNet", "amp_bf16", "left out: CUDA out of memory.")]
