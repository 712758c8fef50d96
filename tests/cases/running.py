"""A case: a script, what the tools have to say of it, and how it runs in its own process."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIMIT = 400  # seconds, on a busy machine
_HOW_TO_RUN = ("ranks", "terminal")  # keys of expected.toml


@dataclass(frozen=True)
class Got:
    """What came of a case.

    calls: for each call of a tool, "names" of the findings, "advised" and "right"
    exit:  code of the process
    text:  all that it printed
    """

    calls: list[dict[str, Any]]
    exit: int
    text: str

    def __str__(self) -> str:
        calls = [
            " ".join([", ".join(call["names"]), *(f"({name})" for name in call.get("advised", ()))])
            for call in self.calls
        ]
        return f"{' / '.join(one.strip() or 'none' for one in calls) or '-'}; exit {self.exit}"


@dataclass(frozen=True)
class Case:
    """A script of tests/cases, and what is expected. name: "audit/05_short_last_group"."""

    name: str
    expected: dict[str, Any]
    path: Path = field(repr=False)

    @property
    def wanted(self) -> str:
        """What is expected, on one line."""
        shown = {key: self.expected[key] for key in self.expected if key not in _HOW_TO_RUN}
        return re.sub(r"[\[\]{}'\"]", "", str(shown)).replace("|", "\\|")

    def run(self) -> Got:
        """Run it in a folder that is removed again."""
        with tempfile.TemporaryDirectory() as folder:
            script, results = shutil.copy(self.path, folder), Path(folder, ".results")
            if self.path.parent.name != "doctor":
                text, code = _run([script], folder, results)
                lines = results.read_text().splitlines() if results.exists() else []
                return Got([json.loads(line) for line in lines], code, text)
            ranks = ["--ranks", str(self.expected["ranks"])] if "ranks" in self.expected else []
            command = ["-m", "amp_course", "doctor", "--json", *ranks, script]
            text, code = _run(command, folder, terminal=self.expected.get("terminal", False))
            page = (
                json.JSONDecoder().raw_decode(text)[0]
                if text.startswith("{")
                else {"faults": [], "advice": []}
            )
            names, advised = ([one["name"] for one in page[key]] for key in ("faults", "advice"))
            return Got([{"names": names, "advised": advised}], code, text)

    def faults_of(self, got: Got) -> list[str]:
        """Return how what it got differs from what is wanted."""
        wrong = self._compare(self.expected, got)
        if wrong and "or" in self.expected and not self._compare(self.expected["or"], got):
            return []
        return wrong

    def _compare(self, expected: dict[str, Any], got: Got) -> list[str]:
        wrong = []
        for call in got.calls or [{"names": []}]:
            names = set(call["names"])
            reported = names | set(call.get("advised", ()))
            for key, found in (("named", names), ("told", reported)):
                wanted = expected.get(key)
                if wanted is not None and not (found if "*" in wanted else found & set(wanted)):
                    wrong.append(f"{key} is {', '.join(sorted(found)) or 'nothing'}")
            if accused := set(expected.get("not_named", ())) & reported:
                wrong.append(f"named {', '.join(sorted(accused))}")
            if names and expected.get("clean"):
                wrong.append(f"accused of {', '.join(sorted(names))}")
            if praised := set(expected.get("not_right", ())) & set(call.get("right", ())):
                wrong.append(f"called right: {', '.join(sorted(praised))}")
        if got.exit not in expected.get("exit", [got.exit]):
            wrong.append(f"exit {got.exit}")
        for key, bad, word in (("contains", False, "lacks"), ("lacks", True, "says")):
            texts = expected.get(key, ())
            wrong += [f"{word} /{one}/" for one in texts if bool(re.search(one, got.text)) is bad]
        if "place" in expected and not self._places(expected["place"], got.text):
            wrong.append(f"does not name the line of `{expected['place']}`")
        return wrong

    def _places(self, source: str, text: str) -> bool:
        lines = self.path.read_text("utf-8").splitlines()
        name = re.escape(self.path.name)
        numbers = [number for number, line in enumerate(lines, 1) if source in line]
        return any(
            re.search(rf"line {n} of {name}|{name}:{n}\b|{name}.{{0,9}}line {n}\b", text)
            for n in numbers
        )


def _run(
    command: list[str], folder: str, results: Path | None = None, *, terminal: bool = False
) -> tuple[str, int]:
    """Return what a Python program prints, and its exit code; after LIMIT it is killed."""
    environment = {"CASE_RESULTS": str(results or ""), "PYTHONPATH": str(HERE.parent.parent)}
    keyboard, stdin = pty.openpty() if terminal else (None, subprocess.DEVNULL)
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | environment | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        return process.communicate(timeout=LIMIT)[0], process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"{process.communicate()[0]}\nkilled after {LIMIT} s", -9
    finally:
        for end in (keyboard, stdin) if terminal else ():
            os.close(end)


_EXPECTED = tomllib.loads((HERE / "expected.toml").read_text("utf-8"))
CASES = [
    Case(f"{kind}/{name}", expected, HERE / kind / f"{name}.py")
    for kind, cases in _EXPECTED.items()
    for name, expected in sorted(cases.items())
]
