"""`amp-course bench`: what it writes and where, Ctrl-C,
the recommendation for machines that are not here, two pages compared.
"""

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
from amp_course.kit.errors import CourseError
from amp_course.kit.threads import one_thread
from amp_course.loop.recipe import AMP_BF16
from amp_course.loop.workloads import Workload, simple_net
from amp_course.speed import machine
from amp_course.speed.bench import command, run
from amp_course.speed.bench.advice import recommend
from amp_course.speed.bench.compare import compare, compare_files
from amp_course.speed.bench.figures import bench_figure
from amp_course.speed.bench.page import SIDES, LeftOut, Page, Result
from amp_course.speed.bench.run import Bench, Plan
from amp_course.speed.bench.text import page_text
from amp_course.speed.machine import Machine, Rate

CPU = torch.device("cpu")
TINY = Plan(
    "tiny",
    0.1,
    0.2,
    sizes=(8, 16),
    workloads=lambda device: [simple_net(device, width=8, batch_size=2)],
)
ROOT = Path(__file__).resolve().parents[2]


NAMES = {
    "simple_net": "SimpleNet, width 64",
    "digits_resnet": "ResNet on digits, batch 64",
    "char_gpt": "Character GPT",
}


def result(name, recipe="amp_bf16", speedup=2.0, noise=0.02, ops=100, gap=None):
    seconds = {"fp32": 0.02, "amp": 0.02 / speedup}
    return Result(
        name,
        NAMES[name],
        recipe,
        share=0.6,
        factor=4.0,
        ceiling=1.8,
        predicted=1.7,
        seconds=seconds,
        median={side: one * (1 + noise) for side, one in seconds.items()},
        quartiles={side: [one, one * (1 + 2 * noise)] for side, one in seconds.items()},
        gap_seconds=dict.fromkeys(("casts", "other ops", "memory", "unexplained"), 0.0)
        | (gap or {}),
        ops={"fp32": ops, "amp": ops},
    )


def three(speedups, recipe="amp_bf16", **more):
    return tuple(map(lambda name, one: result(name, recipe, one, **more), NAMES, speedups))


def page(results=(), left_out=(), device="cpu", launch=1e-6, complete=True, **factors):
    """A page of a machine whose matmuls are `factors` times as fast as fp32's."""
    rates = tuple(Rate(fmt, 512, factor * 1e11) for fmt, factor in ({"fp32": 1} | factors).items())
    machine = {"device": device, "device_name": f"a {device}", "cpu_cores": 2, "threads": 2}
    return Page(
        "2026-11-23T10:20:15+00:00",
        complete,
        60.0,
        {"course": "0.1.0", "torch": "2.13.0", "python": "3.12.1"},
        {"plan": "full"},
        machine | {"torch_version": "2.13.0"},
        Machine(device, rates, 2e10, launch),
        tuple(results),
        tuple(left_out),
    )


BOTH = [*three([2.4, 1.3, 1.8]), *three([2.4, 1.3, 1.8], "amp_fp16")]
GPU = page(BOTH, device="cuda", launch=4e-6, bf16=8.0, fp16=8.0)
SLOW = [
    LeftOut(title, recipe, "left out: one step takes 1.1 s, 40 times as long as in fp32", 40.0)
    for recipe in ("amp_bf16", "amp_fp16")
    for title in NAMES.values()
]
LAPTOP = page(left_out=SLOW, bf16=0.01, fp16=0.004)
MIXED = page(
    [*three([1.9, 0.8, 1.4], gap={"casts": 5e-3}), *three([0.1] * 3, "amp_fp16")], bf16=6, fp16=0.01
)
T4 = page([*three([0.6] * 3), *three([2.2, 1.2, 1.6], "amp_fp16")], bf16=0.5, fp16=5.0)


def sentences_of(found):
    return "\n".join([recommend(found).headline, *recommend(found).reasons])


NET_32 = [LeftOut("SimpleNet", "amp_bf16", "left out: not enough memory")]
WITH_TF32 = replace(GPU, results=(*GPU.results, *three([1.5, 1.2, 1.4], "tf32")))
TF32_ALONE = page([*three([1.0] * 3), *three([1.5] * 3, "tf32")], bf16=2.0, fp16=2.0)
TINY_NETS = page(three([0.7, 0.8, 1.05], ops=3000), launch=5e-6, bf16=8.0, fp16=8.0)


@pytest.mark.parametrize(
    ("found", "headline", "reasons"),
    [
        (GPU, "Train in AMP bf16: it made these three trainings 1.3 to 2.4 times as fast as", []),
        (
            LAPTOP,
            "Stay in fp32 on this machine: 16-bit matmuls are slower here.",
            [
                "The steps take 40 times as long under AMP.",
                "bf16 matmuls take 100 times as long",
                "fp16 matmuls take 250 times",
            ],
        ),
        (
            MIXED,
            "Train in AMP bf16 where it pays, and time your own model first: it made SimpleNet "
            "1.9 times and Character GPT 1.4 times as fast as fp32, and did not help ResNet on "
            "digits (0.8 times)",
            ["ResNet on digits lost most to casts to 16 bits and back: 5.00 ms of an AMP step of"],
        ),
        (
            T4,
            "Train in AMP fp16, with a GradScaler: it made",
            ["bf16 matmuls take 2.0 times as long", "without one, small gradients underflow"],
        ),
        (
            TINY_NETS,
            "Stay in fp32 for trainings like these three: AMP gained nothing.",
            ["SimpleNet is too small for this machine: starting its 3000 ops takes 75%"],
        ),
        (page(three([1.15] * 3, noise=0.2), bf16=4.0, fp16=0.1), "Stay in fp32", []),
        (WITH_TF32, "Train", ["TF32 alone, without autocast: 1.2 to 1.5 times as fast"]),
        (TF32_ALONE, "Stay in fp32, with TF32 turned on, for", []),
        (
            page(three([1.5] * 3, gap={"memory": 2e-3}), bf16=4.0, fp16=0.1),
            "Train in AMP bf16",
            ["takes 15% of", "MALLOC_TRIM_THRESHOLD_="],
        ),
        (
            page(left_out=NET_32, bf16=2.0),
            "No recommendation: no training could be compared with fp32.",
            [],
        ),
        (page(complete=False), "No recommendation: the run was interrupted too early.", []),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_a_recipe_is_recommended_with_its_reasons(found, headline, reasons):
    assert recommend(found).headline.startswith(headline)
    assert all(reason in sentences_of(found) for reason in reasons)
    assert ("GradScaler" in sentences_of(found)) == (
        found is T4
    ) and "SimpleNet lost" not in sentences_of(found)


@pytest.mark.parametrize("found", [LAPTOP, MIXED], ids=["laptop", "mixed"])
def test_on_a_busy_machine_nothing_is_claimed(found):
    quiet, busy = (replace(found, settings={"plan": "full", "waited": one}) for one in (0.19, 0.4))
    assert recommend(quiet) == recommend(found)
    assert recommend(busy).headline == "No recommendation: this machine was too busy to tell."
    assert not re.search(r"times as|fp32|matmuls|Train in", sentences_of(busy))
    head, _, rest = page_text(busy).partition("Matmul rate")
    assert "Speed-up" not in rest and "as long as in fp32" not in rest
    assert "waited for a CPU 40% of the time" in " ".join(head.split())
    picture = bench_figure(busy, recommend(busy))
    assert "No recommendation" in picture._suptitle.get_text()
    assert not any("Speed-up" in axis.get_title(loc="left") for axis in picture.axes)


def test_fp16_has_to_be_clearly_faster_to_go_before_bf16():
    def best(fp16):
        both = [*three([2.0] * 3), *three([fp16] * 3, "amp_fp16")]
        return recommend(page(both, bf16=4.0, fp16=4.0)).headline[:17]

    assert (best(2.05), best(2.2)) == ("Train in AMP bf16", "Train in AMP fp16")


def test_uneven_times_bring_a_warning_or_no_recommendation():
    def busy(found, ratio):
        times = [{side: ratio * one.seconds[side] for side in SIDES} for one in found.results]
        return replace(found, results=tuple(map(with_median, found.results, times)))

    def with_median(one, times):
        return replace(one, median=times)

    uneven = sentences_of(busy(GPU, 2))
    assert "took 2.0 times as long as the fastest" in uneven and "Train in AMP bf16" in uneven
    assert sentences_of(busy(GPU, 4)).startswith(
        "No recommendation: the times of this run are too uneven.\nSomething else was using"
    )
    hopeless = page(three([0.1] * 3), bf16=0.01, fp16=0.004)
    # its matmuls alone decide
    assert sentences_of(busy(hopeless, 4)).startswith("Stay in fp32 on this machine")
    assert "Something else" not in sentences_of(GPU)


def test_fp32_that_is_slower_in_one_comparison_than_in_another_is_noise():
    first, *others = three([2.0] * 3)
    slow = replace(result("simple_net", "amp_fp16"), median={"fp32": 0.05, "amp": 0.01})
    found = page([first, *others, slow], bf16=4.0, fp16=4.0)
    assert "a median step of SimpleNet took 2.5 times as long" in sentences_of(found)


@pytest.mark.parametrize(
    "found", [LAPTOP, MIXED, page(complete=False)], ids=["laptop", "mixed", "early"]
)
def test_a_page_survives_json_fits_a_terminal_and_is_drawn(found):
    assert Page.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert max(map(len, page_text(found).splitlines())) <= 100
    figure, headline = bench_figure(found, recommend(found)), recommend(found).headline
    assert headline in figure.alt and headline[:40] in figure.get_suptitle()
    figure.draw_without_rendering()


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


def test_a_part_of_the_gap_that_only_a_gpu_has_is_shown_and_named():
    parts = {"casts": 0.0, "other ops": 0.0, "memory": 0.0, "launches": 6e-3, "unexplained": 0.0}
    one = result("char_gpt", speedup=0.9, gap=parts)
    assert "launches +6.00 ms" in page_text(page([one], device="cuda", bf16=8.0, fp16=8.0))
    text = recommend(page([one], device="cuda", bf16=8.0, fp16=8.0)).reasons
    assert any("waiting for the CPU to queue ops" in reason for reason in text)


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


@pytest.fixture
def two(tmp_path):
    """Two machines' files."""
    paths = tmp_path / "gpu.json", tmp_path / "laptop.json"
    for path, found in zip(paths, (GPU, MIXED), strict=True):
        path.write_text(json.dumps(found.to_dict()))
    return paths


def test_two_pages_are_compared_without_measuring(two, capsys):
    assert cli.main(["bench", "--compare", *map(str, two)]) == 0
    out = capsys.readouterr().out
    assert "device  A: cuda: a cuda\n        B: cpu: a cpu" in out and "The same in both:" in out
    assert "torch: 2.13.0" in out
    assert re.search(r"bf16 matmul, best rate, GFLOP/s +800 +600 +0\.75", out)
    assert re.search(r"launching one op, µs +4 +1 +4\n", out)
    assert re.search(r"SimpleNet, AMP bf16\n  speed-up over fp32 +2\.40 +1\.90\n  quartiles", out)
    assert out.count("Train in AMP bf16") == 2 and max(map(len, out.splitlines())) <= 100


def test_steps_of_other_sizes_are_not_compared():
    larger = (replace(one, title=f"{one.title}, larger") for one in GPU.results)
    for gpu, same in ((GPU, True), (replace(GPU, results=tuple(larger)), False)):
        text = compare(gpu, MIXED)
        assert ("fp32 step" in text) == same == ("no step times are given" not in text)


def test_pages_with_little_in_common_are_compared_as_far_as_it_goes():
    nothing = replace(page(complete=False), measured=None)
    text = compare(GPU, nothing)
    assert "No training was timed under the same recipe on both." in text
    assert "INCOMPLETE" in text and "best rate" not in text


@pytest.mark.parametrize(
    "content, meant",
    [
        (None, "could not be read: "),
        ("", "is not JSON: give the .json file that `amp-course bench` wrote."),
        (b"\x89PNG\xff", "is not JSON"),
        ("[1]", "is JSON, but not from `amp-course bench`"),
        ({"benchmark": "peers"}, "is JSON, but not from `amp-course bench`"),
        ({"schema": 0}, "has schema 0, and this version of the course reads schema 1: make it"),
        ({"schema": 2}, "reads schema 1: run `amp-course update`"),
        ({"results": [{}]}, "is damaged or was edited ('workload' is missing)"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_not_a_page_is_one_line(two, capsys, content, meant):
    good, bad = two
    if content is None:
        bad.unlink()
    elif isinstance(content, dict):
        bad.write_text(json.dumps(MIXED.to_dict() | content))
    else:
        bad.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert cli.main(["bench", "--compare", str(good), str(bad)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"amp-course: {bad} ") and meant in line


def test_one_file_twice_is_refused(two, tmp_path):
    (tmp_path / "link.json").symlink_to(two[0])
    with pytest.raises(CourseError, match="are the same file: give two"):
        compare_files(two[0], tmp_path / "link.json")


def test_formats_take_turns_so_that_a_busy_second_changes_no_rate(monkeypatch):
    tried, rates = [], iter([1e9, 9e12, 5e12, 8e12, 4e12, 7e12])

    def rate(device, fmt, size, budget):
        tried.append(fmt)
        return Rate(fmt, size, next(rates))

    monkeypatch.setattr(machine, "_rate", rate)
    found = machine.measure_rates(CPU, (64,), ("fp32", "bf16"), 1.0)
    assert tried == ["fp32", "bf16"] * 3 and [one.flops for one in found] == [5e12, 9e12]
