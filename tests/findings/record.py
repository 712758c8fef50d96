"""What the tools find in every case of the tests and the course: one line each in record.json.

The tests that run a case compare it with its line. After an intended change:

    python -m tests.findings.record                  run all and write the file (half an hour)
    python -m tests.findings.record audit/           run and replace what begins like that
    python -m tests.findings.record --compare audit/ print what differs, exit 1 if anything does

A line holds sorted names, and none that depend on how busy the machine is.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("record.json")
ROOT = PATH.parents[2]
TIMED = {"waiting-for-data"}  # advice that comes and goes with the load
Entry = dict[str, Any]
Job = tuple[str, Callable[[], Entry]]


def entry(**parts: Any) -> Entry:
    """Return a line of the record: without empty parts, and with sorted names."""
    return {
        name: sorted(set(part)) if isinstance(part, (list, tuple, set)) else part
        for name, part in parts.items()
        if part
    }


def of_audit(report: Any) -> Entry:
    return entry(
        faults=report.names,
        right=report.right,
        observed=len(report.observations),
        not_judged=[name for name, _ in report.not_checked],
    )


def of_diagnosis(found: Any) -> Entry:
    return entry(
        faults=found.names,
        advice=set(found.advised) - TIMED,
        exit=found.exit_code,
    )


def of_nonfinite(found: Any) -> Entry:
    first = found.first
    named = {"op": first.op, "module": first.module, "phase": first.phase} if first else {}
    return entry(
        **named, given=found.preexisting, caught=len(found.caught), buried=len(found.vanished)
    )


def of_cell(cell: dict[str, Any]) -> Entry:
    """Return the names in the stored output of a notebook's cell."""
    from amp_course.diagnosis.catalogue import current_name
    from tests.cases.tools import FAULT_NAMES

    shown = "\n".join(
        "".join(one.get("text") or one.get("data", {}).get("text/plain", ()))
        for one in cell["outputs"]
    )
    words = set(map(current_name, re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)+", shown)))
    formats = re.search(r"((?:Not f|F)inite in [^:.]*)[:.]", shown)
    return entry(
        names=words & (FAULT_NAMES - TIMED),
        ops=re.findall(r"(?:forward|backward|optimizer): (\w+)(?: in \S+)? made", shown),
        sound=bool(re.search("[Nn]o fault(?!:)|No inf or NaN did harm|gave the same bits", shown)),
        rings=re.findall(r"pass \d+: the ([\w ]+ of \S+)", shown),
        formats=formats[1] if formats else "",
    )


# Each source yields the ids of its cases, and how to run them. Imports are late: few need them all.


def audits() -> Iterator[Job]:
    from tests.audit.cases import BROKEN, SOUND, audited

    for case in [*BROKEN, *SOUND]:
        yield f"audit/{case.name}", lambda case=case: of_audit(audited(case))


def bad_inputs() -> Iterator[Job]:
    from tests.audit.test_bad_input import BAD_INPUTS, answer, answer_soon

    for bad in BAD_INPUTS:
        call = answer_soon if bad.hangs else answer
        yield f"bad input/{bad.name}", lambda bad=bad, call=call: call(bad)[2]


def stresses() -> Iterator[Job]:
    from tests.audit.test_stress import STRESSES, report_of, sandbox

    def run(stress: Any) -> Entry:
        with sandbox():
            step, arguments, _ = stress.make()
            return report_of(step, arguments)[1]

    for stress in STRESSES:
        yield f"stress/{stress.name}", lambda stress=stress: run(stress)


def workbench() -> Iterator[Job]:
    from tests.patterns.test_workbench import ALL, judged, key

    for switches in ALL:
        yield key(switches), lambda switches=switches: of_audit(judged(switches))


def ddp_steps() -> Iterator[Job]:
    from torch import distributed

    from tests.distributed.test_ddp_step import FAULTY, RIGHT, audited

    def run(source: str, accumulate: int) -> Entry:
        store = distributed.HashStore()
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            return of_audit(audited(source, accumulate))
        finally:
            distributed.destroy_process_group()

    for name, source, accumulate in (
        *(("right", RIGHT, number) for number in (1, 3, 4)),
        ("mean of means", FAULTY, 3),
    ):
        yield f"ddp step/{name}, {accumulate}", lambda s=source, n=accumulate: run(s, n)


def planted() -> Iterator[Job]:
    from tests.debugging.test_first_nonfinite import FAULTS, SOUND, found_in

    for fault in FAULTS:
        yield f"planted/{fault.name}", lambda make=fault.make: of_nonfinite(found_in(make()))
    for make in SOUND:
        yield f"planted sound/{make.__name__}", lambda make=make: of_nonfinite(found_in(make()))


def scripts() -> Iterator[Job]:
    from tests.doctor.test_doctor_scripts import KNOWN, ON_RANKS, examine_all, examined, names

    for kind in ("faulty", "odd", "sound"):
        for name in names(kind):
            yield (
                f"doctor/{kind}/{name}",
                lambda kind=kind, name=name: in_folder(
                    lambda folder: of_diagnosis(examined(kind, name, folder))
                ),
            )
    for name in ON_RANKS:
        yield f"doctor/ranks/{name}", lambda name=name: of_diagnosis(examined("ranks", name))
    for name in KNOWN:
        yield f"script/{name}", lambda name=name: of_diagnosis(examine_all([name]).diagnoses[name])


def cells() -> Iterator[Job]:
    tools = r"\b(audit|doctor|first_nonfinite|watch_ranges|replay|compare_precisions|examine_all)\("
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "code" and re.search(tools, "".join(cell["source"])):
                yield f"notebook/{path.stem}/{cell['id']}", lambda cell=cell: of_cell(cell)


def in_folder(run: Callable[[Path], Entry]) -> Entry:
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder))


HERE = (audits, bad_inputs, stresses, workbench, ddp_steps, planted, cells)  # in this process
CHILDREN = (scripts,)  # in child processes


def jobs(sources: Iterable[Callable[[], Iterator[Job]]] = (*HERE, *CHILDREN)) -> Iterator[Job]:
    for source in sources:
        yield from source()


def stored() -> dict[str, Entry]:
    return json.loads(PATH.read_text("utf-8")) if PATH.exists() else {}


def computed(chosen: tuple[str, ...]) -> dict[str, Entry]:
    """Run the cases whose ids begin as chosen."""
    from amp_course.kit.threads import one_thread

    def done(job: Job) -> tuple[str, Entry]:
        print(job[0], file=sys.stderr, flush=True)
        return job[0], job[1]()

    with ThreadPoolExecutor(2) as pool, one_thread():
        children = [
            pool.submit(done, job) for job in jobs(CHILDREN) if job[0].startswith(chosen or "")
        ]
        found = dict(done(job) for job in jobs(HERE) if job[0].startswith(chosen or ""))
        return found | dict(one.result() for one in children)


def main(arguments: list[str]) -> int:
    compare = "--compare" in arguments
    chosen = tuple(one for one in arguments if one != "--compare")
    new = computed(chosen)
    old = stored()
    if not compare:
        lines = [
            f"{json.dumps(name)}: {json.dumps(one)}"
            for name, one in sorted(((old if chosen else {}) | new).items())
        ]
        PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
        return 0
    within = {name: one for name, one in old.items() if name.startswith(chosen or "")}
    differing = [name for name in sorted({*within, *new}) if within.get(name) != new.get(name)]
    for name in differing:
        print(f"{name}\n  was {json.dumps(within.get(name))}\n  is  {json.dumps(new.get(name))}")
    print(f"{len(differing)} of {len(new)} cases differ")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
