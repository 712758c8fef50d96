"""Audit the tests' steps and examine their scripts on the GPU, and print where the findings differ
from those on a CPU.

Each "cpu" in them becomes "cuda", and tensors are made there by default. Random numbers differ too,
so look at each line: not every difference is a mistake of the tools. A part of `tools/on_gpu.sh`.

    python tools/gpu_findings.py --seconds 60 [audit/ doctor/sound/ …]
"""

import argparse
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("audit/", "doctor/faulty/", "doctor/odd/", "doctor/sound/")
DEFAULT = 'import torch; torch.set_default_device("{}")'


def copy_for(device, folder):
    """Copy the tests to `folder`, with what names the CPU,
    or leaves the device of random numbers open, changed.
    """
    shutil.copytree(
        ROOT / "tests",
        folder / "tests",
        ignore=shutil.ignore_patterns("__pycache__", ".*", "browser", "notebooks"),
    )
    for path in [*(folder / "tests/audit").rglob("*.*"), *(folder / "tests/doctor").rglob("*.*")]:
        text = re.sub(r"""(["'])cpu\1""", rf"\1{device}\1", path.read_text("utf-8"))
        text = text.replace("torch.Generator()", "torch.Generator(torch.get_default_device())")
        if "/doctor/" in str(path):
            text = re.sub(
                r"^import torch$", DEFAULT.format(device), text, count=1, flags=re.MULTILINE
            )
        path.write_text(text, "utf-8")


def begin(device, folder):
    """Prepare a worker: the copy is what it imports."""
    sys.path.insert(0, folder)
    import torch

    torch.set_num_threads(1)
    torch.set_default_device(device)
    from tests.findings.record import audits, jobs, scripts

    begin.jobs = dict(jobs((audits, scripts)))


def one(name):
    """Return the line of one case."""
    try:
        return begin.jobs[name]()
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"[:300]}


def main():
    """Run what was asked for; return 1 if less than half of it could be run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="for all of it")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("chosen", nargs="*", default=SOURCES, help="how the names begin")
    chosen = parser.parse_args()
    device = chosen.device
    deadline = time.monotonic() + chosen.seconds
    with tempfile.TemporaryDirectory() as folder:
        copy_for(device, Path(folder))
        sys.path.insert(0, folder)
        from tests.findings.record import stored

        before = {
            name: line for name, line in stored().items() if name.startswith(tuple(chosen.chosen))
        }
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, str(ROOT)])
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(chosen.workers, context, begin, (device, folder))
        running = {pool.submit(one, name): name for name in before}
        found = {}
        try:
            for done in as_completed(running, timeout=max(1.0, deadline - time.monotonic())):
                found[running[done]] = done.result()
        except TimeoutError:
            print(f"{len(before) - len(found)} cases were not run: time is up")
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.kill()
    differing = [name for name in sorted(found) if found[name] != before[name]]
    for name in differing:
        was, now = (
            {key: line[key] for key in line if line.get(key) != other.get(key)}
            for line, other in ((before[name], found[name]), (found[name], before[name]))
        )
        print(f"{name}\n    on a CPU {was}\n    here     {now}")
    print(f"{len(found)} cases, {len(differing)} differ")
    return 0 if len(found) > len(before) / 2 else 1


if __name__ == "__main__":
    sys.exit(main())
