"""All cases, and how one is audited; run as a program it prints the broken and sound steps.

python -m tests.audit.cases
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from amp_course.audit import Report, audit
from amp_course.recipes import ALL
from tests.audit import written
from tests.audit.case import Case, Made
from tests.audit.parts import any_dtype, classes, normed, plain


def recipe_case(index: int) -> Case:
    recipe = ALL[index]

    def make() -> Made:
        torch.manual_seed(0)
        model = normed()
        session = recipe.prepare(
            model, lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), F.cross_entropy
        )
        scaler = session.scaler if isinstance(session.scaler, torch.amp.GradScaler) else None
        loss = (
            plain
            if recipe.name in ("o0", "o1", "amp_bf16")
            else any_dtype
            if recipe.name == "o2"
            else None
        )
        return session.step, dict(
            model=model, optimizer=session.optimizer, batches=classes(), scaler=scaler, loss=loss
        )

    return Case(
        f"chapter 08: {recipe.label}",
        "recipe",
        make,
        (),
        "Each recipe is sound in what it promises.",
    )


BROKEN = written.cases_of("broken_*.toml", written.BROKEN)
SOUND = written.cases_of("sound_*.toml", written.SOUND) + [
    recipe_case(index) for index in range(len(ALL))
]


def audited(case: Case) -> Report:
    """Make a case, and audit it."""
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
