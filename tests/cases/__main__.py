"""Run the cases, print what was wanted and what came: python -m tests.cases [audit doctor/m02]."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from tests.cases.running import CASES, FAILS_TODAY, Case


def row(case: Case) -> tuple[str, bool]:
    """Return a line of the table, and whether it is as wanted."""
    got = case.run()
    wrong = case.faults_of(got)
    verdict = (
        "ok"
        if not wrong
        else "later"
        if case.later
        else "known"
        if case.name in FAILS_TODAY
        else "FAIL"
    )
    if not wrong and (case.later or case.name in FAILS_TODAY):
        verdict = "ok (new)"
    return (
        f"| {case.name} | {case.wanted} | {got} | {verdict} | {'; '.join(wrong)} |",
        verdict != "FAIL",
    )


def main(chosen: list[str]) -> int:
    """Run the cases whose names begin as chosen, by default all; return 1 if one fails anew."""
    cases = [case for case in CASES if not chosen or case.name.startswith(tuple(chosen))]
    print("| case | expected | got | verdict | because |\n|---|---|---|---|---|", flush=True)
    fine = []
    with ThreadPoolExecutor(2) as pool:
        for line, well in pool.map(row, cases):
            print(line, flush=True)
            fine.append(well)
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
