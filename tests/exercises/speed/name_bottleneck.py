"""Answers to `name_bottleneck`, written without a look at its table of mistakes."""

from amp_course.speed.traces import BOTTLENECKS


def branches(trace):
    idle = trace.step_ms - trace.busy_ms
    if idle > trace.busy_ms:
        if trace.load_ms > idle / 2:
            return "Data"
        return "launch" if trace.launch_ms > trace.read_ms else "sync "
    return "fp32" if trace.fp32_ms > trace.busy_ms / 2 else "memory"


def savings(trace):
    left = max(trace.busy_ms, trace.load_ms + trace.launch_ms) if trace.reads > 5 else trace.step_ms
    host = trace.step_ms - trace.busy_ms
    saved = {
        "data": min(trace.load_ms, host),
        "launch": min(trace.launch_ms, host),
        "sync": trace.step_ms - left,
        "fp32": trace.fp32_ms * 7 / 8 if host < 0.3 * trace.step_ms else 0,
        "memory": (trace.cast_ms + trace.other_ms) * 3 / 4 if host < 0.3 * trace.step_ms else 0,
    }
    return sorted(saved, key=saved.get)[-1]


def shares(trace):
    share = {
        name: getattr(trace, f"{name}_ms") / trace.step_ms
        for name in ("busy", "load", "launch", "fp32")
    }
    if share["busy"] > 0.8:
        return BOTTLENECKS[3 if share["fp32"] > 0.5 else 4]
    return next(
        (name for name, key in (("data", "load"), ("launch", "launch")) if share[key] > 0.5), "sync"
    )


def by_host(trace):
    return sorted([(trace.load_ms, "data"), (trace.launch_ms, "launch"), (trace.read_ms, "sync")])[
        -1
    ][1]


RIGHT = {"branches": branches, "what each cure saves": savings, "shares": shares}


def by_counts(trace):
    """Looks only at how many kernels and reads there are, which tells steps of `draw_step`
    apart.
    """
    if trace.reads > 1:
        return "sync" if trace.reads > 20 else "launch"
    if trace.kernels < 210 or trace.kernels > 400:
        return "memory"
    return "data" if trace.kernels > 240 else "fp32"


def by_reads(trace):
    return (
        "sync" if trace.reads > 20 else branches(trace) if branches(trace) != "sync " else "launch"
    )


def by_low(trace):
    if shares(trace) in ("fp32", "memory"):
        return "fp32" if trace.fp32_ms > trace.low_ms else "memory"
    return shares(trace)


WRONG = {
    "fp32 or 16-bit matmuls": (by_low, "casts alone"),
    "counts alone": (by_counts, None),
    "many reads mean sync": (by_reads, None),
    "the host first": (by_host, "asks the host alone"),
    "always data": (lambda trace: "data", None),
    "a synonym": (lambda trace: "loader" if trace.load_ms > 10 else shares(trace), None),
    "a small wait for data": (
        lambda trace: (
            "data" if 10 * trace.load_ms > trace.step_ms > 2 * trace.busy_ms else shares(trace)
        ),
        None,
    ),
    "idle means data": (
        lambda trace: "data" if trace.busy_ms < trace.step_ms / 2 else shares(trace),
        "calls every idle GPU data loading",
    ),
}
