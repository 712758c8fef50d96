"""Run every check of the course that needs no GPU, the quick ones first; stop at the first that fails.

`make test` runs this in .venv. Names of parts choose some: `make test ARGS="ruff unit"`.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = ["-m", "pytest", "-q", "-n", "2", "--dist", "loadscope"]
NBVAL = ["--nbval-current-env", "--nbval-cell-timeout=120", "--timeout=600", "-p", "no:cacheprovider"]

# name → the arguments for Python, in the order in which they run
PARTS = {
    "ruff": ["-m", "ruff", "check", "."],
    "format": ["-m", "ruff", "format", "--check", "--quiet", "--diff", "."],
    "mypy": ["-m", "mypy"],
    "imports": ["-c", "from importlinter.cli import lint_imports_command as main; main()"],
    "authoring": ["-m", "amp_course.authoring", "check"],
    "unit": [*PYTEST, "-m", "not browser"],
    "notebooks": [*PYTEST, "--nbval", *NBVAL, "notebooks", "solutions"],
    "exercises": [*PYTEST, "--nbval-lax", *NBVAL, "exercises"],
    "browser": [*PYTEST, "-m", "browser", "-rs", "tests/browser"],
}


def main(names: list[str]) -> int:
    """Run the named parts, or all; return 0 if none failed."""
    unknown = set(names) - set(PARTS)
    if unknown:
        print(
            f"There is no part named {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}.", file=sys.stderr
        )
        return 2
    lines, failed = [], ""
    with tempfile.TemporaryDirectory() as scratch:
        # The reader's copies and progress are not the tests' to touch. Two processes run tests, so each gets one thread:
        # more threads than cores make small ops many times as slow.
        environment = os.environ | {"AMP_COURSE_WORK": str(Path(scratch, "my_work")), "OMP_NUM_THREADS": "1"}
        for name in names or PARTS:
            print(f"== {name}", flush=True)
            start = time.monotonic()
            code = subprocess.run([sys.executable, *PARTS[name]], cwd=ROOT, env=environment).returncode
            lines.append(f"{name} {time.monotonic() - start:.0f} s")
            if code:
                failed = name
                break
    print(f"\n{'FAILED in ' + failed if failed else 'All passed'}: {', '.join(lines)}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
