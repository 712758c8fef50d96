"""All broken and sound steps, and how to audit one."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from amp_course.audit import Report, audit
from amp_course.recipes import ALL
from tests.audit import written
from tests.audit.parts import any_dtype, classes, normed, plain
from tests.audit.written import Case, Made


def recipe_case(index: int) -> Case:
    recipe = ALL[index]

    def make() -> Made:
        torch.manual_seed(0)
        model = normed()
        session = recipe.prepare(
            model, lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), F.cross_entropy
        )
        scaler = session.scaler if isinstance(session.scaler, torch.amp.GradScaler) else None
        plain_loss = dict.fromkeys(("o0", "o1", "amp_bf16"), plain)
        loss = (plain_loss | {"o2": any_dtype}).get(recipe.name)
        return session.step, dict(
            model=model, optimizer=session.optimizer, batches=classes(), scaler=scaler, loss=loss
        )

    return Case(f"chapter 08: {recipe.label}", make)  # all recipes are sound


BROKEN = written.cases_of("broken_*.toml", written.BROKEN)
SOUND = written.cases_of("sound_*.toml", written.SOUND) + [
    recipe_case(index) for index in range(len(ALL))
]


def audited(case: Case) -> Report:
    """Make the step of a case and audit it."""
    step, arguments = case.make()
    return audit(step, **arguments)
