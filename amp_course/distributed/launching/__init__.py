"""Start ranks: run a script from a notebook, compare and time launchers."""

from amp_course.distributed.launching.launchers import LAUNCHERS, LauncherTable
from amp_course.distributed.launching.run_script import find_script, run_script
from amp_course.distributed.launching.script_run import ScriptRun
from amp_course.distributed.launching.start_up import StartUpTimes, time_launchers

__all__ = [
    "LAUNCHERS",
    "LauncherTable",
    "ScriptRun",
    "StartUpTimes",
    "find_script",
    "run_script",
    "time_launchers",
]
