"""`amp-course bench`: what it writes and where, Ctrl-C,
the recommendation for machines that are not here, two pages compared.
"""

import errno
import getpass
import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from amp_course import cli
from amp_course.kit.errors import CourseError
from amp_course.kit.threads import one_thread
from amp_course.loop.recipe import AMP_BF16
from amp_course.loop.workloads import Workload, simple_net
from amp_course.speed import machine
from amp_course.speed.bench import command
from amp_course.speed.bench.advice import recommend
from amp_course.speed.bench.compare import compare, compare_files
from amp_course.speed.bench.figures import bench_figure
from amp_course.speed.bench.page import GAP, LeftOut, Page, Result
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


def result(name, recipe="amp_bf16", speedup=2.0, noise=0.02, ops=100, gap=None, **more):
    seconds = {"fp32": 0.02, "amp": 0.02 / speedup}
    median = {side: one * (1 + noise) for side, one in seconds.items()}
    quartiles = {side: (one, one * (1 + 2 * noise)) for side, one in seconds.items()}
    gaps = dict.fromkeys(GAP, 0.0) | (gap or {})
    fields = (
        dict(share=0.6, factor=4.0, ceiling=1.8, predicted=1.7, ops={"fp32": ops, "amp": ops})
        | more
    )
    titles = {
        "simple_net": "SimpleNet, width 64",
        "digits_resnet": "ResNet on digits, batch 64",
        "char_gpt": "Character GPT",
    }
    return Result(
        name,
        titles[name],
        recipe,
        seconds=seconds,
        median=median,
        quartiles=quartiles,
        gap_seconds=gaps,
        **fields,
    )


def three(speedups, recipe="amp_bf16", **more):
    names = ("simple_net", "digits_resnet", "char_gpt")
    return tuple(
        result(name, recipe, one, **more) for name, one in zip(names, speedups, strict=True)
    )


def page(results=(), left_out=(), device="cpu", launch=1e-6, complete=True, **factors):
    """A page of a machine whose matmuls are `factors` times as fast as fp32's."""
    rates = [
        Rate("fp32", 512, 1e11),
        *(Rate(fmt, 512, factor * 1e11) for fmt, factor in factors.items()),
    ]
    machine = {
        "device": device,
        "device_name": f"a {device}",
        "cpu_cores": 2,
        "threads": 2,
        "torch_version": "2.13.0",
    }
    versions = {"course": "0.1.0", "torch": "2.13.0", "python": "3.12.1"}
    return Page(
        "2026-11-23T10:20:15+00:00",
        complete,
        60.0,
        versions,
        {"plan": "full"},
        machine,
        Machine(device, tuple(rates), 2e10, launch),
        tuple(results),
        tuple(left_out),
    )


GPU = page(
    [*three([2.4, 1.3, 1.8]), *three([2.4, 1.3, 1.8], "amp_fp16")],
    device="cuda",
    launch=4e-6,
    bf16=8.0,
    fp16=8.0,
)
SLOW = [
    LeftOut(one.title, recipe, "left out: one step takes 1.1 s, 40 times as long as in fp32", 40.0)
    for recipe in ("amp_bf16", "amp_fp16")
    for one in three([1, 1, 1])
]
LAPTOP = page(left_out=SLOW, bf16=0.01, fp16=0.004)
MIXED = page(
    [*three([1.9, 0.8, 1.4], gap={"casts": 5e-3}), *three([0.1] * 3, "amp_fp16")],
    bf16=6.0,
    fp16=0.01,
)
T4 = page(
    [*three([0.6] * 3), *three([2.2, 1.2, 1.6], "amp_fp16")], device="cuda", bf16=0.5, fp16=5.0
)


def told(found):
    return "\n".join([recommend(found).headline, *recommend(found).reasons])


def test_a_gpu_with_fast_bf16_is_told_to_use_it():
    assert (
        recommend(GPU).headline
        == "Train in AMP bf16: it made these three trainings 1.3 to 2.4 times as fast as fp32."
    )
    assert "Scaler" not in told(GPU)


def test_an_avx2_laptop_is_told_to_stay_in_fp32():
    assert recommend(LAPTOP).headline.startswith(
        "Stay in fp32 on this machine: 16-bit matmuls are slower here."
    )
    assert "The steps take 40 times as long under AMP." in told(LAPTOP)
    assert "bf16 matmuls take 100 times as long" in told(
        LAPTOP
    ) and "fp16 matmuls take 250 times" in told(LAPTOP)


def test_where_one_training_loses_the_loser_and_its_loss_are_named():
    headline = recommend(MIXED).headline
    assert headline.startswith("Train in AMP bf16 where it pays")
    assert (
        "SimpleNet 1.9 times and Character GPT 1.4 times as fast as fp32, and did not help ResNet "
        "on digits (0.8 times)" in headline
    )
    assert (
        "ResNet on digits lost most to casts to 16 bits and back: 5.00 ms of an AMP step of 25.0 "
        "ms." in told(MIXED)
    )
    assert "SimpleNet lost" not in told(MIXED)


def test_a_t4_is_told_fp16_and_the_scaler():
    assert recommend(T4).headline.startswith("Train in AMP fp16, with a GradScaler: it made")
    assert "bf16 matmuls take 2.0 times as long" in told(
        T4
    ) and "without one, small gradients underflow" in told(T4)


@pytest.mark.parametrize("found", [GPU, LAPTOP, MIXED, T4], ids=["gpu", "laptop", "mixed", "t4"])
def test_a_busy_machine_is_told_nothing(found):
    assert recommend(replace(found, settings={**found.settings, "waited": 0.19})) == recommend(
        found
    )
    busy = replace(found, settings={**found.settings, "waited": 0.4})
    assert recommend(busy).headline == "No recommendation: this machine was too busy to tell."
    assert not re.search(r"times as|fp32|matmuls|Train in", told(busy))
    head, _, rest = page_text(busy).partition("Matmul rate")
    assert "Speed-up" not in rest and "as long as in fp32" not in rest
    assert "waited for a CPU 40% of the time" in " ".join(head.split())
    assert busy.from_dict(json.loads(json.dumps(busy.to_dict()))).busy == busy.busy
    picture = bench_figure(busy, recommend(busy))
    assert "No recommendation" in picture._suptitle.get_text()
    assert not any("Speed-up" in axis.get_title(loc="left") for axis in picture.axes)


def test_fp16_has_to_be_clearly_faster_to_go_before_bf16():
    def best(fp16):
        both = [*three([2.0] * 3), *three([fp16] * 3, "amp_fp16")]
        return recommend(page(both, bf16=4.0, fp16=4.0)).headline[:17]

    assert (best(2.05), best(2.2)) == ("Train in AMP bf16", "Train in AMP fp16")


def test_nets_that_are_too_small_for_a_gpu_are_called_so():
    found = page(three([0.7, 0.8, 1.05], ops=3000), device="cuda", launch=5e-6, bf16=8.0, fp16=8.0)
    assert (
        recommend(found).headline
        == "Stay in fp32 for trainings like these three: AMP gained nothing."
    )
    assert told(found).count("is too small for this machine: starting its 3000 ops takes 75%") == 3


def test_a_gain_within_the_noise_is_none():
    found = page(three([1.15] * 3, noise=0.2), bf16=4.0, fp16=0.1)
    assert recommend(found).headline.startswith("Stay in fp32")


def test_a_busy_machine_is_told_not_to_rely_on_it():
    def busy(found, ratio):
        slow = (
            replace(one, median={side: one.seconds[side] * ratio for side in one.seconds})
            for one in found.results
        )
        return replace(found, results=tuple(slow))

    assert "took 2.0 times as long as the fastest" in told(
        busy(GPU, 2)
    ) and "Train in AMP bf16" in told(busy(GPU, 2))
    assert told(busy(GPU, 4)).startswith(
        "No recommendation: the times of this run are too uneven.\nSomething else was using"
    )
    hopeless = page(three([0.1] * 3), bf16=0.01, fp16=0.004)
    assert told(busy(hopeless, 4)).startswith(
        "Stay in fp32 on this machine"
    )  # its matmuls alone decide
    assert "Something else" not in told(GPU)


def test_fp32_that_is_slower_in_one_comparison_than_in_another_is_noise():
    first, *others = three([2.0] * 3)
    slow = replace(result("simple_net", "amp_fp16"), median={"fp32": 0.05, "amp": 0.01})
    assert "a median step of SimpleNet took 2.5 times as long" in told(
        page([first, *others, slow], bf16=4.0, fp16=4.0)
    )


def test_tf32_alone_is_mentioned_where_it_helps():
    with_tf32 = replace(GPU, results=(*GPU.results, *three([1.5, 1.2, 1.4], "tf32")))
    assert "TF32 alone, without autocast: 1.2 to 1.5 times as fast" in told(with_tf32)
    unhelped = page(
        [*three([1.0] * 3), *three([1.5] * 3, "tf32")], device="cuda", bf16=2.0, fp16=2.0
    )
    assert recommend(unhelped).headline.startswith("Stay in fp32, with TF32 turned on, for")


def test_memory_that_comes_and_goes_is_named_with_its_cure():
    found = page(three([1.5] * 3, gap={"memory": 2e-3}), bf16=4.0, fp16=0.1)
    assert "takes 15% of" in told(found) and "MALLOC_TRIM_THRESHOLD_=" in told(found)


def test_nothing_is_recommended_without_a_comparison():
    failed = [LeftOut("SimpleNet", "amp_bf16", "left out: not enough memory")]
    assert (
        recommend(page(left_out=failed, bf16=2.0)).headline
        == "No recommendation: no training could be compared with fp32."
    )
    assert "interrupted too early" in recommend(page(complete=False)).headline


@pytest.mark.parametrize(
    "found",
    [GPU, LAPTOP, MIXED, T4, page(complete=False)],
    ids=["gpu", "laptop", "mixed", "t4", "early"],
)
def test_a_page_survives_json_fits_a_terminal_and_is_drawn(found):
    again = Page.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == replace(found, results=again.results) and page_text(again) == page_text(found)
    assert max(map(len, page_text(found).splitlines())) <= 100
    figure = bench_figure(found, recommend(found))
    assert (
        recommend(found).headline in figure.alt
        and recommend(found).headline[:40] in figure.get_suptitle()
    )
    figure.draw_without_rendering()


@pytest.fixture(scope="module")
def measured():
    """A run that really measured, in a tiny size."""
    with one_thread():
        bench = Bench(CPU, TINY)
        steps = []
        bench.run(lambda what, seconds: steps.append((what, seconds)))
    assert (
        sum(seconds for _, seconds in steps) == pytest.approx(0.1 + 2 * 0.2)
        and steps[-1][0] == "done"
    )
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
    assert (
        "Recommendation\n" in out
        and "SimpleNet, width 8, batch 2\n" in out
        and "launching one small op takes" in out
    )
    assert err.count("written: ") == 2 and "%" not in err  # no bar where stderr is not a terminal
    assert cli.main(["bench", "--device", "cpu", "--out", "my_work"]) == 0
    data, second = sorted(Path("my_work").glob("*.json"), key=lambda path: len(path.name))
    assert (
        re.fullmatch(r"bench-cpu-[a-z0-9-]+-\d{4}-\d\d-\d\d\.json", data.name)
        and second.stem == data.stem + "-2"
    )
    assert {path.stem for path in Path("my_work").glob("*.png")} == {data.stem, second.stem}


def test_the_json_says_what_was_measured_where_and_gives_nobody_away(tiny, capsys):
    assert cli.main(["bench", "--device", "cpu", "--json", "-"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)  # the standard output has nothing else
    assert not list(tiny.iterdir())
    assert found["schema"] == 1 and found["complete"] and found["recommendation"]["headline"]
    assert (
        found["versions"]["torch"] == torch.__version__
        and found["settings"]["keeps_freed_memory"] is False
    )
    assert {one["recipe"] for one in found["results"] + found["left_out"]} == {
        "amp_bf16",
        "amp_fp16",
    }
    assert found["measured"]["ridges"]["fp32"] > 0 and found["machine"]["device"] == "cpu"
    for private in (
        str(ROOT),
        str(tiny),
        os.path.expanduser("~"),
        socket.gethostname(),
        getpass.getuser(),
    ):
        assert private not in text


def test_an_existing_file_is_replaced_by_force_only(tiny, capsys):
    Path("a.json").write_text("mine")
    assert cli.main(["bench", "--device", "cpu", "--json", "a.json"]) == 2
    assert (
        "a.json already exists: choose another name, or add --force to replace it."
        in capsys.readouterr().err
    )
    assert Path("a.json").read_text() == "mine"
    assert cli.main(["bench", "--device", "cpu", "--json", "a.json", "--force"]) == 0
    assert json.loads(Path("a.json").read_text())["benchmark"] == "bench" and [
        one.name for one in tiny.iterdir()
    ] == ["a.json"]


def test_a_file_that_appears_while_it_measures_is_kept(tiny, measured, monkeypatch, capsys):
    def slow(self, tick):
        Path("a.json").write_text("theirs")
        vars(self).update(measured)

    monkeypatch.setattr(Bench, "run", slow)
    assert cli.main(["bench", "--device", "cpu", "--json", "a.json"]) == 0
    assert Path("a.json").read_text() == "theirs" and Path("a.new.json").exists()
    assert "written: a.new.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, meant",
    [
        ("--json folder", "folder is a folder or a device: name a file"),
        ("--json /dev/null --force", "/dev/null is a folder or a device: name a file"),
        (
            "--json gone/a.json",
            "nothing can be written to gone: gone does not exist. Create the folder",
        ),
        ("--png gone/a.png", "nothing can be written to gone: gone does not exist"),
        ("--out gone", "nothing can be written to gone: gone does not exist"),
        ("--out there", "nothing can be written to there: part of the path there is a file"),
        ("--json a --png ./a", "--json and --png both name a: give each a file of its own"),
    ],
)
def test_what_cannot_be_written_is_said_before_it_measures(
    tiny, monkeypatch, capsys, options, meant
):
    def never(*_):
        raise AssertionError("it measured")

    monkeypatch.setattr(Bench, "run", never)
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
        ("--compare a", "expected 2 arguments"),
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


INTERRUPTED = """
import sys, time
from amp_course import cli
from amp_course.loop.workloads import Workload, simple_net
from amp_course.speed.bench import run

def hang(recipe):
    print("READY", file=sys.stderr, flush=True)
    time.sleep(100)

def workloads(device):
    hung = Workload("hung", "Hung, for ever", 1, hang, None)
    return [simple_net(device, width=8, batch_size=2), hung]

run.FULL = run.Plan("tiny", 0.1, 0.2, sizes=(8,), workloads=workloads)
sys.exit(cli.main(["bench", "--device", "cpu"]))
"""


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done(tmp_path):
    own = {"AMP_COURSE_WORK": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], env=os.environ | own, **pipes
    ) as process:
        assert any(line == "READY\n" for line in process.stderr)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Interrupted.\n" in err and "Traceback" not in err
    assert "INCOMPLETE: this run was interrupted." in out and "Hung" not in out
    assert "SimpleNet, width 8" in out or "too busy" in out
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())
    assert found["complete"] is False and found["measured"]["rates"]
    assert len(found["results"] + found["left_out"]) == 2
    assert path.with_suffix(".png").exists() and len(list(tmp_path.iterdir())) == 2


def test_ctrl_c_before_anything_is_measured_writes_nothing(tiny, monkeypatch, capsys):
    def stop(self, tick):
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "run", stop)
    assert cli.main(["bench", "--device", "cpu"]) == 130
    assert "Nothing had been measured yet, so nothing is written." in capsys.readouterr().err
    assert not list(tiny.rglob("*.*"))


def test_a_recipe_that_needs_longer_than_planned_is_left_out_with_its_pace():
    bench = Bench(CPU, replace(TINY, seconds=1e-6))
    bench._compare(TINY.workloads(CPU)[0], AMP_BF16)
    (one,) = bench.left_out
    assert one.times_fp32 > 0 and re.fullmatch(
        r"left out: one step takes .* times as long as in fp32", one.why
    )


def test_a_training_that_fails_is_left_out_with_the_reason():
    def fails(recipe):
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation"
        )

    bench = Bench(CPU, TINY)
    bench._compare(Workload("simple_net", "SimpleNet", 1, fails, None), AMP_BF16)
    assert bench.left_out == [
        LeftOut(
            "SimpleNet", "amp_bf16", "left out: CUDA out of memory. Tried to allocate 2.00 GiB."
        )
    ]


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
    assert (
        "device  A: cuda: a cuda\n        B: cpu: a cpu" in out
        and "The same in both:" in out
        and "torch: 2.13.0" in out
    )
    assert re.search(r"bf16 matmul, best rate, GFLOP/s +800 +600 +0\.75", out)
    assert re.search(r"launching one op, µs +4 +1 +4\n", out)
    assert re.search(
        r"SimpleNet, AMP bf16\n  speed-up over fp32 +2\.40 +1\.90\n  quartiles allow", out
    )
    assert out.count("Train in AMP bf16") == 2 and max(map(len, out.splitlines())) <= 100


def test_steps_of_other_sizes_are_not_compared(two):
    larger = replace(
        GPU, results=tuple(replace(one, title=f"{one.title}, larger") for one in GPU.results)
    )
    assert "fp32 step" in compare(GPU, MIXED) and "no step times are given" not in compare(
        GPU, MIXED
    )
    assert "fp32 step" not in compare(larger, MIXED) and "no step times are given" in compare(
        larger, MIXED
    )


def test_pages_with_little_in_common_are_compared_as_far_as_it_goes():
    nothing = replace(page(complete=False), measured=None)
    said = compare(GPU, nothing)
    assert (
        "No training was timed under the same recipe on both." in said
        and "INCOMPLETE" in said
        and "best rate" not in said
    )


@pytest.mark.parametrize(
    "content, meant",
    [
        (None, "could not be read: "),
        ("", "is not JSON: give the .json file that `amp-course bench` wrote."),
        (b"\x89PNG\xff", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "is JSON, but not from `amp-course bench`"),
        ({"benchmark": "peers"}, "is JSON, but not from `amp-course bench`"),
        (
            {"schema": 0},
            "has schema 0, and this version of the course reads schema 1: make it again",
        ),
        (
            {"schema": 2},
            "has schema 2, and this version of the course reads schema 1: run `amp-course update`",
        ),
        ({"date": None}, "is damaged or was edited (None is not text)"),
        ({"machine": {}}, "is damaged or was edited ('device_name' is missing)"),
        ({"results": [{}]}, "is damaged or was edited"),
        ({"measured": {"bandwidth": 1}}, "is damaged or was edited"),
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


@pytest.mark.parametrize("number", [0, -1.0, float("nan"), float("inf"), "1", True, None])
def test_numbers_that_no_machine_has_are_refused(two, number):
    found = MIXED.to_dict()
    found["results"][0]["seconds"] = {"fp32": 1.0, "amp": number}
    two[1].write_text(json.dumps(found))
    with pytest.raises(CourseError, match="is damaged or was edited"):
        compare_files(*two)


def test_one_file_twice_is_refused(two, tmp_path):
    (tmp_path / "link.json").symlink_to(two[0])
    with pytest.raises(CourseError, match="are the same file: give two"):
        compare_files(two[0], tmp_path / "link.json")


def test_letters_that_steer_a_terminal_are_not_passed_on(two):
    two[1].write_text(
        json.dumps(
            replace(MIXED, machine={**MIXED.machine, "device_name": "a\x1b[31mred"}).to_dict()
        )
    )
    assert "a?[31mred" in compare_files(*two)


def test_formats_take_turns_so_that_a_busy_second_spoils_no_rate(monkeypatch):
    asked, rates = [], iter([1e9, 9e12, 5e12, 8e12, 4e12, 7e12])

    def rate(device, fmt, size, budget):
        asked.append(fmt)
        return Rate(fmt, size, next(rates))

    monkeypatch.setattr(machine, "_rate", rate)
    found = machine.measure_rates(CPU, (64,), ("fp32", "bf16"), 1.0)
    assert asked == ["fp32", "bf16"] * 3 and [one.flops for one in found] == [5e12, 9e12]
