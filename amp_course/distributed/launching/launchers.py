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
    key:        its name for `time_launchers`; "" if it was not run here
    source:     where its documentation says so
    """

    name: str
    command: str
    sets: tuple[str, ...]
    device: str
    restarts: str
    machines: str
    key: str
    source: str


LAUNCHERS = tuple(
    Launcher(**{"key": "", **row, "sets": tuple(row.get("sets", ()))})
    for row in read_toml(__file__, "launchers.toml")["launcher"]
)


@dataclass(frozen=True)
class LauncherTable:
    """The launchers as a table, in plain text and in HTML."""

    launchers: tuple[Launcher, ...] = LAUNCHERS

    def rows(self) -> list[list[str]]:
        """Return a table as text, its head first."""
        rows = [
            [
                "launcher",
                "sets",
                "picks the GPU",
                "when a rank fails",
                "several machines",
                "run here",
            ]
        ]
        for one in self.launchers:
            sets = ", ".join(one.sets) or "nothing"
            rows.append(
                [one.name, sets, one.device, one.restarts, one.machines, "yes" if one.key else "no"]
            )
        return rows

    def __str__(self) -> str:
        """Write one launcher after the other: the rows are too long for a terminal."""
        head, *rows = self.rows()
        return "\n\n".join(
            text_table([["launcher", row[0]], *map(list, zip(head[1:], row[1:], strict=True))])
            for row in rows
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.rows())
