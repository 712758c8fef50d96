"""Whether there is a sandbox: a machine without one says why;
where there has to be one, its absence is a failure.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from amp_course.classroom import bubblewrap


@pytest.mark.skipif(
    not os.environ.get("AMP_COURSE_REQUIRE_SANDBOX"),
    reason="set in CI, where no test of the sandbox may be skipped",
)
def test_the_sandbox_is_there_where_it_has_to_be() -> None:
    assert bubblewrap.missing() is None, bubblewrap.missing()


@pytest.mark.parametrize(
    ("switch", "why"),
    [
        (
            "1",
            "AppArmor forbids bubblewrap here (bwrap: no uid map); docs/teaching.md says how to "
            "allow it",
        ),
        ("0", "bubblewrap does not run here (bwrap: no uid map)"),
        (None, "bubblewrap does not run here (bwrap: no uid map)"),
    ],
)
def test_why_there_is_none(
    switch: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: no uid map' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    if switch is not None:
        (tmp_path / "switch").write_text(f"{switch}\n")
    monkeypatch.setattr(bubblewrap, "_APPARMOR", tmp_path / "switch")
    monkeypatch.setattr("sys.platform", "linux")
    assert bubblewrap.missing.__wrapped__() == why
    page = (Path(__file__).parents[2] / "docs" / "teaching.md").read_text("utf-8")
    assert "kernel.apparmor_restrict_unprivileged_userns" in page
