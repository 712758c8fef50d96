"""What starts the ranks of a training, and what each of these launchers does for them, as data;
`start_up` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass

from amp_course.kit.table import html_table, text_table
from amp_course.kit.toml_data import read_toml


@dataclass(frozen=True)
class Launcher:
    """One way to start ranks.

    sets:     the variables by which a process knows its rank
    device:   who calls torch.cuda.set_device, and from what
    restarts: what happens when a rank fails
    machines: how it reaches several of them
    source:   its documentation
    key:      its name for `time_launchers`; "" if it is not run here
    """

    name: str
    sets: list[str]
    device: str
    restarts: str
    machines: str
    source: str
    key: str = ""


LAUNCHERS = tuple(Launcher(**row) for row in read_toml(__file__, "launchers.toml")["launcher"])
_HEAD = ["launcher", "sets", "picks the GPU", "when a rank fails", "several machines", "run here"]


class LauncherTable:
    """The launchers as a table, in plain text and in HTML."""

    def __init__(self) -> None:
        self._rows = []
        for launcher in LAUNCHERS:
            sets, run_here = ", ".join(launcher.sets) or "nothing", "yes" if launcher.key else "no"
            row = [launcher.name, sets, launcher.device, launcher.restarts, launcher.machines]
            self._rows.append([*row, run_here])

    def __repr__(self) -> str:
        """Write one launcher after the other: the rows are too long for a terminal."""
        return "\n\n".join(text_table([*zip(_HEAD, row, strict=True)]) for row in self._rows)

    def _repr_html_(self) -> str:
        return html_table([_HEAD, *self._rows])
