"""Say what would make a step faster, in the order of what it would buy;
each piece of advice has its evidence.
"""

from __future__ import annotations

from amp_course.speed.explain import kinds, op_rules, program_rules
from amp_course.speed.explain.findings import Advice, Findings

LEAST = 0.03  # of a step: less than that is not worth a line, nor is it told from noise
UNTRIED = 0.8  # what a bound counts next to a gain that was tried: a fix rarely gets all of it


def advise(found: Findings) -> tuple[Advice, ...]:
    """Return the advice, largest first; nothing that would save less than 3 % of the step."""
    logs = set(found.lines.logs)
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
    advice += python
    spent = sum(one.seconds for one in python)
    spent += sum(
        program_rules.python_seconds(found, line, found.lines.calling) for line in explained
    )
    advice += program_rules.check_small_ops(found, found.times[kinds.LAUNCH] - spent)
    kept = [one for one in advice if one.seconds >= LEAST * found.seconds]
    kept.sort(key=lambda one: one.seconds * (1.0 if one.measured else UNTRIED), reverse=True)
    return tuple(_reads_first(kept))


def _reads_first(advice: list[Advice]) -> list[Advice]:
    """Move reads of values above the small ops: many of those compute only what is read."""
    names = [one.cause for one in advice]
    if "host-waits" in names and "small-ops" in names[: names.index("host-waits")]:
        advice.insert(names.index("small-ops"), advice.pop(names.index("host-waits")))
    return advice
