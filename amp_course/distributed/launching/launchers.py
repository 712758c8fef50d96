"""What starts the ranks of a training, and what each of these launchers does for them. Data;
`start_up` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass

from amp_course.kit.table import html_table, text_table
from amp_course.kit.toml_data import read_toml


@dataclass(frozen=True)
class Launcher:
    """One way to start ranks.

    command:    for two ranks on one machine, or as its template starts them
    sets:       the variables that tell a process its place
    device:     who calls torch.cuda.set_device, and from what
    restarts:   what happens when a rank fails
    machines:   how it reaches several of them
    source:     where its documentation says so
    key:        its name for `time_launchers`; "" if it was not run here
    """

    name: str
    command: str
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
        self._rows = [
            [
                one.name,
                ", ".join(one.sets) or "nothing",
                one.device,
                one.restarts,
                one.machines,
                "yes" if one.key else "no",
            ]
            for one in LAUNCHERS
        ]

    def __repr__(self) -> str:
        """Write one launcher after the other: the rows are too long for a terminal."""
        return "\n\n".join(
            text_table(list(map(list, zip(_HEAD, row, strict=True)))) for row in self._rows
        )

    def _repr_html_(self) -> str:
        return html_table([_HEAD, *self._rows])
