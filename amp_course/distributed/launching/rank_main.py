"""Run a script as one rank, unchanged, and record how it ended. torchrun starts this instead of the
script.

`python rank_main.py SCRIPT ARGUMENTS`. `__main__`, `sys.argv`, `sys.path`, output and exit code are
as if the script ran alone. When stdin ends, the process that started the run is gone, and this run
ends with it. In the folder that the environment names, rank 1 writes

rank1.out, rank1.err  what it printed
rank1.pid             its process, from the start
rank1.json            how it ended, an `End` of `evidence`
rank1.dump            where all its threads were when it received SIGABRT (or crashed)
"""

import contextlib
import faulthandler
import gc
import json
import os
import sys
import threading
import time
import traceback
import types
from typing import Any

_MOST = 4000  # characters of a message


def main() -> None:
    """Run the script that the command line names."""
    folder, rank = os.environ["AMP_COURSE_RUN_FOLDER"], os.environ["RANK"]
    base = os.path.join(folder, f"rank{rank}")
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(f"{base}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    faulthandler.enable(open(f"{base}.dump", "w"))  # noqa: SIM115  # open to the end
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # not on every system

        # SIGABRT asks where it is; it must not dump its memory, too
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    starter, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    threading.Thread(target=_end_with, args=(starter,), daemon=True).start()
    with open(f"{base}.pid", "w") as pid_file:
        pid_file.write(str(os.getpid()))
    sys.argv = sys.argv[1:]
    script = os.path.abspath(sys.argv[0])
    sys.path[0] = os.path.dirname(script)
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=script, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    try:
        with open(script, "rb") as source:
            code = compile(source.read(), script, "exec")
        exec(code, module.__dict__)
    except SystemExit as error:
        _record(base, "exit", **_exit_code(error.code), **_place(error, script))
        raise
    except BaseException as error:
        name = _name(type(error))
        _record(base, "raised", what=name, message=str(error)[:_MOST], **_place(error, script))
        # show the traceback without this file's frame
        error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
    _record(base, "finished")
    # a process group in a reference cycle has threads, which abort the process if they outlive
    # Python (torch 2.13)
    gc.collect()


def _end_with(starter: int) -> None:
    """End all processes of the run once the pipe `starter` has no writer."""
    os.read(starter, 1)
    from amp_course.kit.children import TOKEN, family

    for process in family(os.environ[TOKEN]):
        with contextlib.suppress(Exception):  # it has just ended
            process.kill()
    os._exit(1)


def _record(base: str, kind: str, **facts: Any) -> None:
    with open(f"{base}.json", "w") as file:
        json.dump({"kind": kind, "at": time.time(), **facts}, file)


def _exit_code(code: object) -> dict[str, Any]:
    if code is None or isinstance(code, int):
        return {"code": code or 0}
    # Python prints any other value, and exits with 1
    return {"code": 1, "message": str(code)[:_MOST]}


def _name(kind: type) -> str:
    own = kind.__module__ in ("builtins", "__main__")
    return kind.__qualname__ if own else f"{kind.__module__}.{kind.__qualname__}"


def _place(error: BaseException, script: str) -> dict[str, Any]:
    """Return the innermost line of the script that led to an error, and its text."""
    if isinstance(error, SyntaxError) and error.filename == script:
        return {"line": error.lineno, "source": (error.text or "").strip()}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == script:
            return {"line": frame.lineno, "source": frame.line or ""}
    return {"line": None, "source": ""}


if __name__ == "__main__":
    main()
