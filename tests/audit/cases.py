"""All cases, and how an audit of one is judged; run as a program it prints the tables of broken and sound steps.

python -m tests.audit.cases
"""

from __future__ import annotations

from amp_course.audit import Report, audit
from tests.audit import (
    broken_calls,
    broken_clipping,
    broken_passes,
    broken_skips,
    broken_values,
    sound_gans,
    sound_loops,
    sound_precision,
    sound_styles,
    sound_updates,
)
from tests.audit.case import Case

BROKEN = [
    case
    for module in (broken_calls, broken_clipping, broken_passes, broken_skips, broken_values)
    for case in module.CASES
]
SOUND = [
    case for module in (sound_gans, sound_loops, sound_precision, sound_styles, sound_updates) for case in module.CASES
]


def audited(case: Case) -> Report:
    """Audit a case made anew."""
    step, arguments = case.make()
    return audit(step, **arguments)


def main() -> None:
    """Print both tables as Markdown."""
    print("| broken step | style | finding |\n|---|---|---|")
    for case in BROKEN:
        print(f"| {case.name} | {case.style} | {', '.join(audited(case).names) or '**missed**'} |")
    print("\n| sound steps, by style | steps | accused |\n|---|---|---|")
    styles: dict[str, list[bool]] = {}
    for case in SOUND:
        styles.setdefault(case.style.split(",")[0], []).append(bool(audited(case).names))
    for style, accused in sorted(styles.items()):
        print(f"| {style} | {len(accused)} | {sum(accused)} |")


if __name__ == "__main__":
    main()
