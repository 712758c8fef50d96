"""How the time of a recorded step is sorted, on trees of ops that are built by hand."""

import random

import pytest
import torch

from amp_course.speed.explain.kinds import (
    CAST,
    FP32_MATMUL,
    FP32_OP,
    KINDS,
    LAUNCH,
    LOW_MATMUL,
    LOW_OP,
    OPTIMIZER,
    SYNC,
    WAIT,
    sort_step,
)
from amp_course.speed.explain.recording import DATA, STEP, Op, StepRecord
from amp_course.speed.explain.sampling import Line, LineTimes, Sample, time_lines

F32, B16 = torch.float32, torch.bfloat16


def op(name, start, end, *children, dtypes=(F32,), kernels=()):
    return Op(name, start, end, dtypes, children, kernels)


def cast(start, end, after, before):
    copy = op("aten::copy_", start + 2, end - 2, dtypes=(after, before))
    return op("aten::to", start, end, op("aten::_to_copy", start + 1, end - 1, copy))


def sorted_times(*children, launch=0, end=1000, others=()):
    times = sort_step(StepRecord(op(STEP, 0, end, *children, dtypes=()), others), launch)
    return {kind: time for kind, time in times.items() if time}


def test_every_kind_gets_its_time_and_the_rest_is_launch_and_python():
    optimizer = [op("aten::item", 510, 520), op("aten::add_", 520, 600)]
    low = op("aten::addmm", 150, 290, dtypes=(B16, B16, B16))
    assert sorted_times(
        op(DATA, 0, 100, op("aten::stack", 10, 90)),
        op("aten::linear", 100, 300, cast(100, 130, B16, F32), low),
        op("aten::relu", 300, 340, dtypes=(B16,)),
        op("aten::sum", 340, 350),
        op("autograd::engine::evaluate_function: MmBackward0", 400, 500, op("aten::mm", 410, 480)),
        op("Optimizer.step#SGD.step", 500, 700, *optimizer),
        op("aten::item", 700, 760, op("aten::_local_scalar_dense", 710, 750)),
        op("Optimizer.zero_grad#SGD.zero_grad", 800, 810),
    ) == {
        WAIT: 100,
        CAST: 30,
        LOW_MATMUL: 140,
        LOW_OP: 40,
        FP32_OP: 10,
        FP32_MATMUL: 70,
        OPTIMIZER: 210,
        SYNC: 60,
        LAUNCH: 1000 - 660,
    }


def test_a_to_that_changes_no_dtype_is_no_cast():
    assert sorted_times(op("aten::to", 0, 10), end=10) == {LAUNCH: 10}
    assert sorted_times(cast(0, 10, F32, F32), end=10) == {LAUNCH: 4, FP32_OP: 6}
    assert CAST not in sorted_times(cast(0, 10, F32, torch.int64), end=10)


def test_the_price_of_a_call_is_taken_from_each_op_and_never_more_than_it_took():
    assert sorted_times(op("aten::mm", 0, 100), op("aten::add", 100, 103), launch=5, end=103) == {
        FP32_MATMUL: 95,
        LAUNCH: 8,
    }


def test_what_a_matmul_calls_is_the_matmul_but_for_its_casts():
    copy = op("aten::copy_", 10, 30, dtypes=(F32, F32))
    whole = op("aten::addmm", 0, 100, copy, cast(30, 50, B16, F32))
    assert sorted_times(whole, end=100) == {FP32_MATMUL: 80, CAST: 20}


def test_times_add_up_to_the_step_whatever_is_in_it():
    draw = random.Random(0)
    names = ["aten::mm", "aten::add", "aten::to", "aten::view", "aten::item"]
    names += ["autograd::x", "Optimizer.step#A", "own::op"]

    def grow(start, end, depth):
        children, at = [], start
        while depth and at < end - 10 and draw.random() < 0.8:
            first = draw.randint(at, end - 5)
            last = draw.randint(first, end)
            children.append(grow(first, last, depth - 1))
            at = last
        dtypes = draw.choice([(), (F32,), (B16,), (B16, F32), (torch.int64, B16)])
        return op(draw.choice(names), start, end, *children, dtypes=dtypes)

    for _ in range(100):
        step = StepRecord(op(STEP, 0, 5000, *grow(0, 5000, 4).children, dtypes=()))
        times = sort_step(step, draw.randint(0, 50))
        assert sum(times.values()) == 5000 and set(times) == set(KINDS) and min(times.values()) >= 0


def test_on_an_accelerator_kernels_fill_the_time_and_idle_moments_have_a_cause():
    # The loader until 100; two kernels back to back; the queue runs empty at 400, and a read of a
    # value ends there.
    main = [
        op(DATA, 0, 100, dtypes=()),
        op("aten::mm", 100, 110, kernels=((120, 300),), dtypes=(B16,)),
        op("aten::relu", 110, 120, kernels=((300, 400),)),
        op("cudaStreamSynchronize", 130, 400, dtypes=()),
        op("aten::add", 500, 510, kernels=((520, 600),)),
    ]
    assert sorted_times(*main, end=1000) == {
        WAIT: 100,
        LOW_MATMUL: 180,
        FP32_OP: 100 + 80,
        SYNC: 120,
        LAUNCH: 20 + 400,
    }


def test_kernels_that_autograd_started_in_its_own_thread_count_once_where_they_overlap():
    matmul = op("aten::mm", 50, 60, kernels=((60, 200),))
    backward = op("autograd::engine::evaluate_function: MmBackward0", 50, 60, matmul)
    forward = op("aten::mm", 0, 10, kernels=((10, 150),), dtypes=(B16,))
    times = sorted_times(forward, end=200, others=(backward,))
    assert times == {LAUNCH: 10, LOW_MATMUL: 140, FP32_MATMUL: 50}


def test_samples_go_to_the_line_that_ran_and_to_what_it_ran():
    ran = (op(DATA, 0, 100), op("aten::mm", 200, 400), op("Optimizer.step#S", 800, 900))
    record = StepRecord(op(STEP, 0, 1000, *ran))
    here, log = Line("/mine.py", 3), Line("/mine.py", 9)
    times = LineTimes()
    time_lines(
        [record],
        [
            Sample(50, here, (), False),  # waiting for data
            Sample(150, here, (), False),  # Python
            Sample(300, here, (), False),  # in the matmul
            Sample(500, log, ("logging",), False),
            Sample(600, here, ("torch.nn.modules.module",), True),  # torch's own Python
            Sample(850, here, ("torch.optim.sgd",), True),
            Sample(2000, here, (), False),  # after the step
        ],
        times,
    )
    assert times.steps == 6 and times.gaps == 3
    assert times.data == {here: 1} and times.python == {here: 1, log: 1}
    assert times.calling == {here: 1}
    assert times.ops == {here: 2} and times.logging == {log: 1} and times.logs == {log}


@pytest.mark.parametrize(
    ("text", "logs"),
    [
        ("print(loss)", True),
        ("logger.info(loss)", True),
        ('self.log("loss", loss)', True),
        ('run.log({"loss": loss})', True),
        ("writer.add_scalar(name, loss, step)", True),
        ("file.write(line)", True),
        ("torch.save(model, path)", True),
        ("loss = torch.log(p)", False),
        ("loss = -p.log()", False),
        ("return F.log_softmax(x, -1)", False),
        ("ctx.save_for_backward(x)", False),
        ("self.blueprint(x)", False),
        ("catalog(x)", False),
    ],
)
def test_logging_is_distinguished_from_logarithms(text, logs, monkeypatch):
    monkeypatch.setattr(Line, "text", text)
    times = LineTimes()
    time_lines([StepRecord(op(STEP, 0, 10))], [Sample(5, Line("/mine.py", 1), (), False)], times)
    assert bool(times.logs) == logs
