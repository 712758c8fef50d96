"""What would make a step faster: advice with its evidence, the largest gain first."""

from __future__ import annotations

from amp_course.speed.explain import kinds, op_rules, program_rules
from amp_course.speed.explain.findings import Advice, Findings

LEAST = 0.03  # the share of a step below which a gain is lost in noise, and not worth a line
UNTRIED = 0.8  # the weight of an upper bound next to a gain that was tried


def advise(found: Findings) -> tuple[Advice, ...]:
    """Return the advice, the largest gain first; none below 3 % of the step."""
    logs = found.lines.logs
    reads = {line for line in found.evidence.reads if line} - logs
    casts = op_rules.cast_lines(found.evidence) - logs - reads
    explained = logs | reads | casts
    advice = [
        *program_rules.check_data(found),
        *program_rules.check_logging(found, logs),
        *program_rules.check_reads(found, reads),
        *op_rules.check_casts(found, casts),
        *op_rules.check_precision(found),
        *op_rules.check_slow_formats(found),
        *op_rules.check_sizes(found),
        *op_rules.check_optimizer(found),
        *op_rules.check_threads(found),
        *op_rules.check_memory(found),
    ]
    python = list(program_rules.check_python(found, explained))
    left = found.times[kinds.LAUNCH] - sum(one.seconds for one in python)
    left -= sum(program_rules.python_seconds(found, line, with_calls=True) for line in explained)
    advice += [*python, *program_rules.check_small_ops(found, left)]
    large = [one for one in advice if one.seconds >= LEAST * found.seconds]
    large.sort(key=lambda one: one.seconds * (1.0 if one.measured else UNTRIED), reverse=True)
    return tuple(_reads_first(large))


def _reads_first(advice: list[Advice]) -> list[Advice]:
    """Move reads of values above the small ops, many of which only compute what is read."""
    names = [one.cause for one in advice]
    if "host-waits" in names and "small-ops" in names[: names.index("host-waits")]:
        advice.insert(names.index("small-ops"), advice.pop(names.index("host-waits")))
    return advice
