"""Run the phrasebook's loops for real, each library in its own process, and hold their losses
against each other.

`make test-phrasebook` runs this. The libraries get an environment of their own, .venv-phrasebook,
for Paddle is not among what the course needs; it is made once and used again. The sides agree when

- those built on PyTorch give the very losses of the plain `torch.amp` loop in the dtype that they
  computed in, bit for bit;
- Paddle, whose kernels are its own, gives those of fp32 within PADDLE_TOLERANCE, for on a CPU it
  switches its AMP off;
- each computed in the dtype that the phrasebook says, and has every name that the phrasebook uses;
- the course's auditor accuses none of Accelerate's and Fabric's loops, and finds the broken ones
  out;
- torchao, the one of chapter 12's phrasebook that runs here, computes below 16 bits what the course
  and NumPy do;
- four trainers do to a step what the trainers' table says, fact by fact.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys

import install

from amp_course.recipes.phrasebook import AMP, LOW_BIT, Library

PACKAGES = (
    "torch",
    "accelerate",
    "lightning-fabric",
    "paddlepaddle",
    "pytorch-lightning",
    "scikit-learn",
    "torchao",
    "transformers",
)
REFERENCE = "torch_amp"
PADDLE_TOLERANCE = 1e-5  # of a loss, relative; 6e-7 is seen, bf16 is off by 4e-3
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
AUDITED = ("accelerate", "fabric")  # whose loops the auditor runs
SECONDS = 300  # for one library, its imports included
FINDINGS = (
    "audit of",
    "torchao, ",
    "trainers, ",
    "WRONG: ",
)  # how a line begins that a script found; libraries print more


def main() -> int:
    """Set the environment up, run the loops, print the table; return 0 if all agree."""
    parser = argparse.ArgumentParser(
        description="Run the phrasebook's loops in an environment of their own."
    )
    parser.add_argument(
        "--torch-index", default="", help="take torch from the package index at this address"
    )
    torch_index = parser.parse_args().torch_index or install.read_stamp()["torch_index"]
    use_own_environment()
    try:
        set_up(torch_index)
    except install.Stop as stop:
        return install.say(f"\nphrasebook: {stop}", 1, sys.stderr)
    agree = report({library.slug: run(library) for library in AMP.libraries if library.on_cpu})
    trainers = checked("the trainers' table", "phrasebook_trainers.py")
    return max([agree, *(audited(slug) for slug in AUDITED), below_16_bits(), trainers])


def use_own_environment() -> None:
    """Point the course's own set-up at .venv-phrasebook and its pins."""
    install.VENV = install.ROOT / ".venv-phrasebook"
    install.PYTHON = install.VENV / "bin" / "python"
    install.STAMP = install.VENV / "installed.json"
    install.LOG = install.VENV / "install.log"
    install.CONSTRAINTS = install.ROOT / "tools" / "phrasebook-constraints.txt"


def set_up(torch_index: str) -> None:
    """Install the libraries; do nothing where that is done.
    The stamp comes last, so an interrupted run is picked up again.
    """

    def state() -> dict[str, str]:
        pins = install.CONSTRAINTS.read_bytes() + " ".join(PACKAGES).encode()
        return {
            "requirements": hashlib.sha256(pins).hexdigest(),
            "torch_index": torch_index,
            "python": os.path.realpath(install.PYTHON),
        }

    if install.PYTHON.exists() and install.read_stamp() == state():
        return
    with install.alone():
        install.check_folder()
        install.STAMP.unlink(missing_ok=True)
        install.make_venv()
        install.forget_half_written()
        install.say(
            "Installing the libraries of the phrasebook in .venv-phrasebook; the first time takes "
            "some minutes ..."
        )
        if torch_index:
            install.pip("--index-url", torch_index, f"torch=={install.torch_pin()}")
        install.pip("-c", str(install.CONSTRAINTS), *PACKAGES)
        install.STAMP.write_text(json.dumps(state()), encoding="utf-8")


def run(library: Library) -> dict:
    """Run a library's loop in a process of its own, on the CPU; return its report, or {"failed":
    why}.
    """
    command = [
        install.PYTHON,
        install.ROOT / "tools" / "phrasebook_run.py",
        library.slug,
        *library.on_cpu,
    ]
    # Threads alike for all, for a sum's order depends on them; no GPU, for what is said here is
    # said of CPUs.
    hidden = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = hidden | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            [*command, "--names", *library.names],
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"it had not finished after {SECONDS} seconds"}
    if done.returncode:
        return {
            "failed": (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        }
    return json.loads(done.stdout.splitlines()[-1])


def audited(slug: str) -> int:
    """Audit the loops of a library in a process of its own;
    return 1 if one got another verdict than it deserves.
    """
    return checked(f"the audit of {slug}", "phrasebook_audit.py", slug)


def below_16_bits() -> int:
    """Compare torchao's arithmetic in a process of its own;
    return 1 if some of it is not what the phrasebook says.
    """
    (torchao,) = LOW_BIT.only("torchao").libraries
    files = sorted({phrase.sources["torchao"] for phrase in LOW_BIT.phrases})
    arguments = (torchao.version, "--names", *torchao.names, "--files", *files)
    return checked("torchao", "phrasebook_low_bit.py", *arguments)


def checked(name: str, script: str, *arguments: str) -> int:
    """Run a script that prints a line for each of its findings, marked if it is wrong;
    return 1 if one is, or if it fails.
    """
    command = [install.PYTHON, install.ROOT / "tools" / script, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return install.say(
            f"phrasebook: {name} had not finished after {SECONDS} seconds", 1, sys.stderr
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith(FINDINGS)]
    print("\n".join(lines))
    if done.returncode and not any(line.startswith("WRONG") for line in lines):
        print(done.stderr, file=sys.stderr)
    return int(done.returncode != 0)


def report(found: dict[str, dict]) -> int:
    """Print what each library did and what is wrong with it; return 1 if anything is."""
    if "failed" in found[REFERENCE]:
        return install.say(
            f"phrasebook: the plain torch.amp loop failed: {found[REFERENCE]['failed']}",
            1,
            sys.stderr,
        )
    references = {DTYPES[one["setting"]]: one["losses"] for one in found[REFERENCE]["runs"]}
    faults = about_references(references)
    notes: dict[str, int] = {}  # what was said → its number in the list under the table
    print(row("", "version", "asked", "computed in", "first loss", "last loss", "apart", "it said"))
    for library in AMP.libraries:
        if not library.on_cpu:
            print(row(library.name, library.version, f"not run: {library.not_run}"))
            continue
        result = found[library.slug]
        faults += about_library(library, result)
        for one in result.get("runs", []):
            apart = difference(one, references)
            faults += about_run(library, one, apart)
            said = " ".join(
                f"({notes.setdefault(message, len(notes) + 1)})" for message in one["said"]
            )
            silent = "" if one["dtypes"] == [DTYPES[one["setting"].split()[0]]] else "nothing"
            losses = [f"{loss:.5f}" for loss in one["losses"][:1] + one["losses"][-1:]] or ["", ""]
            ending = one["refused"] or said or silent
            dtypes = "+".join(one["dtypes"])
            print(
                row(
                    library.name,
                    result["version"],
                    one["setting"],
                    dtypes,
                    *losses,
                    f"{apart:.2g}",
                    ending,
                )
            )
    print(f"""
apart: the largest relative difference, of {len(references["float32"])} losses, from those of the
plain torch.amp loop in the dtype that was computed in, which is what the first layer gave. 0 is bit
for bit.""")
    for message, number in notes.items():
        print(f"({number}) {message}")
    for fault in faults:
        print(f"WRONG: {fault}", file=sys.stderr)
    print("FAILED" if faults else "All agree.")
    return 1 if faults else 0


def row(*cells: str) -> str:
    """Write one line of the table; the last cell may be as long as it likes."""
    widths = (22, 9, 9, 13, 12, 11, 9)
    return (
        "".join(cell.ljust(width) for cell, width in zip(cells[:-1], widths, strict=False))
        + cells[-1]
    )


def difference(one: dict, references: dict[str, list[float]]) -> float:
    """Return the largest relative difference of a run's losses from the reference in the dtype it
    computed in; inf if none.
    """
    reference = references.get("+".join(one["dtypes"]), [])
    if not reference or len(reference) != len(one["losses"]):
        return float("inf")
    return max(abs(a - b) / abs(b) for a, b in zip(one["losses"], reference, strict=True))


def about_references(references: dict[str, list[float]]) -> list[str]:
    """Look whether the plain loop learned, and whether its three precisions can be told apart:
    else equality says nothing.
    """
    faults = [
        f"the plain loop in {dtype} did not learn: its loss went from {losses[0]:.3f} to "
        f"{losses[-1]:.3f}"
        for dtype, losses in references.items()
        if not losses[-1] < losses[0] / 2
    ]
    if len({tuple(losses) for losses in references.values()}) < len(references):
        faults.append(
            "the plain loop gave the same losses in two dtypes, so that equal losses prove nothing"
        )
    return faults


def about_library(library: Library, result: dict) -> list[str]:
    """Look at what holds for a library as a whole: that it ran, in the version described,
    with the names used.
    """
    if "failed" in result:
        return [f"{library.name} could not be run: {result['failed']}"]
    faults = [
        f"{library.name} has no {name}, which the phrasebook uses" for name in result["missing"]
    ]
    if result["version"] not in library.version:
        faults.append(
            f"{library.name} is {result['version']} here, and the phrasebook describes "
            f"{library.version}"
        )
    return faults


def about_run(library: Library, one: dict, apart: float) -> list[str]:
    """Look at one run: its dtype as the phrasebook says, its losses those of that dtype."""
    name = f"{library.name}, asked for {one['setting']},"
    if one["refused"]:
        return [f"{name} refused: {one['refused']}"]
    said = library.on_cpu[one["setting"]]
    if one["dtypes"] != [said]:
        return [f"{name} computed in {' and '.join(one['dtypes'])}, and the phrasebook says {said}"]
    tolerance = PADDLE_TOLERANCE if library.slug == "paddle" else 0.0
    return (
        [f"{name} has losses {apart:.2g} apart from torch.amp's in {said}"]
        if apart > tolerance
        else []
    )


if __name__ == "__main__":
    sys.exit(main())
