"""Run the cases, print what is expected and what came: python -m tests.cases [audit doctor/m02]."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from tests.cases.running import CASES, Case


def row(case: Case) -> tuple[str, bool]:
    """Return a line of the table, and True if the case is as expected."""
    got = case.run()
    wrong = case.faults_of(got)
    verdict = "FAIL" if wrong else "ok"
    line = f"| {case.name} | {case.wanted} | {got} | {verdict} | {'; '.join(wrong)} |"
    return line, not wrong


def main(chosen: list[str]) -> int:
    """Run the cases whose names begin as chosen, by default all; return 1 if one fails."""
    cases = [case for case in CASES if not chosen or case.name.startswith(tuple(chosen))]
    print("| case | expected | got | verdict | because |\n|---|---|---|---|---|", flush=True)
    passed = []
    with ThreadPoolExecutor(2) as pool:
        for line, ok in pool.map(row, cases):
            print(line, flush=True)
            passed.append(ok)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
