"""Examine public training scripts as they stand, and compare what the doctor says with what is true
of them.

    python -m benchmarks.ward FOLDER [NAME ...]

FOLDER holds clones of the repositories that cases/*.toml list: `git clone
https://github.com/OWNER/NAME FOLDER/OWNER+NAME`. What is not there is said and left out. Nothing of
theirs is changed or kept: each script runs in a copy that is thrown away, with tiny made data and,
where torchvision and wandb are not installed, with substitutes for them (`stand_ins`).
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from amp_course.kit.hardware import device_name
from benchmarks.ward.copies import HERE, RESULTS, STEPS, Case, cases, clone_of, path_of, prepare

SECONDS = 150
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # small models: several only wait for each other


def examine(case: Case, clone: Path) -> dict[str, Any]:
    """Run the doctor on a case; return its page's names and places, and what it cost."""
    with tempfile.TemporaryDirectory() as name:
        where = prepare(case, clone, Path(name))
        run = ["-m", case["module"]] if "module" in case else [path_of(case)]
        stand_ins = sorted((HERE / "stand_ins").iterdir())
        paths = [str(one) for one in stand_ins if importlib.util.find_spec(one.name) is None]
        paths += filter(None, [os.environ.get("PYTHONPATH", "")])
        began = time.monotonic()
        command = [sys.executable, "-m", "amp_course", "doctor", "--json", f"--timeout={SECONDS}"]
        command += [f"--steps={case.get('steps', STEPS)}", f"--ranks={case.get('ranks', 1)}"]
        ours, terminal = os.openpty()  # some ask it for its width
        with (
            open(Path(name, "ward-page"), "wb") as said,
            open(Path(name, "ward-errors"), "wb") as warned,
        ):
            ran = subprocess.Popen(
                [*command, *run, *case.get("arguments", ())],
                cwd=where,
                env=os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(paths)},
                stdin=terminal,
                stdout=said,
                stderr=warned,
            )
        _, status, used = os.wait4(ran.pid, 0)
        ran.returncode = os.waitstatus_to_exitcode(status)
        for one in (ours, terminal):
            os.close(one)
        pages = (Path(name, one) for one in ("ward-page", "ward-errors"))
        texts = [page.read_text("utf-8", "replace") for page in pages]
    try:
        page = json.loads(texts[0])
    except ValueError:
        return {"state": "broken", "said": "".join(texts)[-500:]}
    return {
        "state": page["state"],
        "faults": {one["name"]: one["place"] for one in page["faults"]},
        "advice": {one["name"]: one["place"] for one in page["advice"]},
        "observed": page["observed"],
        "said": page["problem"] or page["too little seen"],
        "updates": page["seen"].get("updates", ""),
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
    }


def judge(case: Case, found: dict[str, Any]) -> dict[str, Any]:
    """Compare a page with what is true of the script."""
    named, advised = set(found.get("faults", {})), set(found.get("advice", {}))
    true = set(case.get("faults", ()))
    return {
        "false": sorted(named - true),
        "missed": sorted(true - named - advised),
        "advice not judged": sorted(advised - set(case.get("advice", {})) - true),
        "advice untrue": sorted(
            name for name, why in case.get("advice", {}).items() if why.startswith("untrue")
        ),
        "examined": found["state"] in ("clean", "fault"),
    }


def _show(name: str, found: dict[str, Any], judged: dict[str, Any]) -> None:
    """Print a case on a line."""
    named = ", ".join(
        filter(None, [*found.get("faults", {}), *(f"({one})" for one in found.get("advice", {}))])
    )
    wrong = ", ".join(
        f"{what}: {', '.join(judged[what])}" for what in ("false", "missed") if judged[what]
    )
    if not judged["examined"]:
        wrong = f"{wrong or 'not examined'}: {found['said'][:160]}"
    print(
        f"{name:28} {found['state']:10} {found.get('cpu_seconds', 0):6.1f} s  {named or '-'}  "
        f"{wrong or 'right'}",
        flush=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Examine what is there; print a line for each, write the record,
    return 1 if a script is accused or a bug missed.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ward", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", type=Path, help="where the clones are")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of the lists (default: all)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the record's folder")
    parser.add_argument("--jobs", type=int, default=1, help="cases that run at a time")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="put the results of these names into today's record, too",
    )
    chosen = parser.parse_intermixed_args(argv)
    known = cases()
    if unknown := set(chosen.names) - set(known):
        parser.error(f"the lists have no {', '.join(sorted(unknown))}")
    rows, absent, present = {}, {}, {}
    for name in chosen.names or known:
        case = known[name]
        clone = clone_of(case, chosen.folder)
        missing = [
            module for module in case.get("needs", ()) if importlib.util.find_spec(module) is None
        ]
        if clone is None or missing:
            absent[name] = f"needs {', '.join(missing)}" if missing else "no clone with the commit"
        else:
            present[name] = case, clone
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for name, found in zip(
            present, pool.map(lambda pair: examine(*pair), present.values()), strict=True
        ):
            case = present[name][0]
            judged = judge(case, found)
            keys = "kind", "repository", "commit", "script", "own"
            rows[name] = {key: case[key] for key in keys if key in case} | found | judged
            _show(name, found, judged)
    if absent:
        print("Left out: " + ", ".join(f"{name} ({why})" for name, why in absent.items()) + ".")
    if not rows:
        return 2
    today = datetime.datetime.now(datetime.UTC)
    path = chosen.out / f"ward-{today:%Y-%m-%d}.json"
    summary = summed_up(rows)
    print(json.dumps(summary, indent=1))
    if chosen.keep or not chosen.names:
        before = {}
        if chosen.names and path.exists():
            before = json.loads(path.read_text("utf-8"))["scripts"]
        rows = {name: row for name in known if (row := rows.get(name, before.get(name)))}
        record = {
            "benchmark": "ward",
            "date": today.isoformat(timespec="seconds"),
            "machine": device_name(torch.device("cpu")),
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "summary": summed_up(rows),
            "absent": absent,
            "scripts": rows,
        }
        path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
        path.with_name("ward.md").write_text(table(record), "utf-8")
        print(path)
    return int(bool(summary["accused"] or summary["missed"]))


def told(record: dict[str, Any]) -> list[str]:
    """Return the rows of the summary in docs/tools.md."""
    by_kind: dict[str, list[dict[str, Any]]] = {"as written": [], "before": [], "after": []}
    for row in record["scripts"].values():
        by_kind[row["kind"]].append(row)
    written, bugs, fixed = by_kind.values()
    examined = sum(row["examined"] for row in written)
    faults = sum(bool(row.get("faults")) for row in written)
    named = record["summary"]["known bugs named"]
    advice = sum(bool(row.get("advice")) for row in written)
    accused, wrong, untrue = (
        sum(bool(row["false"]) for row in rows) for rows in (written, bugs, fixed)
    )
    return [
        f"| public scripts as they stand | {len(written)} | {examined} examined; {accused} "
        f"accused of a fault that they do not have, {faults} of one that they have; {advice} "
        f"pages with advice |",
        f"| known bugs, before their fix | {len(bugs)} | {named} named, {wrong} with a fault that "
        f"is not there |",
        f"| the same code after the fix | {len(fixed)} | {untrue} accused |",
    ]


def table(record: dict[str, Any]) -> str:
    """Write a record as a page in Markdown, a row a script."""
    lines = [
        "# The public ward, script by script",
        "",
        f"Written by `python -m benchmarks.ward` on {record['date'][:10]}; [the "
        f"lists](../ward/cases) have the edits.",
        "",
        "| script | is | named, and where | advice | right? | CPU |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in record["scripts"].items():
        what = (
            row.get("own", "").removeprefix("scripts/")
            or f"{row['repository']} `{row['commit'][:7]}` {row['script']}"
        )
        faults = "; ".join(
            f"{one} ({place.partition(',')[0]})" for one, place in row.get("faults", {}).items()
        )
        wrong = ", ".join(
            f"{kind}: {', '.join(row[kind])}" for kind in ("false", "missed") if row[kind]
        )
        said = wrong or (
            "yes"
            if row["examined"]
            else f"not examined: {row['said']}".replace("|", "/").replace("\n", " ")
        )
        advice = ", ".join(row.get("advice", {}))
        lines.append(
            f"| {name}: {what} | {row['kind']} | {faults} | {advice} | {said} | "
            f"{row.get('cpu_seconds', 0):.0f} s |"
        )
    return "\n".join(lines) + "\n"


def summed_up(rows: dict[str, Any]) -> dict[str, Any]:
    """Count a record's rows, and name those that are not right."""
    kinds = Counter(row["kind"] for row in rows.values())
    bugs = [row for row in rows.values() if row["kind"] == "before"]
    named = [row for row in bugs if not row["missed"] and (row.get("faults") or row.get("advice"))]
    return {
        "scripts": len(rows),
        "kinds": dict(kinds),
        "known bugs named": len(named),
        "not examined": [name for name, row in rows.items() if not row["examined"]],
        "accused": [name for name, row in rows.items() if row["false"]],
        "missed": [name for name, row in rows.items() if row["missed"]],
        "with advice": [name for name, row in rows.items() if row.get("advice")],
    }


if __name__ == "__main__":
    sys.exit(main())
