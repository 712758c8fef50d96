"""Exercise 5 of chapter 09: read a trace. A test of `right` removes each cause and runs the step
again.
"""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

from amp_course.checking import Card, Case, Exercise, Mistake, Wrong, call_answer
from amp_course.speed.traces import (
    BOTTLENECKS,
    FP32,
    SYNC,
    Step,
    Trace,
    draw_step,
    example_traces,
    run,
    scaled,
)

card = Card(
    chapter="speed",
    name="name_bottleneck",
    number=5,
    title="Name the bottleneck",
    difficulty=3,
    importance=5,
    minutes=15,
    lines=7,
    task="Write `name_bottleneck(trace)`: what limits the step that was traced? Return the name "
    "of the cause whose removal would shorten the step the most: 'data' (batches arrive too late), "
    "'launch' (the host launches too slowly), 'sync' (it reads values too often), 'fp32' (matmuls "
    "in fp32) or 'memory' (casts and other kernels, which move bytes). The check uses the five "
    "traces below, and others like them.",
    hints=(
        "Start with one question: is the GPU busy for most of the step? If so, whatever the "
        "host does meanwhile costs nothing.",
        "If the GPU is busy, ask what it does: compare `fp32_ms` with `cast_ms + other_ms`. If it "
        "is idle, ask what the host does.",
        "If `busy_ms < 0.7 * step_ms`, the largest of `load_ms`, `launch_ms` and `read_ms` is the "
        "answer. If not, it is the larger of the two sums on the GPU.",
    ),
    why="Host and GPU work at the same time, so most of the times in a trace overlap. You "
    "gain only from what the GPU waits for or is busy with.",
    alternative="remove one cause after the other in a simulation and see which step is the "
    "shortest: `FIXES` in `amp_course.speed.traces`. For a real step, `explain` estimates this.",
)


def reference(trace: Trace) -> str:
    return max(_host(trace) if _idle(trace) else _gpu(trace))[1]


def _idle(trace: Trace) -> bool:
    return trace.busy_ms < 0.7 * trace.step_ms


def _host(trace: Trace) -> list[tuple[float, str]]:
    return [(trace.load_ms, "data"), (trace.launch_ms, "launch"), (trace.read_ms, "sync")]


def _gpu(trace: Trace) -> list[tuple[float, str]]:
    return [(trace.fp32_ms, "fp32"), (trace.cast_ms + trace.other_ms, "memory")]


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """The five traces of the notebook, and two drawn ones of each kind: one with few kernels and
    reads, one with many.
    """
    traces = {f"for trace {name}": trace for name, trace in example_traces().items()}
    for number, (kind, few) in enumerate(itertools.product(BOTTLENECKS, (True, False)), 1):
        step = recounted(draw_step(kind, draw, misleading=few), kind, draw, few=few)
        traces[f"for drawn trace {number}"] = run(scaled(step, 10 ** draw.uniform(-1.0, 1.0)))
    for case, trace in traces.items():
        got = call_answer(answer, case, dataclasses.replace(trace))  # a copy: they are shared
        name = got.strip().lower() if isinstance(got, str) else ""
        if name not in BOTTLENECKS:
            plain = got is None or isinstance(got, (str, int, float))
            shown = repr(got) if plain else f"an object of type {type(got).__name__}"
            names = ", ".join(map(repr, BOTTLENECKS))
            raise Wrong(f"{case}, your function returned {shown}: return one of {names}")
        busy = trace.busy_ms / trace.step_ms
        why = (
            f"the GPU is idle for {1 - busy:.0%} of the step, and the host waits "
            f"{trace.load_ms:.1f} ms for a batch, launches kernels for {trace.launch_ms:.1f} ms "
            f"and waits {trace.read_ms:.1f} ms in reads"
            if _idle(trace)
            else f"the GPU is busy for {busy:.0%} of the step, {trace.fp32_ms:.1f} ms with matmuls "
            f"in fp32 and {trace.cast_ms + trace.other_ms:.1f} ms with casts and other kernels"
        )
        facts = {"trace": trace, "longest": trace.largest[1], "why": why}
        yield Case(case, {"the bottleneck": name}, facts)


def recounted(step: Step, kind: str, draw: random.Random, *, few: bool) -> Step:
    """Return such a step with few or many kernels and reads, so that no count reveals its `kind`:
    three short kernels become one, or each becomes three. Each step waits for data for a while.
    """
    limit = max(time for _, time in step.kernels) / 5
    kernels = [one for one in step.kernels if one[1] >= limit]
    for name in dict.fromkeys(name for name, _ in step.kernels):
        short = [time for one, time in step.kernels if one == name and time < limit]
        joined = [sum(short[at : at + 3]) for at in range(0, len(short), 3)]
        kernels += [(name, time) for time in (joined if few else [t / 3 for t in short] * 3)]
    draw.shuffle(kernels)
    reads = draw.randint(*((40, 60) if not few else (6, 9) if kind == SYNC else (1, 3)))
    return Step(
        max(step.load_ms, 1.8),
        tuple(kernels),
        step.launch_ms * len(step.kernels) / len(kernels),
        # Early, so that the queue fills later.
        frozenset(draw.sample(range(1, len(kernels) // 3), reads)),
        step.read_ms * len(step.reads) / reads,
    )


def _of_longest_kernel(trace: Trace) -> str:
    return "fp32" if trace.largest[0] == FP32 else "memory"


def _idle_means(name: str) -> Callable[[Trace], str]:
    return lambda trace: name if _idle(trace) else reference(trace)


def _busy_means(name_of: Callable[[Trace], str]) -> Callable[[Trace], str]:
    return lambda trace: reference(trace) if _idle(trace) else name_of(trace)


def _swapped(one: str, other: str) -> Callable[[Trace], str]:
    return lambda trace: {one: other, other: one}.get(reference(trace), reference(trace))


mistakes = [
    Mistake(
        "takes the longest kernel for the cause",
        "you name the kind of the longest kernel, which takes {longest:.1f} ms of "
        "{trace.step_ms:.1f}: {why}",
        answer=_of_longest_kernel,
        violates="shorten the step the most",
    ),
    Mistake(
        "the longest kernel of a busy GPU",
        "you name the kind of the longest kernel, which takes {longest:.1f} ms. Add up all "
        "kernels of a kind: {why}",
        answer=_busy_means(_of_longest_kernel),
    ),
    *(
        Mistake(
            f"calls every idle GPU {words}",
            "a GPU can be idle for three reasons, but you always name the same one. Here {why}",
            answer=_idle_means(name),
            violates=violates,
        )
        for name, words, violates in (
            ("data", "data loading", "'data' (batches arrive too late)"),
            ("launch", "launch-bound", "'launch' (the host launches too slowly)"),
            ("sync", "synchronisation", "'sync' (it reads values too often)"),
        )
    ),
    Mistake(
        "confuses launch and sync",
        "you swap two names: 'launch' is the time for starting kernels, 'sync' is waiting in "
        "reads. Here {why}",
        answer=_swapped("launch", "sync"),
    ),
    Mistake(
        "confuses fp32 and memory",
        "you swap two names: 'fp32' is for matmuls in fp32, 'memory' for casts and other kernels. "
        "Here {why}",
        answer=_swapped("fp32", "memory"),
    ),
    Mistake(
        "asks the host alone",
        "you name what takes the host the longest, {trace.read_ms:.1f} ms of waiting in reads. But "
        "the GPU works meanwhile, so that costs nothing: {why}",
        answer=lambda trace: max(_host(trace))[1],
        violates="what limits the step",
    ),
    Mistake(
        "asks the GPU alone",
        "you name what takes the GPU the longest, but it hardly works at all: {why}",
        answer=lambda trace: max(_gpu(trace))[1],
    ),
    Mistake(
        "the longest time of all",
        "you name the longest of all times, on the host or on the GPU, but those overlap. First "
        "check whether the GPU is busy: {why}",
        answer=lambda trace: max(_host(trace) + _gpu(trace))[1],
    ),
    Mistake(
        "forgets loading",
        "the GPU waits for its batches here, but you name another cause: {why}",
        answer=lambda trace: (
            max(_host(trace)[1:])[1] if reference(trace) == "data" else reference(trace)
        ),
    ),
    Mistake(
        "many kernels",
        "you answer 'launch' for a step of {trace.kernels} kernels, but their time counts, not "
        "their number: {why}",
        answer=lambda trace: "launch" if trace.kernels > 300 else reference(trace),
    ),
    Mistake(
        "short kernels",
        "the kernels are shorter than their launches, but the GPU waits for something else: {why}",
        answer=lambda trace: "launch" if trace.busy_ms < trace.launch_ms else reference(trace),
    ),
    Mistake(
        "any wait for data",
        "the host waits {trace.load_ms:.1f} ms for a batch, but the GPU still works through its "
        "queue meanwhile: {why}",
        answer=lambda trace: "data" if trace.load_ms > 0.15 * trace.step_ms else reference(trace),
    ),
    Mistake(
        "more than one read",
        "you answer 'sync' for a step of {trace.reads} reads, but their time counts, not their "
        "number: {why}",
        answer=lambda trace: "sync" if trace.reads > 1 else reference(trace),
    ),
    Mistake(
        "casts alone",
        "casts and other kernels together take longer than the matmuls in fp32, so compare "
        "`fp32_ms` with the sum of both: {why}",
        answer=_busy_means(lambda trace: "fp32" if trace.fp32_ms > trace.cast_ms else "memory"),
    ),
    Mistake(
        "never fp32",
        "matmuls in fp32 limit this step, although they are only {trace.fp32_kernels} of "
        "{trace.kernels} kernels: {why}",
        answer=_busy_means(lambda trace: "memory"),
        violates="'memory' (casts and other kernels, which move bytes)",
    ),
    Mistake(
        "always fp32",
        "matmuls in fp32 take {trace.fp32_ms:.1f} ms here, but the kernels that move bytes take "
        "longer: {why}",
        answer=_busy_means(lambda trace: "fp32"),
        violates="'fp32' (matmuls in fp32)",
    ),
]

name_bottleneck = Exercise(
    card,
    reference,
    cases,
    mistakes,
    messages={"the bottleneck": "{case}, your answer is {got}, but {why}"},
)
