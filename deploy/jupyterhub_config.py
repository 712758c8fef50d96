"""Configure JupyterHub for a workshop on one server: one installed course, many learners.

    jupyterhub -f deploy/jupyterhub_config.py

docs/workshop.md says how to install it. Settings come from the environment:

AMP_COURSE_HUB          systemd    learners are system users, each in a systemd unit with limits
                        processes  the same without systemd: plain processes, limited by prlimit
                        trial      on loopback, for trying it out: any name, one password
AMP_COURSE_HUB_URL      where it listens (http://127.0.0.1:8000)
AMP_COURSE_HUB_STATE    folder of the hub's database; in a trial of the homes too
AMP_COURSE_HUB_LEARNERS how many work at the same time (30); decides the threads of a kernel
AMP_COURSE_HUB_THREADS  threads of a kernel, instead of what follows from that number
AMP_COURSE_HUB_MEMORY   limit of each process (2G); with systemd also of all of a learner's together
AMP_COURSE_HUB_IDLE     minutes until what nobody uses is stopped (60)
AMP_COURSE_HUB_ADMINS   names of the teachers, with commas: they may stop a learner's server
AMP_COURSE_HUB_PASSWORD of a trial (workshop)
"""

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from jupyterhub.traitlets import ByteSpecification

c = get_config()  # noqa: F821  (JupyterHub provides it)

COURSE = Path(__file__).resolve().parents[1]
KINDS = ("systemd", "processes", "trial")
MOST_PROCESSES = 400  # of one learner; chapter 10 starts a dozen


def setting(name: str, default: str) -> str:
    """Return AMP_COURSE_HUB_<name>, or the default where it is unset or empty."""
    return os.environ.get(f"AMP_COURSE_HUB_{name}") or default


kind = os.environ.get("AMP_COURSE_HUB") or "systemd"
if kind not in KINDS:
    sys.exit(f"AMP_COURSE_HUB is {kind}: set it to one of {', '.join(KINDS)}.")
state = Path(setting("STATE", "/srv/amp_course_hub"))
state.mkdir(mode=0o700, parents=True, exist_ok=True)
url = urlsplit(setting("URL", "http://127.0.0.1:8000"))
if kind == "trial" and url.hostname not in ("127.0.0.1", "localhost"):
    sys.exit("A trial knows one password for all: it listens on 127.0.0.1 only.")
cores = len(os.sched_getaffinity(0))
threads = setting("THREADS", str(max(1, cores // int(setting("LEARNERS", "30")))))
memory = ByteSpecification().validate(None, setting("MEMORY", "2G"))
idle_seconds = 60 * int(setting("IDLE", "60"))

# The hub. Learners' servers go on while it restarts.
c.JupyterHub.bind_url = url.geturl()
c.JupyterHub.hub_port = (url.port or 8000) + 81
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{(url.port or 8000) + 1}"
c.ConfigurableHTTPProxy.pid_file = str(state / "proxy.pid")
c.JupyterHub.db_url = f"sqlite:///{state / 'jupyterhub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(state / "cookie_secret")
c.JupyterHub.cleanup_servers = False
# A workshop starts with everybody logging in at once. Above this limit the hub does not queue, it
# refuses (429, too many users). Without it, all servers start slowly.
c.JupyterHub.concurrent_spawn_limit = 0
c.Spawner.start_timeout = c.Spawner.http_timeout = 300

# A learner's server. The course is installed once and only read; their copies are in their home.
c.Spawner.cmd = [sys.executable, str(COURSE / "deploy" / "learner_server.py")]
c.Spawner.notebook_dir = "~/amp_course"
c.Spawner.default_url = "/lab/tree/notebooks/00_start.ipynb"
c.Spawner.args = [
    f"--LabApp.extra_labextensions_path={COURSE / 'amp_course' / 'lab_settings' / 'labextensions'}",
    # kernels whose notebook nobody has open; an open one is kept
    f"--MappingKernelManager.cull_idle_timeout={idle_seconds // 2}",
    "--MappingKernelManager.cull_interval=60",
]
c.Spawner.environment = {
    "AMP_COURSE_ROOT": str(COURSE),
    "AMP_COURSE_WORK": "~/amp_course/my_work",
    "JUPYTER_CONFIG_PATH": str(COURSE / "amp_course" / "lab_settings"),
    # Without these each kernel computes with as many threads as there are cores.
    "OMP_NUM_THREADS": threads,
    "MKL_NUM_THREADS": threads,
    "OPENBLAS_NUM_THREADS": threads,
}
c.Spawner.mem_limit = memory

# Servers of learners who have gone home.
c.JupyterHub.services = [
    {
        "name": "idle-culler",
        "command": [sys.executable, "-m", "jupyterhub_idle_culler", f"--timeout={idle_seconds}"],
    }
]
c.JupyterHub.load_roles = [
    {
        "name": "idle-culler",
        "services": ["idle-culler"],
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
    }
]

# Who may log in.
c.Authenticator.admin_users = {name for name in setting("ADMINS", "").split(",") if name}
if kind == "trial":
    c.JupyterHub.authenticator_class = "dummy"
    c.DummyAuthenticator.password = setting("PASSWORD", "workshop")
    c.Authenticator.allow_all = True
    c.Authenticator.username_pattern = r"[^./\\][^/\\]*"  # it names a folder
else:
    c.JupyterHub.authenticator_class = "pam"
    c.PAMAuthenticator.allowed_groups = {"learners"}
    c.PAMAuthenticator.open_sessions = False

# What starts and limits a learner's server. A process past --data gets a MemoryError and lives on;
# systemd also ends what a learner's processes take together.
limits = ["prlimit", f"--data={memory}"]
if kind == "systemd":
    c.JupyterHub.spawner_class = "systemd"
    c.SystemdSpawner.isolate_tmp = True
    c.SystemdSpawner.disable_user_sudo = True
    c.SystemdSpawner.readonly_paths = [str(COURSE)]
    c.SystemdSpawner.unit_extra_properties = {"TasksMax": str(MOST_PROCESSES)}
elif kind == "processes":
    limits += [f"--nproc={MOST_PROCESSES}"]
else:
    c.JupyterHub.spawner_class = "simple"
    c.SimpleLocalProcessSpawner.home_dir_template = str(state / "homes" / "{username}")
    if os.geteuid() == 0:
        c.Spawner.args = [*c.Spawner.args, "--allow-root"]
c.Spawner.cmd = [*limits, *c.Spawner.cmd]
