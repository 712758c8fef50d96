"""Sum up what other tools said of the ward's cases, by the judgement of each kind of message in
others.toml.
"""

from __future__ import annotations

import statistics
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

ATTACHED = "torch-audit", "torchmortem"
LEARNT_STEPS = 8  # updates that TrainCheck traces
Row = dict[str, Any]


def judgement() -> dict[str, Any]:
    """Return others.toml, which says how to read it."""
    return tomllib.loads(Path(__file__).with_name("others.toml").read_text("utf-8"))


def judge(row: Row, known: dict[str, Any]) -> dict[str, str]:
    """Return kind of message → what it is worth: "false", "true", "style" or "not judged"."""
    if row["tool"] == "TrainCheck":
        return {kind: "true" if row["kind"] == "before" else "false" for kind in row["messages"]}
    kinds, but = known[row["tool"]], known["but"].get(row["tool"], {})
    return {
        kind: but.get(kind, {}).get(row["case"], kinds.get(kind, "not judged"))
        for kind in row["messages"]
    }


def sums(record: Row, ward: Row) -> dict[str, Row]:
    """Count each tool's rows, and the doctor's in the ward's record."""
    known, ours = judgement(), ward["scripts"]
    bugs = {name: ours[name] for name in ours if ours[name]["kind"] == "before"}
    written = [name for name in ours if ours[name]["kind"] == "as written"]
    clean = {name for name in written if not ours[name].get("faults")}
    own = {row["case"]: row for row in record["rows"] if row["tool"] == "none"}
    alone = {name: row["cpu_seconds"] for name, row in own.items() if row["updates"]}
    result: dict[str, Row] = {}
    for tool in (*ATTACHED, "TrainCheck"):
        rows = {row["case"]: row for row in record["rows"] if row["tool"] == tool}
        examined = {
            name: row for name, row in rows.items() if row["updates"] and "raised" not in row
        }
        named = {
            name: known["names"][name][tool]
            for name in rows
            if tool in known["names"].get(name, {})
        }
        if missing := [name for name, kind in named.items() if kind not in rows[name]["messages"]]:
            raise ValueError(f"others.toml has {tool} say what it does not say of {missing}")
        sound = [row for row in rows.values() if row["kind"] == "after" or row["case"] in clean]
        result[tool] = {
            "tried": len(rows),
            "examined": len(examined),
            "bugs tried": sum(name in bugs for name in rows),
            "named": len(named),
            "and silent after": sum(
                kind not in rows[after]["messages"]
                for name, kind in named.items()
                if (after := name.replace("-before", "-after")) in rows
            ),
            "sound": len(sound),
            "accused": sum("false" in judge(row, known).values() for row in sound),
            "stopped": sum(
                "raised" in row and "raised" not in own.get(name, {}) for name, row in rows.items()
            ),
            "cpu": statistics.median(
                row["cpu_seconds"] - alone[name]
                for name, row in examined.items()
                if name in alone and row["updates"] in (own[name]["updates"], LEARNT_STEPS)
            ),
        }
    silent = 0
    for name, row in bugs.items():
        true = set(row["faults"]) or set(row["advice"])
        after = ours.get(name.replace("-before", "-after"))
        silent += bool(
            true
            and after
            and not true & (set(after.get("faults", ())) | set(after.get("advice", ())))
        )
    sound = [row for name, row in ours.items() if row["kind"] == "after" or name in clean]
    result["the doctor"] = {
        "tried": len(ours),
        "examined": sum(row["examined"] for row in ours.values()),
        "bugs tried": len(bugs),
        "named": ward["summary"]["known bugs named"],
        "and silent after": silent,
        "sound": len(sound),
        "accused": sum(bool(row["false"]) for row in sound),
        "cpu": statistics.median(
            bugs[name]["cpu_seconds"] - spent - record["start_seconds"]
            for name, spent in alone.items()
            if name in bugs
        ),
    }
    return result


def told(record: Row, ward: Row) -> list[str]:
    """Return what docs/tools.md says in numbers: the table's rows, then parts of sentences."""
    counted = sums(record, ward)
    kinds = Counter(row["kind"] for row in record["rows"] if row["tool"] == ATTACHED[0])
    rows = [
        f"| {tool} | {one['examined']} of {one['tried']} | {one['named']} of {one['bugs tried']} | "
        f"{one['and silent after']} | {one['accused']} of {one['sound']} | {one['cpu']:.1f} s |"
        for tool, one in counted.items()
    ]
    rows += [f"{tool} itself stops {counted[tool]['stopped']} scripts" for tool in ATTACHED]
    return [
        *rows,
        f"{kinds['before']} known bugs, {kinds['after']} fixed and {kinds['as written']} public "
        f"scripts",
    ]


def table(record: Row) -> str:
    """Write a record as a page in Markdown, a row a case:
    what each tool said, by what it is worth.
    """
    known, tools = judgement(), (*ATTACHED, "TrainCheck")
    rows = {(row["case"], row["tool"]): row for row in record["rows"]}
    lines = [
        "# Other tools on the public ward, script by script",
        "",
        f"Written by `python -m benchmarks.ward.others` on {record['date'][:10]}.",
        "[others.toml](../ward/others.toml) has the judgement.",
        "",
        f"| script | {' | '.join(tools)} |",
        "|---|---|---|---|",
    ]
    for case in dict.fromkeys(row["case"] for row in record["rows"]):
        cells = []
        for tool in tools:
            row = rows.get((case, tool))
            judged = judge(row, known) if row else {}
            said = []
            for worth in sorted(set(judged.values())):
                kinds = [kind for kind in judged if judged[kind] == worth]
                said.append(
                    f"{worth}: "
                    f"{', '.join(kinds) if tool in ATTACHED else f'{len(kinds)} invariants'}"
                )
            if row and tool in known["names"].get(case, {}):
                said.insert(0, "**names the bug**")
            if row and "raised" in row:
                said.append(f"ended by {row['raised'].partition(':')[0]}")
            cells.append("; ".join(said) if said else "nothing" if row else "")
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
