"""Start a learner's Jupyter server for the hub, as the learner: first bring their copies of the
course up to date.

    python deploy/learner_server.py [options of jupyterhub-singleuser]

`~/amp_course/notebooks` and `~/amp_course/my_work` get what is missing there and follow the course
as long as the learner has not changed it. A changed file is never written to; the course's new
version is put next to it, under a name with the date. A merge, as nbgitpuller's, would mix lines of
both versions in one notebook.
"""

import os
import sys
import tempfile
from pathlib import Path

from amp_course import work
from amp_course.kit.errors import CourseError

home = Path.home() / "amp_course"
try:
    home.mkdir(exist_ok=True)
    for folder, copies in (("notebooks", home / "notebooks"), ("exercises", home / "my_work")):
        for change in work.copy_missing(folder, copies):
            print(change.message, file=sys.stderr)
except (CourseError, OSError) as error:
    # a full disk, say: without a server they could not even delete something
    print(f"amp_course: {error}", file=sys.stderr)
# A kernel and its server talk through sockets in a folder of the learner's own, not through ports,
# which all learners share: when twelve started kernels at once, two chose the same port and one
# died. The path of a socket has at most 107 bytes, which a folder in a home could exceed.
os.environ["JUPYTER_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="jupyter-")
options = ["--KernelManager.transport=ipc", *sys.argv[1:]]
os.execv(sys.executable, [sys.executable, "-m", "jupyterhub.singleuser", *options])
