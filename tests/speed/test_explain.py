"""`explain` on real steps: what it counts exactly, what it leaves alone,
and what it says of steps that do not run.
"""

import gc
import html
import itertools
import multiprocessing
import re
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.profiler import profile
from torch.utils.data import DataLoader, TensorDataset

from amp_course.checking.limit import within
from amp_course.kit import measure
from amp_course.kit.threads import one_thread
from amp_course.speed.explain import KINDS, Explanation, StepFailed, explain, rounds
from amp_course.speed.explain.evidence import Evidence, watched
from amp_course.speed.explain.recording import _within, record_steps
from amp_course.speed.explain.running import Runner
from amp_course.speed.explain.sampling import user_line
from benchmarks.planted_slow import PLANTED


def training(width=64, low=False, after=lambda loss, model: None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x, y):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after(loss, model)

    return step, model


def batches(width=64, number=3):
    return [(torch.randn(16, width), torch.randint(4, (16,))) for _ in range(number)]


def quick(step, data=None, **more):
    return explain(step, data, **{"seconds": 0.1, **more})


def test_kinds_add_up_to_the_step_which_really_trains_and_leaves_settings_as_they_were():
    step, model = training()
    data, before = batches(), [parameter.clone() for parameter in model.parameters()]
    threads, interval = torch.get_num_threads(), sys.getswitchinterval()
    state = torch.get_rng_state()
    found = quick(step, data)
    assert (torch.get_num_threads(), sys.getswitchinterval()) == (threads, interval)
    assert torch.equal(torch.get_rng_state(), state)
    after = [*model.parameters()]
    assert all(parameter.grad is None and parameter.isfinite().all() for parameter in after)
    assert not all(map(torch.equal, before, after))
    assert isinstance(found, Explanation) and set(found.kinds) == set(KINDS)
    assert sum(found.kinds.values()) == pytest.approx(found.seconds, rel=1e-6)
    assert list(found.kinds.values()) == sorted(found.kinds.values(), reverse=True)
    assert found.kinds["low-precision matmul"] == found.kinds["cast"] == 0
    assert found.kinds["fp32 matmul"] > 0
    page = str(found)
    assert page.startswith("A step takes ") and "where the time goes" in page
    assert "<table" in found._repr_html_()


def test_amp_shows_up_in_the_kinds():
    # 16 bits may be emulated here, and then they take longer; what they are called depends on
    # nothing.
    kinds = quick(training(low=True)[0], batches()).kinds
    assert kinds["fp32 matmul"] == 0 < kinds["low-precision matmul"] and kinds["cast"] > 0


def test_a_loader_that_sleeps_is_named_first():
    step, _ = training()

    class Slow(TensorDataset):
        def __getitem__(self, index):
            time.sleep(0.002)
            return super().__getitem__(index)

    x, y = torch.randn(32, 64), torch.randint(4, (32,))
    with one_thread():  # several wait for one another on a busy machine
        found = quick(step, DataLoader(Slow(x, y), batch_size=8))
    assert found.advice[0].cause == "slow-source"
    assert found.kinds["waiting for data"] > found.seconds / 2
    assert "time.sleep(0.002)" in found.advice[0].evidence


def let_wait(monkeypatch, share):
    """Let the kernel's counts say that the process waits for a share of the time."""
    began = time.monotonic()
    waits = lambda: {"main": int((time.monotonic() - began) * 1e9 * share)}  # noqa: E731
    monkeypatch.setattr(measure, "read_waits", waits)


def test_on_a_busy_machine_nothing_is_claimed_and_what_is_counted_is_said(monkeypatch):
    let_wait(monkeypatch, 0.6)

    def fetched():  # bound by CPU work, as in the case that was called a slow source
        for batch in batches() * 400:
            sum(number * number for number in range(20_000))
            yield batch

    found = quick(training(after=lambda loss, model: loss.item())[0], fetched())
    assert found.advice == () and found.ceiling is None and found.now is None
    for page in (str(found), found._repr_html_()):
        words = " ".join(page.split())
        assert "too busy to tell: this process waited for a CPU 60% of the time" in words
        assert not re.search("slow|Fix|share|source|Nothing stands out", words)
        assert "Ops in a step: " in words and "Values read: 1 (line " in words
    assert found.timing.waited == pytest.approx(0.6, abs=0.05)


def test_threads_that_crowd_each_other_are_no_other_program(monkeypatch):
    """With more threads than cores the steps wait for each other;
    what one thread alone waits is what counts.
    """
    waited = [0]
    monkeypatch.setattr(measure, "read_waits", lambda: {"main": waited[0]})

    def step():
        waited[0] += 10**9

    for cores, share in ((64, 1.0), (0, 0.0)):
        monkeypatch.setattr(rounds, "usable_cores", lambda cores=cores: cores)
        turns = rounds.Rounds(Runner(step, None, 30.0), torch.device("cpu"), 0)
        turns.take(2, 1)
        assert turns.timing.waited == share


COMPETE = (
    "The loader's 2 workers compete with the training for the 4 cores: one of them waited "
    "for a CPU 60% of the time."
)


def test_workers_that_fill_the_cores_are_no_other_program(monkeypatch):
    """On 4 cores, beside a step that runs on one: who has most of the other three?"""
    let_wait(monkeypatch, 0.6)
    began = time.monotonic()
    monkeypatch.setattr(rounds, "usable_cores", lambda: 4)
    monkeypatch.setattr(time, "process_time", lambda: time.monotonic() - began)
    monkeypatch.setattr(rounds, "worker_seconds", lambda: 2.9 * (time.monotonic() - began))
    x, y = torch.randn(160, 64), torch.randint(4, (160,))
    found = quick(training()[0], DataLoader(TensorDataset(x, y), batch_size=16, num_workers=2))
    for page in (str(found), found._repr_html_()):
        words = " ".join(html.unescape(page).split())
        assert COMPETE in words and "Close other programs" not in words
        assert "where the time goes" not in words


def test_shares_of_the_cores(monkeypatch):
    monkeypatch.setattr(rounds, "usable_cores", lambda: 4)
    taken = {"plain": [0.5], "wait": SimpleNamespace(share=0.6), "clock": 10.0, "ran": 10.0}
    mine, others = (
        rounds.Rounds(None, None, 0, workers=2, worked=worked, **taken) for worked in (16.0, 14.0)
    )
    shares = "Preparing batches had 40% of the cores, and other programs 35% at most."
    assert mine.busy.startswith(f"{COMPETE} {shares}")
    assert "Close other programs" in others.busy == others.timing.busy
    taken["wait"] = SimpleNamespace(share=0.1)
    assert rounds.Rounds(None, None, 0, workers=2, worked=16.0, **taken).busy == ""


def burn(queue, stop):
    while time.process_time() < 0.2:
        pass
    queue.put(time.process_time())
    stop.wait()


def test_the_time_of_workers_counts_while_they_run_and_once_they_have_ended():
    context = multiprocessing.get_context("fork")
    queue, stop = context.Queue(), context.Event()
    before = rounds.worker_seconds()
    child = context.Process(target=burn, args=(queue, stop))
    child.start()
    took = queue.get(timeout=120)
    assert rounds.worker_seconds() - before == pytest.approx(took, abs=0.1)
    stop.set()
    child.join()
    assert rounds.worker_seconds() - before == pytest.approx(took, abs=0.1)


def test_python_that_runs_for_long_is_named_with_its_line():
    def after(loss, model):
        sum(number * number for number in range(200_000))

    found = quick(training(after=after)[0], batches())
    assert found.advice[0].cause == "python" and "range(200_000)" in found.advice[0].evidence


def test_reads_and_repeated_casts_are_counted_exactly():
    weight = nn.Parameter(torch.randn(32, 32))
    losses = []

    def step():
        x = torch.randn(8, 32).bfloat16()
        for _ in range(5):
            x = x @ weight.bfloat16()
        loss = x.float().sum()
        loss.backward()
        losses.append(loss.item())
        if loss > 0 and weight.grad.isnan().any():
            raise AssertionError
        weight.grad = None

    evidence = Evidence()
    with watched(evidence):
        step()
    assert sum(evidence.reads.values()) == 2 + (losses[-1] > 0)
    cast, count = evidence.repeated_casts()[0]
    assert (cast.source[2], count) == ((32, 32), 5)
    assert cast.line.text == "x = x @ weight.bfloat16()"
    assert len(evidence.repeated_casts()) == 1
    assert evidence.uses_low and evidence.ran_backward and evidence.optimizers == []


def test_a_weight_that_changes_between_casts_is_not_cast_again():
    weight = torch.randn(8, 8)
    evidence = Evidence()
    with watched(evidence):
        for _ in range(3):
            weight.bfloat16()
            weight.mul_(0.5)
    assert evidence.repeated_casts() == []


def failing(x, y):
    raise ValueError("shapes do not match")


@pytest.mark.parametrize(
    ("step", "data", "error", "words"),
    [
        (failing, batches(), StepFailed, "step 1 raised ValueError: shapes do not match"),
        (training()[0], [], StepFailed, "`batches` is empty"),
        (training()[0], iter(batches(number=2)), StepFailed, "`batches` ended after 2 steps, and"),
        (training()[0], batches()[0][0], TypeError, "batches is a Tensor: pass a DataLoader"),
        (training()[0], 3, TypeError, "batches is a int"),
        (3, batches(), TypeError, "train_step is a int, which cannot be called"),
        (training()[0], [(torch.zeros(1),)], StepFailed, "cannot be called with it"),
        (training()[0], None, StepFailed, "step 1 raised TypeError"),
    ],
)
def test_what_cannot_be_run_is_said_in_a_sentence(step, data, error, words):
    with pytest.raises(error) as raised:
        quick(step, data)
    assert words in str(raised.value)


def test_a_loader_or_a_step_that_hangs_is_stopped():
    def hanging():
        yield from batches(number=1)
        time.sleep(30)

    with pytest.raises(StepFailed, match=r"no batch within 0\.2 s: the loader hangs"):
        quick(lambda x, y: None, hanging(), patience=0.2)
    with pytest.raises(StepFailed, match=r"step 1 was not done within 0\.2 s"):
        quick(lambda: time.sleep(30), patience=0.1)


def test_inside_another_profiler_it_says_so():
    with profile(), pytest.raises(RuntimeError, match="another profiler"):
        quick(training()[0], batches())


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda: None, "called no op of torch"),
        (lambda: torch.ones(4, 4) @ torch.ones(4, 4), "No backward pass was seen"),
        (lambda: nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward(), "nothing was trained"),
    ],
)
def test_a_step_that_trains_nothing_is_explained_with_a_note(step, words):
    found = quick(step)
    assert any(words in note for note in found.notes)
    assert sum(found.kinds.values()) == pytest.approx(found.seconds)


@pytest.mark.slow
def test_a_step_that_is_not_repeatable_gets_a_note():
    turns = itertools.count(1)
    weight = nn.Parameter(torch.ones(8, 8))

    def step():
        # Each recorded step does more than the last, however many plain ones a machine fits in
        # between.
        for _ in range(next(turns) if torch.autograd._profiler_enabled() else 1):
            (weight @ weight).sum().backward()

    assert any("not alike" in note for note in quick(step).notes)


def test_the_planted_steps_train_the_same_with_and_without_their_cause():
    """The fix changes the time and not the training:
    same losses, where the cause is no other net.
    """
    names = [planted.name for planted in PLANTED]
    assert len(names) == len(set(names)) == 10
    for planted in PLANTED:
        for fixed in (False, True):
            step, data = planted.build(fixed)
            for batch in itertools.islice(data, 1):
                step(*batch)


def test_what_autograds_thread_did_belongs_to_the_step_in_which_it_ran():
    def node(start, end, *children):
        return SimpleNamespace(start_time_ns=start, end_time_ns=end, children=children)

    # As on a GPU: one node spans both steps, 0 to 10 and 10 to 20, and holds what ran in them.
    spanning = node(-5, 99, node(1, 3, node(2, 3)), node(4, 9), node(12, 13), node(30, 40))
    for (start, end), ran in {(0, 10): [1, 4], (10, 20): [12], (20, 29): []}.items():
        assert [one.start_time_ns for one in _within(spanning, start, end)] == ran


def test_no_record_waits_for_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        before = sum(type(one) is profile for one in gc.get_objects())
        record_steps(lambda: torch.ones(2).add_(1), 2, torch.device("cpu"))
        assert sum(type(one) is profile for one in gc.get_objects()) == before
    finally:
        gc.enable()


def test_the_time_limit_that_fetches_a_batch_is_no_line_of_the_readers():
    lines = []
    within(5.0, lambda: lines.append(user_line(sys._getframe(1))))
    assert lines[0] is not None and lines[0].file == __file__
