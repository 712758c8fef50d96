"""Measure a step in every way that its explanation needs, and put the numbers together."""

from __future__ import annotations

import gc
import os
import statistics
import time

import torch
from torch.utils.data import DataLoader

from amp_course.kit.measure import Timing, synchronize
from amp_course.speed.explain import kinds
from amp_course.speed.explain.advice import Findings, advise
from amp_course.speed.explain.evidence import Evidence, watched
from amp_course.speed.explain.explanation import Explanation, in_order
from amp_course.speed.explain.kinds import KINDS, LAUNCH, LOW, sort_step
from amp_course.speed.explain.lines import time_lines
from amp_course.speed.explain.recording import StepRecord, record_steps
from amp_course.speed.explain.running import Runner
from amp_course.speed.explain.sampling import Sample, sampled
from amp_course.speed.explain.trials import MatmulTrial, try_fused, try_matmuls, usable_cores
from amp_course.speed.faults import page_faults, seconds_per_fault

_ROUNDS = 5  # turns of plain and recorded steps
_MOST_OPS = 60_000  # in all recorded steps: each costs some 20 µs to read
_SMALL_OPS = 300  # in the record from which the price of one call is read


def measure(run: Runner, device: torch.device | None, seconds: float) -> Explanation:
    """Run the step some dozens of times, for about `seconds`, and return what it shows; see `explain`."""
    notes: list[str] = []
    run.guarded()  # the first step allocates and loads, and what raises raises here
    evidence = Evidence()
    with watched(evidence):
        run.guarded()
    device = device or _device_of(evidence)
    gc.collect()
    run.guarded()
    start = time.perf_counter()
    run.guarded()
    synchronize(device)
    once = time.perf_counter() - start
    launch = _price_of_a_call(device)
    each = min(
        20, round(seconds / 3 / _ROUNDS / 3 / max(once, 1e-6)), _MOST_OPS // (_ROUNDS * 5 * len(evidence.calls) + 1)
    )
    each = max(1, each)
    rounds = _ROUNDS if once * 3 * _ROUNDS < 3 * seconds else 2
    plain: list[float] = []
    faults: list[int] = []
    records: list[StepRecord] = []
    samples: list[Sample] = []
    for _ in range(rounds):
        _take(run, each, device, plain, faults)
        with sampled(samples):
            records += record_steps(lambda: _whole(run, device), each, device)
    timing = Timing(tuple(plain))
    sorted_steps = [sort_step(record, launch) for record in records]
    recorded = statistics.median((record.main.end - record.main.start) / 1e9 for record in records)
    times = _fitted({kind: statistics.median(one[kind] for one in sorted_steps) / 1e9 for kind in KINDS}, timing.median)
    low = _low_dtype(evidence, device)
    trials = try_matmuls(evidence, device, (torch.float32, low), seconds / 4)
    cores, threads = usable_cores(), torch.get_num_threads()
    found = Findings(
        timing.median,
        times,
        evidence,
        time_lines(records, samples),
        trials,
        low,
        device.type,
        [(type(one).__name__, ratio) for one in evidence.optimizers if (ratio := try_fused(one, device)) is not None],
        (threads, cores),
        _with_threads(run, device, cores, each) if device.type == "cpu" and _may_change(threads, cores) else None,
        statistics.median(faults),
        statistics.median(faults) * seconds_per_fault() if device.type == "cpu" else 0.0,
        statistics.median(run.fetch_busy) if run.fetch_busy else None,
        run.batches.num_workers if isinstance(run.batches, DataLoader) else None,
        _cast_seconds(evidence, device, low),
    )
    ceiling, now = _ceiling(times, trials, low, timing.median)
    notes += _notes(found, timing, run, records)
    return Explanation(timing, in_order(times), recorded, ceiling, now, advise(found), tuple(notes))


def _whole(run: Runner, device: torch.device) -> None:
    run()
    synchronize(device)


def _take(run: Runner, steps: int, device: torch.device, seconds: list[float], faults: list[int]) -> None:
    for _ in range(steps):
        synchronize(device)
        before, start = page_faults(), time.perf_counter()
        _whole(run, device)
        seconds.append(time.perf_counter() - start)
        faults.append(page_faults() - before)


def _device_of(evidence: Evidence) -> torch.device:
    others = sorted(evidence.devices - {"cpu", "meta"})
    return torch.device(others[0]) if others else torch.device("cpu")


def _low_dtype(evidence: Evidence, device: torch.device) -> torch.dtype:
    used = [call.dtype for call in evidence.calls if call.kind == "matmul" and call.dtype in LOW]
    if used and used[0] in (torch.float16, torch.bfloat16):
        assert used[0] is not None
        return used[0]
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return torch.bfloat16


def _price_of_a_call(device: torch.device) -> int:
    """Return the nanoseconds of the smallest op, as the profiler sees it."""
    one = torch.ones(1, device=device)

    def calls() -> None:
        for _ in range(_SMALL_OPS):
            one.add_(0.0)

    record = record_steps(calls, 1, device)[0].main
    return int(statistics.median(child.own for child in record.children)) if record.children else 0


def _fitted(times: dict[str, float], seconds: float) -> dict[str, float]:
    """Make kinds add up to the plain step: what recording adds, it adds to the launches."""
    whole = sum(times.values())
    others = whole - times[LAUNCH]
    if others < seconds < whole:
        return {**times, LAUNCH: seconds - others}
    return {kind: value * seconds / whole for kind, value in times.items()} if whole else times


def _may_change(threads: int, cores: int) -> bool:
    """Tell whether another number of threads is worth a trial: more than cores never pay; fewer may be somebody's choice."""
    return threads > cores or (threads < cores and not {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys())


def _with_threads(run: Runner, device: torch.device, threads: int, steps: int) -> tuple[float, float]:
    """Return the median step as it is, and with another number of threads, taken in turn."""
    now = torch.get_num_threads()
    ours: dict[int, list[float]] = {now: [], threads: []}
    try:
        for _ in range(3):
            for number, seconds in ours.items():
                torch.set_num_threads(number)
                run()
                _take(run, min(steps, 4), device, seconds, [])
    finally:
        torch.set_num_threads(now)
    return statistics.median(ours[now]), statistics.median(ours[threads])


def _cast_seconds(evidence: Evidence, device: torch.device, low: torch.dtype) -> float:
    """Estimate what casting every fp32 matmul's inputs would take: their bytes, at the pace of one such cast."""
    moved = sum(call.bytes for call in evidence.calls if call.kind == "matmul" and call.dtype == torch.float32)
    if not moved:
        return 0.0
    sample = torch.ones(2**20, device=device)
    best = float("inf")
    for _ in range(5):
        synchronize(device)
        start = time.perf_counter()
        sample.to(low)
        synchronize(device)
        best = min(best, time.perf_counter() - start)
    return moved / sample.nbytes * best


def _ceiling(
    times: dict[str, float], trials: tuple[MatmulTrial, ...], low: torch.dtype, seconds: float
) -> tuple[float | None, float | None]:
    """Return how many times faster than fp32 the step could be, and is: the matmuls' time, scaled by what the trials took."""

    def ratio(chosen: list[MatmulTrial], dtype: torch.dtype) -> float:
        known = [one for one in chosen if dtype in one.other or one.dtype == dtype]
        mine = sum(one.count * one.seconds for one in known)
        return sum(one.count * one.other.get(dtype, one.seconds) for one in known) / mine if mine else 1.0

    lows = [one for one in trials if one.dtype in LOW]
    highs = [one for one in trials if one.dtype not in LOW]
    if not trials:
        return None, None
    in_low, in_high = times[kinds.LOW_MATMUL], times[kinds.FP32_MATMUL]
    rest = seconds - in_low - in_high
    fp32 = rest - times[kinds.CAST] + in_low * ratio(lows, torch.float32) + in_high * ratio(highs, torch.float32)
    best = rest - times[kinds.CAST] + in_low + in_high * ratio(highs, low)
    return fp32 / best, fp32 / seconds


def _notes(found: Findings, timing: Timing, run: Runner, records: list[StepRecord]) -> list[str]:
    notes = []
    evidence = found.evidence
    if not evidence.calls:
        notes.append("The step called no op of torch, so all of its time is Python's.")
    elif not evidence.ran_backward:
        notes.append("No backward pass was seen: this is what the forward pass alone takes.")
    elif not evidence.optimizers:
        notes.append("No optimizer of torch stepped, so nothing was trained.")
    if timing.q3 > 1.5 * timing.q1:
        notes.append(
            "The steps differ much in time, by more than half between the quartiles: the shares are those of a middling one."
        )
    sizes = sorted({_count(record) for record in records})
    if len(sizes) > 1 and sizes[-1] > 1.2 * sizes[0]:
        notes.append(f"The steps are not alike: the recorded ones called between {sizes[0]:,} and {sizes[-1]:,} ops.")
    load, cores = _load(), found.threads[1]
    if load > cores + 1:
        notes.append(
            f"Other programs keep this machine busy (a load of {load:.0f} on {cores} cores), so all times are longer than usual."
        )
    if run.passes > 1 and found.workers:
        notes.append(
            "`batches` ended and was started again, so starting its workers is part of what the step waits for."
        )
    places = sorted(evidence.matmul_devices())
    if len(places) > 1:
        notes.append(f"Matmuls ran on {' and '.join(places)}: the time is told for all of them together.")
    if found.device == "cuda" and not any(_has_kernels(record) for record in records):
        notes.append(
            "The profiler saw nothing of the GPU (it may lack the permission), so the kinds are those of the program's own time."
        )
    return notes


def _load() -> float:
    """Return how many processes wanted to run during the last minute, on average; 0 where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


def _has_kernels(record: StepRecord) -> bool:
    stack = [record.main, *record.others]
    while stack:
        op = stack.pop()
        if op.kernels:
            return True
        stack += op.children
    return False


def _count(record: StepRecord) -> int:
    stack, count = [record.main], 0
    while stack:
        op = stack.pop()
        count += op.name.startswith("aten::")
        stack += op.children
    return count
