"""The report card: a real small one, and cards put together by hand for what the words say."""

import dataclasses
import json

import pytest
import torch

from amp_course.kit.dtypes import DtypeSupport
from amp_course.kit.hardware import machine_report
from amp_course.kit.memory import StepMemory
from amp_course.loop import AMP_BF16, AMP_FP16, FP32
from amp_course.loop.figures import report_card_figure, save_report_card
from amp_course.loop.report import ReportCard, Row, make_report_card
from amp_course.loop.train import RunRecord
from amp_course.loop.workloads import digits_resnet, simple_net

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def real():
    workloads = [simple_net(CPU, width=64, batch_size=16), digits_resnet(CPU)]
    workloads = [dataclasses.replace(workload, steps=12) for workload in workloads]
    return make_report_card(CPU, workloads=workloads, recipes=[FP32, AMP_BF16], max_seconds=600)


@pytest.fixture(scope="module")
def machine():
    return machine_report(CPU)


def row(recipe, seconds, *, steps=20, planned=20, peak=100, accuracy=None):
    memory = StepMemory(10, 0, 10, 20, 40, 0, peak, None)
    record = RunRecord(
        recipe, "cpu", (1.0,) * steps, (1.0,) * steps, (), (seconds,) * steps, 3, memory, steps == planned
    )
    return Row("net", "a net", recipe, record, planned, accuracy, parameters=10)


def card(machine, *rows, bf16=0.5, fp16=50.0):
    dtypes = (
        DtypeSupport("fp32", "native", 1e-3, 1.0),
        DtypeSupport("bf16", "native" if bf16 < 1.2 else "emulated", bf16 * 1e-3, bf16),
        DtypeSupport("fp16", "emulated", fp16 * 1e-3, fp16),
    )
    return ReportCard(dataclasses.replace(machine, dtypes=dtypes), rows, "2026-01-01")


def test_a_real_card_has_every_row_with_its_numbers(real):
    assert [(r.workload, r.recipe.name) for r in real.rows] == [
        (workload, recipe) for workload in ("simple_net", "digits_resnet") for recipe in ("fp32", "amp_bf16")
    ]
    for r in real.rows:
        assert len(r.record.losses) == 12 and r.timing.median > 0 and r.peak_bytes > 0
        assert real.speedup(r) == pytest.approx(real.of(r.workload)[0].timing.median / r.timing.median)
    assert [r.accuracy is None for r in real.rows] == [True, True, False, False]


def test_saved_json_and_picture_hold_the_card(real, tmp_path):
    data, picture = save_report_card(real, tmp_path / "new" / "folder")
    read = json.loads(data.read_text())
    assert [r["recipe"] for r in read["rows"]] == [r.recipe.name for r in real.rows]
    assert read["machine"]["torch_version"] == torch.__version__
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_figure_writes_every_time_and_every_peak(real):
    figure = report_card_figure(real)
    words = " ".join(text.get_text() for axis in figure.axes for text in axis.texts)
    for cells in real.cells()[1:]:
        assert cells[2] in words and cells[4] in words


def test_table_is_in_the_text_and_in_the_html(real):
    for cell in (cell for cells in real.cells() for cell in cells):
        assert cell in repr(real) and cell in real._repr_html_()


def test_words_when_amp_helps(machine):
    text = card(machine, row(FP32, 0.02, accuracy=0.99), row(AMP_BF16, 0.01, peak=60, accuracy=0.985)).paragraph()
    assert "AMP bf16 helped: 2.00 times as fast (20.0 ms a step in fp32, 10.0 ms in AMP bf16)" in text
    assert "60% of fp32's" in text and "40% of that peak" in text
    assert "99.0% in fp32, 98.5% in AMP bf16" in text


def test_words_when_there_is_nothing_to_win(machine):
    text = card(machine, row(FP32, 0.01), row(AMP_BF16, 0.02), bf16=3.0).paragraph()
    assert "No recipe beat fp32: the fastest, AMP bf16, took 2.00 times as long" in text
    assert "nothing to win here: a bf16 matmul takes 3.00 times fp32's time" in text


def test_words_when_matmuls_are_faster_and_the_step_is_not(machine):
    text = card(machine, row(FP32, 0.01), row(AMP_BF16, 0.0101)).paragraph()
    assert "changed little" in text and "must be something else" in text


def test_words_for_a_run_cut_short(machine):
    cut = row(AMP_FP16, 0.5, steps=4)
    text = card(machine, row(FP32, 0.01), cut, row(AMP_BF16, 0.005)).paragraph()
    assert "AMP fp16 was stopped early" in text and "50 times fp32's" in text and "emulated" in text
    cells = card(machine, row(FP32, 0.01), cut).cells()[2]
    assert cells[7] == "–" and cells[9] == "4 of 20"
