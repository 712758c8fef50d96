"""Let the doctor examine the clinic's scripts, and compare its diagnoses with the known faults."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from amp_course.debugging.clinic import scripts
from amp_course.diagnosis.report import Report
from amp_course.doctor import examine_script
from amp_course.kit.table import html_table, text_table

# The scripts, in the order of the exercises → the doctor's name for the cause
KNOWN = {
    "scaled_clip": "clipped-while-scaled",
    "never_cleared": "never-cleared",
    "uneven_ranks": "ranks-with-different-counts",
    "t5_overflow": "beyond-fp16",
    "masked_rows": "masked-row",
    "ranks_differ": "ranks-with-different-scales",
    "anomaly_warmup": "anomaly-mode-meets-scaler",
    "late_anomaly": "infinite-derivative",
    "zero_amax": "division-by-zero",
    "scaler_syncs": "host-waits",
    "bf16_updates": "updates-vanish",
    "tf32_mixed": "tf32-settings-mixed",
    "poisoned_norm": "overflow-reached-buffer",
}

_SPOILER = "Show the table. It names the cause of every script, so it gives the exercises away."


def find_script(name: str) -> Path:
    """Return the path of a script. Raises ValueError for a name that is not one of `KNOWN`."""
    if name not in KNOWN:
        raise ValueError(
            f"{name!r} is not a script of the clinic: choose one of {', '.join(KNOWN)}."
        )
    return Path(scripts.__file__).with_name(f"{name}.py")


def symptom(name: str) -> str:
    """Return the first line of a script's docstring: the symptom."""
    return (ast.get_docstring(ast.parse(find_script(name).read_text("utf-8"))) or "").split("\n")[0]


@dataclass(frozen=True)
class Round:
    """What the doctor said about each script, by name."""

    diagnoses: dict[str, Report]

    def verdict(self, name: str) -> str:
        """Return how the doctor reports the known fault: "named", "as advice", "as observed",
        "another" or "nothing".
        """
        one, known = self.diagnoses[name], KNOWN[name]
        if known in one.names:
            return "named"
        if known in one.advised:
            return "as advice"
        observed = any(text.startswith(known) for text in one.observations)
        return "as observed" if observed else "another" if one.findings else "nothing"

    @property
    def named(self) -> int:
        """The number of causes that were named as faults."""
        return sum(self.verdict(name) == "named" for name in self.diagnoses)

    def rows(self) -> list[list[str]]:
        """Return a table as text, its head first."""
        rows = [["script", "its fault", "the doctor's findings", "verdict"]]
        for name, one in self.diagnoses.items():
            found = ", ".join(one.names) or one.problem or "none"
            rows.append([name, KNOWN[name], found, self.verdict(name)])
        return rows

    def __str__(self) -> str:
        return f"{text_table(self.rows())}\n{self._summary()}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = html_table(self.rows())
        return f"<p>{self._summary()}.</p><details><summary>{_SPOILER}</summary>{rows}</details>"

    def _summary(self) -> str:
        return f"{self.named} of {len(self.diagnoses)} causes named as faults"


def examine_all(names: Sequence[str] = tuple(KNOWN)) -> Round:
    """Let the doctor examine scripts once, two at a time, each in a process of its own."""

    def examine(name: str) -> Report:
        return examine_script(find_script(name), threads=1, again=False)

    with ThreadPoolExecutor(2) as pool:
        return Round(dict(zip(names, pool.map(examine, names), strict=True)))
