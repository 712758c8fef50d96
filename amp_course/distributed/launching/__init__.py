"""Start ranks: a script from a notebook, what the launchers do for a script,
and how long they take.
"""

from amp_course.distributed.launching.launchers import LAUNCHERS, Launcher, LauncherTable
from amp_course.distributed.launching.run_script import find_script, run_script
from amp_course.distributed.launching.script_run import ScriptRun
from amp_course.distributed.launching.start_up import StartUpTimes, time_launchers

__all__ = [
    "LAUNCHERS",
    "Launcher",
    "LauncherTable",
    "ScriptRun",
    "StartUpTimes",
    "find_script",
    "run_script",
    "time_launchers",
]
