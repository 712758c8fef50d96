"""What starts the ranks of a training, and what each of these launchers does for them. Data; `start_up` runs them."""

from __future__ import annotations

from dataclasses import dataclass

from amp_course.kit.table import html_table, text_table

_TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
_SRUN = "https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES"
_OPEN_MPI = "https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html"
FOUR = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what init_process_group() reads
TORCHRUN = (*FOUR, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
_SCRIPT = "the script, from LOCAL_RANK"


@dataclass(frozen=True)
class Launcher:
    """One way to start ranks.

    command:    for two ranks on one machine, or as its template starts them
    sets:       the variables that tell a process its place
    device:     who calls torch.cuda.set_device, and from what
    restarts:   what happens when a rank fails
    machines:   how it reaches several of them
    key:        its name for `time_launchers`; "" if it was not run here
    source:     where its documentation says so
    """

    name: str
    command: str
    sets: tuple[str, ...]
    device: str
    restarts: str
    machines: str
    key: str
    source: str


LAUNCHERS = (
    Launcher(
        "torchrun",
        "torchrun --standalone --nproc-per-node 2 train.py",
        TORCHRUN,
        _SCRIPT,
        "ends all ranks; starts them again up to --max-restarts times (default 0)",
        "torchrun on each, with --nnodes and --rdzv-endpoint",
        "torchrun",
        _TORCHRUN,
    ),
    Launcher(
        "torchrun, two nodes",
        "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 train.py (on each)",
        TORCHRUN,
        _SCRIPT,
        "as torchrun, on all nodes together",
        "torchrun on each, with --nnodes 2 --rdzv-endpoint HOST:29500; here both are on one machine",
        "two nodes",
        _TORCHRUN,
    ),
    Launcher(
        "torch.multiprocessing.spawn",
        "python train.py, which calls spawn(work, nprocs=2)",
        (),
        "the function, from its first argument",
        "ends all ranks and raises in the process that called spawn",
        "spawn on each; the function computes the global rank",
        "spawn",
        "https://docs.pytorch.org/docs/stable/multiprocessing.html#spawning-subprocesses",
    ),
    Launcher(
        "processes by hand",
        "RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29500 python train.py & (and RANK=1)",
        FOUR,
        "the script, from a variable of yours",
        "nothing: the other ranks raise, or wait",
        "the same by ssh, with another MASTER_ADDR",
        "by hand",
        "https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization",
    ),
    Launcher(
        "torch.distributed.launch (deprecated)",
        "python -m torch.distributed.launch --nproc-per-node 2 train.py",
        TORCHRUN,
        "the script, from the argument --local-rank that is added to its command line",
        "as torchrun, which it calls",
        "as torchrun",
        "launch",
        "https://docs.pytorch.org/docs/stable/distributed.html#launch-utility",
    ),
    Launcher(
        "Accelerate",
        "accelerate launch --multi_gpu --num_processes 2 train.py",  # with --cpu it starts one process, or needs MPI (1.15)
        (*TORCHRUN, "ACCELERATE_MIXED_PRECISION"),
        "Accelerator(), which the script makes",
        "as torchrun, which it calls",
        "accelerate launch on each, with --num_machines and --machine_rank",
        "accelerate",
        "https://huggingface.co/docs/accelerate/package_reference/cli#accelerate-launch",
    ),
    Launcher(
        "Slurm",
        "sbatch slurm.sbatch train.py",
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_NODELIST"),
        "the script, from LOCAL_RANK, which the template sets",
        "srun --kill-on-bad-exit ends all ranks; Slurm starts the job again after a node has failed, not after a rank has",
        "all that the job was given",
        "",
        _SRUN,
    ),
    Launcher(
        "MPI",
        "mpirun -np 2 bash mpi.sh train.py",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "or PMI_RANK", "PMI_SIZE"),
        "the script, from LOCAL_RANK, which the template sets",
        "ends all ranks",
        "mpirun --host A,B",
        "",
        _OPEN_MPI,
    ),
)


@dataclass(frozen=True)
class LauncherTable:
    """The launchers as a table, in plain text and in HTML."""

    launchers: tuple[Launcher, ...] = LAUNCHERS

    def rows(self) -> list[list[str]]:
        """Return a table as text, its head first."""
        rows = [["launcher", "sets", "picks the GPU", "when a rank fails", "several machines", "run here"]]
        for one in self.launchers:
            sets = ", ".join(one.sets) or "nothing"
            rows.append([one.name, sets, one.device, one.restarts, one.machines, "yes" if one.key else "no"])
        return rows

    def __str__(self) -> str:
        """Write one launcher after the other: the rows are too long for a terminal."""
        head, *rows = self.rows()
        return "\n\n".join(
            text_table([["launcher", row[0]], *map(list, zip(head[1:], row[1:], strict=True))]) for row in rows
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.rows())
