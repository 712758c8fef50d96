"""The report card: a real small one, and cards put together by hand for what the words say."""

import dataclasses
import importlib
import json
import types

import pytest
import torch

from amp_course.kit.dtypes import DtypeSupport
from amp_course.kit.hardware import MachineReport
from amp_course.kit.memory import StepMemory
from amp_course.loop import AMP_BF16, AMP_FP16, FP32, find_recipe, report
from amp_course.loop.figures import report_card_figure, save_report_card
from amp_course.loop.report import ReportCard, Row, make_report_card
from amp_course.loop.train import RunRecord, join
from amp_course.loop.workloads import digits_resnet, simple_net

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def real():
    workloads = [simple_net(CPU, width=64, batch_size=16), digits_resnet(CPU, batch_size=8)]
    workloads = [dataclasses.replace(workload, steps=4) for workload in workloads]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "machine_report", lambda device: MACHINE)
        return make_report_card(CPU, workloads=workloads, recipes=[FP32, AMP_BF16], max_seconds=600)


def row(
    recipe,
    seconds,
    *,
    steps=20,
    peak=100,
    activations=40,
    accuracy=None,
    loss=1.0,
    title="a net",
    waited=None,
):
    memory = StepMemory(10, 0, 10, 20, activations, 0, peak, None)
    losses, scales, times = (loss,) * steps, (1.0,) * steps, (seconds,) * steps
    complete = steps == 20
    record = RunRecord(recipe, "cpu", losses, scales, (), times, 3, memory, complete, waited)
    return Row("net", title, recipe, record, 20, accuracy, parameters=10)


def support(name, times):
    return DtypeSupport(name, "native" if times < 1.2 else "emulated", times * 1e-3, times)


MACHINE = MachineReport("cpu", "a CPU", None, None, 2, 2, "2.13.0", "3.12", "Linux", None, ())


def card(*rows, bf16=0.5):
    dtypes = support("fp32", 1.0), support("bf16", bf16), support("fp16", 50.0)
    return ReportCard(dataclasses.replace(MACHINE, dtypes=dtypes), rows, "2026-01-01")


def test_a_real_card_has_every_row_with_its_numbers(real):
    assert [(r.workload, r.recipe.name) for r in real.rows] == [
        (workload, recipe)
        for workload in ("simple_net", "digits_resnet")
        for recipe in ("fp32", "amp_bf16")
    ]
    for r in real.rows:
        assert len(r.record.losses) == 4 and r.timing.median > 0 and r.peak_bytes > 0
    assert [r.accuracy is None for r in real.rows] == [True, True, False, False]


def test_saved_json_and_picture_hold_the_card(real, tmp_path):
    data, picture = save_report_card(real, tmp_path / "new" / "folder")
    read = json.loads(data.read_text())
    assert [r["recipe"] for r in read["rows"]] == [r.recipe.name for r in real.rows]
    assert read["machine"]["torch_version"] == "2.13.0"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_figure_writes_every_time_and_every_peak_and_the_table_is_shown(real):
    figure = report_card_figure(real)
    words = " ".join(text.get_text() for axis in figure.axes for text in axis.texts)
    for cells in real.cells()[1:]:
        assert cells[2] in words and cells[4] in words
        assert all(cell in repr(real) and cell in real._repr_html_() for cell in cells)


def test_words_when_amp_helps():
    text = card(
        row(FP32, 0.02, accuracy=0.99), row(AMP_BF16, 0.01, peak=60, accuracy=0.985)
    ).paragraph()
    assert "helped: 2.00 times as fast (20.0 ms a step in fp32, 10.0 ms in AMP bf16)" in text
    assert "fell to 60% of fp32's (100 B, then 60 B)" in text and "40% of fp32's peak" in text
    assert "99.0% in fp32, 98.5% in AMP bf16" in text
    assert "emulated" not in text and "stopped" not in text


def test_a_busy_machine_is_said_and_no_time_is_compared():
    busy = card(
        row(FP32, 0.02, accuracy=0.99, waited=0.1),
        row(AMP_BF16, 0.01, peak=60, accuracy=0.985, waited=0.5),
        row(AMP_FP16, 0.5, steps=4, waited=0.5),
    )
    text = busy.paragraph()
    assert "too busy to tell" in text and "50% of the time" in text
    assert "fell to 60% of fp32's" in text and "98.5% in AMP bf16" in text
    assert not any(word in text for word in ("helped", "as fast", "as long", "emulated", "slow"))
    assert "stopped by the time limit after 4 of 20 steps" in text
    assert [cells[3] for cells in busy.cells()[1:]] == ["–", "–", "–"]
    assert "too busy to tell" in repr(busy) and "too busy to tell" in busy._repr_html_()
    words = [text.get_text() for text in report_card_figure(busy).axes[0].texts]
    words = " ".join(words)
    assert "too busy to tell" in words and "2.00 ×" not in words


def test_the_waiting_of_two_turns_is_averaged_over_their_time():
    parts = [row(FP32, 0.1, waited=0.0).record, row(FP32, 0.3, waited=0.4).record]
    assert join(parts).waited == pytest.approx(0.3)
    assert join([row(FP32, 0.1).record]).waited is None


def test_words_when_the_quartiles_overlap():
    uneven = row(FP32, 0.01)
    uneven = dataclasses.replace(
        uneven, record=dataclasses.replace(uneven.record, step_seconds=(0.005, 0.01, 0.03) * 7)
    )
    text = card(uneven, row(AMP_BF16, 0.007)).paragraph()
    assert "this machine can show no difference in time" in text and "helped" not in text


def test_words_when_there_is_nothing_to_win():
    text = card(row(FP32, 0.01), row(AMP_BF16, 0.02), bf16=3.0).paragraph()
    assert "fp32 was the fastest; AMP bf16 took 2.0 times as long" in text
    assert "no time to gain: a bf16 matmul takes 3.0 times fp32's time" in text
    assert "bf16 is emulated here" in text and "fp16" not in text


def test_words_when_matmuls_are_faster_and_the_step_is_not():
    text = card(row(FP32, 0.01), row(AMP_BF16, 0.0101)).paragraph()
    assert "changed little" in text and "must spend its time on something else" in text


def test_each_stopped_recipe_has_its_sentence_and_its_memory():
    stopped = (
        row(AMP_FP16, 0.5, steps=4, peak=90, activations=30),
        row(AMP_BF16, 0.25, steps=3, peak=80, activations=20),
    )
    text = card(row(FP32, 0.01), *stopped, bf16=40.0).paragraph()
    assert "Only fp32 finished in time." in text
    assert (
        "- **AMP fp16** was stopped after 4 of 20 steps, at 50 times fp32's time (500 ms a step "
        "instead of 10.0 ms)." in text
    )
    assert "it peaks at 90 B, 90% of fp32's, and keeps 30 B of activations instead of 40 B" in text
    assert "- **AMP bf16** was stopped after 3 of 20 steps, at 25 times" in text
    assert "it peaks at 80 B, 80% of fp32's, and keeps 20 B of activations instead of 40 B" in text
    assert "bf16 and fp16 are emulated here" in text and text.count("Why so slow?") == 1
    assert "left out" in text


def test_one_emulated_format_is_explained_alone():
    found = card(row(FP32, 0.01), row(AMP_FP16, 0.5, steps=4), row(AMP_BF16, 0.005))
    text, cells = found.paragraph(), found.cells()[2]
    assert "AMP bf16 helped" in text and "Only fp32" not in text
    assert "**AMP fp16** was stopped after 4 of 20 steps" in text
    assert "fp16 is emulated here" in text
    assert cells[7] == "–" and cells[9] == "4 of 20"


def test_a_recipe_stopped_on_a_busy_machine_is_not_called_slow():
    text = card(row(FP32, 0.01), row(AMP_BF16, 0.005, steps=4)).paragraph()
    assert "stopped after 4 of 20 steps, though it is not slow" in text and "emulated" not in text
    text = card(row(FP32, 0.01, steps=5), row(AMP_BF16, 0.01, steps=4)).paragraph()
    assert "**AMP bf16** was stopped too, after 4 of 20 steps" in text
    assert text.count("Raise `max_seconds`") == 1
    text = card(row(FP32, 0.01, steps=5), row(AMP_BF16, 0.005)).paragraph()
    assert "Even fp32 was stopped, after 5 of 20 steps" in text
    assert "AMP bf16 helped" in text and "Final loss" not in text


def test_a_recipe_that_dies_is_named():
    diverged = row(AMP_FP16, 0.004, loss=float("nan"))
    text = card(row(FP32, 0.01), diverged, row(AMP_BF16, 0.005)).paragraph()
    assert "inf or NaN under AMP fp16" in text
    assert "AMP bf16 helped" in text and "stopped" not in text
    alone = card(row(FP32, 0.01), diverged).paragraph()
    assert "inf or NaN under AMP fp16" in alone and "finished in time" not in alone


def test_what_a_user_named_is_escaped():
    evil = "<img src=x onerror=alert(1)>"
    bad = dataclasses.replace(AMP_BF16, label=evil)
    found = card(
        row(FP32, 0.01, title=evil),
        row(bad, 0.5, steps=3, title=evil),
        row(bad, 0.5, title=evil, loss=1e400),
    )
    assert "<img" not in found.paragraph() and "<img" not in found._repr_html_()
    assert "&lt;img" in found.paragraph()


class PretendStep:
    """Recipes whose steps take fixed times, on a clock of their own."""

    def __init__(self, monkeypatch, **seconds):
        self.now, self.seconds = 0.0, seconds
        for module in ("amp_course.loop.train", "amp_course.loop.report", "amp_course.kit.measure"):
            clock = types.SimpleNamespace(monotonic=lambda: self.now, perf_counter=lambda: self.now)
            monkeypatch.setattr(importlib.import_module(module), "time", clock)

    def recipe(self, name):
        real, outer = find_recipe(name), self

        class Pretend:
            name, label, low_dtype = real.name, real.label, real.low_dtype
            precision = real.precision

            def prepare(self, *args):
                stepper = real.prepare(*args)
                step, costs = stepper.step, iter(outer.seconds[real.name])

                def slow_step(*batch):
                    outer.now += next(costs)
                    return step(*batch)

                stepper.step = slow_step
                return stepper

        return Pretend()


def pace(fp32, fp16, bf16):
    costs = {"fp32": fp32, "amp_fp16": fp16, "amp_bf16": bf16}
    return {name: [one] * 64 if isinstance(one, float) else one for name, one in costs.items()}


KINDS = {  # of machine → the seconds of each step, and how many are taken
    "fast": (pace(0.02, 0.01, 0.01), (32, 32, 32)),
    "fp16 emulated": (pace(0.02, 0.8, 0.01), (32, 3, 32)),
    "both hopeless": (pace(0.02, 9.0, 3.0), (32, 2, 2)),
    "slow, but in time": (pace(0.02, 0.1, 0.12), (32, 32, 32)),
    "busy at first": (pace([2.0, 0.3] + [0.02] * 64, 0.01, 0.01), (32, 32, 32)),
    "busy from then on": (pace(0.02, 0.01, [0.01] * 6 + [1.0] * 64), (32, 32, 10)),
    "too slow for fp32": (pace(0.5, 0.5, 0.1), (8, 8, 32)),
}


@pytest.mark.parametrize(("seconds", "steps"), KINDS.values(), ids=KINDS)
def test_the_limit_holds_on_every_kind_of_machine(monkeypatch, seconds, steps):
    pretend = PretendStep(monkeypatch, **seconds)
    workload = simple_net(CPU, width=16, batch_size=4)
    trainings = [report._Training(workload, pretend.recipe(name), 4.0) for name in seconds]
    spent = dict.fromkeys(seconds, 0.0)
    for turn in report._turns(workload.steps):
        for name, training in zip(seconds, trainings, strict=True):
            before = pretend.now
            training.train(turn, trainings[0])
            spent[name] += pretend.now - before
    rows = [training.row() for training in trainings]
    assert tuple(len(r.record.losses) for r in rows) == steps
    assert [r.stopped for r in rows] == [count < 32 for count in steps]
    for name, count in zip(seconds, steps, strict=True):
        slowest_kept = max(seconds[name][:count])
        assert spent[name] <= max(4.0 + slowest_kept, sum(seconds[name][:2])) + 1e-6
    assert all(r.peak_bytes > 0 for r in rows)  # also of those that were stopped


def test_turns_are_all_steps_and_none_is_empty():
    for steps in (1, 3, 4, 5, 32, 64):
        turns = report._turns(steps)
        assert sum(turns) == steps and min(turns) > 0 and turns[0] == min(3, steps)
