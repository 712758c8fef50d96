"""Run notebooks as they are and save them with their outputs, each in a kernel of its own: a part
of `tools/on_gpu.sh`.

A cell that fails does not stop its notebook, and a notebook that takes too long is saved as far as
it got. Printed is what failed, and each cell that should show the same on any machine and shows
something else. The exit code is 1 if there is any.

    python tools/gpu_notebooks.py --out FOLDER --seconds 200 09 06 04
"""

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parent.parent
AT_ONCE = 3


def run(path, out, deadline):
    """Run a notebook until `deadline`, on the clock of time.monotonic(), and save it;
    return what is wrong with it.
    """
    stored, book = (nbformat.read(path, as_version=4) for _ in range(2))
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        book,
        kernel_name="python3",
        allow_errors=True,
        timeout_func=lambda cell: max(1, int(deadline - time.monotonic())),
        startup_timeout=60,
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=False,
        coalesce_streams=True,
        extra_arguments=["--IPKernelApp.log_level=40"],  # it warns of plain TCP
    )
    problems, began = [], time.monotonic()
    try:
        client.execute()
    except (CellTimeoutError, DeadKernelError, RuntimeError) as error:
        problems.append(
            f"not finished after {time.monotonic() - began:.0f} s: {str(error).splitlines()[0]}"
        )
    nbformat.write(book, out / path.name)
    for number, (cell, before) in enumerate(zip(book.cells, stored.cells, strict=True)):
        if cell.cell_type == "code" and cell.execution_count:
            problems += [f"cell {number}: {problem}" for problem in compare(cell, before)]
    print(f"{path.name}: {time.monotonic() - began:.0f} s, {len(problems)} problems", flush=True)
    for problem in problems:
        print(f"    {problem}", flush=True)
    return problems


def compare(cell, stored):
    """Say which error a cell raised, or that it shows something else than what is stored and should
    be the same.
    """
    tags = cell.metadata.get("tags", [])
    errors = [output for output in cell.outputs if output.output_type == "error"]
    if errors and "raises-exception" not in tags:
        yield f"{errors[0].ename}: {' '.join(errors[0].evalue.split())[:300]}"
    elif "nbval-ignore-output" not in tags:
        for now, before in zip(text_of(cell), text_of(stored), strict=True):
            if now != before:
                yield f"is stored with {before[:200]!r}, shows {now[:200]!r}"


def text_of(cell):
    """Return what a cell printed, and the texts of the values that it showed."""
    printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    shown = [output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return printed, "\n".join(filter(None, shown))


def main():
    """Run the notebooks; return 1 if anything is wrong with one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="where to save them")
    parser.add_argument("--seconds", type=int, required=True, help="for all of them")
    parser.add_argument(
        "--alone",
        default="",
        help="the number of one that measures times, which runs first and alone",
    )
    parser.add_argument("numbers", nargs="*", help="which: 06 for notebooks/06_loop.ipynb")
    chosen = parser.parse_args()
    deadline = time.monotonic() + chosen.seconds
    os.environ["TQDM_DISABLE"] = "1"
    chosen.out.mkdir(parents=True, exist_ok=True)

    def one(number, until=deadline):
        (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
        return run(path, chosen.out, until)

    alone_until = (
        deadline - 0.6 * chosen.seconds
    )  # so that one that hangs leaves time for the others
    alone = [one(chosen.alone, alone_until)] if chosen.alone else []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = [*alone, *pool.map(one, chosen.numbers)]
    return 1 if any(found) else 0


if __name__ == "__main__":
    sys.exit(main())
