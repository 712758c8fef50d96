"""Measure a step in every way that its explanation needs, and combine the numbers."""

from __future__ import annotations

import gc
import os
import statistics

import torch
from torch.utils.data import DataLoader

from amp_course.kit.hardware import usable_cores
from amp_course.kit.measure import best_seconds, clock
from amp_course.speed.counting import CAST, MATMUL, totals
from amp_course.speed.experiments.workbench import low_dtype
from amp_course.speed.explain import kinds
from amp_course.speed.explain.advice import advise
from amp_course.speed.explain.evidence import Evidence, watched
from amp_course.speed.explain.explanation import Explanation
from amp_course.speed.explain.findings import Findings
from amp_course.speed.explain.kinds import LOW
from amp_course.speed.explain.rounds import Rounds, price_of_a_call
from amp_course.speed.explain.running import Runner
from amp_course.speed.explain.trials import try_fused, try_matmuls
from amp_course.speed.faults import seconds_per_fault

_ROUNDS = 5  # turns of plain and recorded steps
_MOST_OPS = 60_000  # in all recorded steps: each costs some 20 µs to read


def measure(run: Runner, seconds: float) -> Explanation:
    """Run the step again and again, for about `seconds`, and return what it shows."""
    run.guarded()  # the first step allocates and loads; errors of the step are raised here
    first = _watch(run)
    device, ops = _device_of(first), 5 * len(first.calls)
    del first
    gc.collect()
    run.guarded()
    once = clock(run.guarded, device)
    turns = Rounds(run, device, price_of_a_call(device))
    slow = once * 3 * _ROUNDS > 3 * seconds
    plain = max(1, min(40, round(seconds / 9 / _ROUNDS / max(once, 1e-6))))
    recorded = max(1, min(plain, 20, _MOST_OPS // (_ROUNDS * ops + 1)))
    for _ in range(2 if slow else _ROUNDS):
        turns.take(plain, recorded)
    evidence = _watch(run)
    timing, times, took = turns.timing, turns.times(), statistics.median(turns.recorded)
    if busy := turns.busy:
        return Explanation(timing, times, took, None, None, (), (_count(evidence),), busy)
    found = _findings(run, turns, evidence, max(3, min(plain, 4)), seconds)
    notes = tuple(_notes(found, turns))
    return Explanation(timing, times, took, *_ceiling(found), advise(found), notes)


def _watch(run: Runner) -> Evidence:
    evidence = Evidence()
    with watched(evidence):
        run.guarded()
    return evidence


def _count(evidence: Evidence) -> str:
    """Say what a step does in numbers that do not depend on how busy the machine is."""
    kinds, repeated = [call.kind for call in evidence.calls], evidence.repeated_casts()
    reads = sum(evidence.reads.values())
    line = evidence.reads.most_common(1)[0][0] if reads else None
    return (
        f"The counts do not depend on that. Ops in a step: {len(kinds):,}, of which "
        f"{kinds.count(MATMUL):,} matmuls and {kinds.count(CAST):,} casts. Tensors cast more than "
        f"once, unchanged: {len(repeated):,}. Values read: {reads:,}{f' ({line})' if line else ''}."
    )


def _findings(
    run: Runner, turns: Rounds, evidence: Evidence, steps: int, seconds: float
) -> Findings:
    device, low = turns.device, _low_dtype(evidence, turns.device)
    cores, threads, on_cpu = usable_cores(), torch.get_num_threads(), turns.device.type == "cpu"
    faults = statistics.median(turns.faults)
    return Findings(
        seconds=turns.timing.median,
        times=turns.times(),
        evidence=evidence,
        lines=turns.lines,
        trials=try_matmuls(evidence, device, (torch.float32, low), seconds / 4),
        low=low,
        device=device.type,
        fused=[
            (type(one).__name__, ratio)
            for one in evidence.optimizers
            if (ratio := try_fused(one, device)) is not None
        ],
        threads=(threads, cores),
        other_threads=_with_threads(run, device, cores, steps)
        if on_cpu and _may_change(threads, cores)
        else None,
        faults=faults,
        fault_seconds=faults * seconds_per_fault() if on_cpu else 0.0,
        fetch_busy=statistics.median(run.fetch_busy) if run.fetch_busy else None,
        crowded=turns.timing.waited is None and _load() > cores,
        workers=run.batches.num_workers if isinstance(run.batches, DataLoader) else None,
        cast_seconds=_cast_seconds(evidence, device, low),
    )


def _device_of(evidence: Evidence) -> torch.device:
    others = sorted(evidence.devices - {"cpu", "meta"})
    return torch.device(others[0]) if others else torch.device("cpu")


def _low_dtype(evidence: Evidence, device: torch.device) -> torch.dtype:
    used = [call.dtype for call in evidence.calls if call.kind == MATMUL and call.dtype in LOW]
    return used[0] if used and used[0] in (torch.float16, torch.bfloat16) else low_dtype(device)


def _may_change(threads: int, cores: int) -> bool:
    """Return True if a thread for each core is worth a trial; fewer may be the user's choice."""
    chosen = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys()
    return threads > cores or (threads < cores and not chosen)


def _with_threads(
    run: Runner, device: torch.device, threads: int, steps: int
) -> tuple[float, float]:
    """Return the median step as it is, and with another number of threads, taken in turn."""
    now = torch.get_num_threads()
    taken: dict[int, list[float]] = {now: [], threads: []}
    try:
        for _ in range(3):
            for number, seconds in taken.items():
                torch.set_num_threads(number)
                run()
                seconds += (clock(run, device) for _ in range(steps))
    finally:
        torch.set_num_threads(now)
    return statistics.median(taken[now]), statistics.median(taken[threads])


def _cast_seconds(evidence: Evidence, device: torch.device, low: torch.dtype) -> float:
    """Estimate the seconds of casting every fp32 matmul's inputs, at the pace of one cast."""
    fp32 = (call for call in evidence.calls if call.dtype == torch.float32)
    moved = totals(fp32, MATMUL).bytes
    if not moved:
        return 0.0
    sample = torch.ones(2**20, device=device)
    return moved / sample.nbytes * best_seconds(lambda: sample.to(low), device, least=5)


def _ceiling(found: Findings) -> tuple[float | None, float | None]:
    """Return how many times faster than fp32 the step could be and is, by scaling the time of its
    matmuls as in the trials.
    """
    if not found.trials:
        return None, None

    def ratio(is_low: bool, dtype: torch.dtype) -> float:
        trials = [one for one in found.trials if (one.dtype in LOW) == is_low]
        known = [one for one in trials if dtype in one.other or one.dtype == dtype]
        before = sum(one.count * one.seconds for one in known)
        after = sum(one.count * one.other.get(dtype, one.seconds) for one in known)
        return after / before if before else 1.0

    low, high = found.times[kinds.LOW_MATMUL], found.times[kinds.FP32_MATMUL]
    rest = found.seconds - low - high - found.times[kinds.CAST]
    fp32 = rest + low * ratio(True, torch.float32) + high * ratio(False, torch.float32)
    best = rest + low + high * ratio(False, found.low)
    return fp32 / best, fp32 / found.seconds


def _notes(found: Findings, turns: Rounds) -> list[str]:
    notes, timing, run = [], turns.timing, turns.run
    evidence = found.evidence
    if not evidence.calls:
        notes.append("The step called no op of torch, so all of its time is Python's.")
    elif not evidence.ran_backward:
        notes.append("No backward pass was seen: this is what the forward pass alone takes.")
    elif not evidence.optimizers:
        notes.append("No optimizer of torch stepped, so nothing was trained.")
    if timing.q3 > 1.5 * timing.q1:
        notes.append(
            "The steps differ much in time, by more than half between the quartiles: the shares "
            "are those of a middling one."
        )
    # without the few steps that do something else
    tenth, sizes = len(turns.ops) // 10, sorted(turns.ops)
    sizes = sizes[tenth : len(sizes) - tenth]
    if sizes[-1] > 1.2 * sizes[0]:
        notes.append(
            f"The steps are not alike: the recorded ones called between {sizes[0]:,} and "
            f"{sizes[-1]:,} ops."
        )
    load, cores = _load(), found.threads[1]
    if timing.waited is None and load > cores + 1:
        notes.append(
            f"Other programs keep this machine busy (a load of {load:.0f} on {cores} cores), so "
            f"all times are longer than usual."
        )
    if run.passes > 1 and found.workers:
        notes.append(
            "`batches` ended and was started again, so starting its workers is part of what the "
            "step waits for."
        )
    places = sorted(evidence.matmul_devices())
    if len(places) > 1:
        notes.append(
            f"Matmuls ran on {' and '.join(places)}: the times are those of all of them together."
        )
    if found.device == "cuda" and not turns.saw_kernels:
        notes.append(
            "The profiler saw nothing of the GPU (it may lack the permission), so the kinds are "
            "those of the program's own time."
        )
    return notes


def _load() -> float:
    """Return the system's load of the last minute; 0 where it gives none."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0
