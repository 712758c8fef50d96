#!/bin/bash
# Be one rank that mpirun has started:   mpirun -np 8 --host one:4,two:4 bash mpi.sh train.py --epochs 3
# NOT RUN for this course, which has no MPI: its tests run it with an mpirun that only sets what the real ones set.
# Open MPI: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
# MPICH and Intel MPI (Hydra): https://rmeli.github.io/TIL/hpc/mpi; MPI_LOCALRANKID is theirs, too.

set -euo pipefail

# init_process_group() reads RANK and WORLD_SIZE; the script picks its GPU by LOCAL_RANK.
if [[ -n "${OMPI_COMM_WORLD_RANK:-}" ]]; then    # Open MPI
    RANK=$OMPI_COMM_WORLD_RANK
    WORLD_SIZE=$OMPI_COMM_WORLD_SIZE
    LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK
elif [[ -n "${PMI_RANK:-}" ]]; then              # MPICH, Intel MPI
    RANK=$PMI_RANK
    WORLD_SIZE=$PMI_SIZE
    LOCAL_RANK=${MPI_LOCALRANKID:?is not set, so no GPU can be picked: set it to the rank within the machine}
else
    echo "mpi.sh: neither OMPI_COMM_WORLD_RANK nor PMI_RANK is set: start it by mpirun." >&2
    exit 2
fi
export RANK WORLD_SIZE LOCAL_RANK

# With several machines, say where rank 0 runs: export MASTER_ADDR, and have it passed on (Open MPI: mpirun -x MASTER_ADDR).
export MASTER_ADDR="${MASTER_ADDR:-localhost}" MASTER_PORT="${MASTER_PORT:-29500}"

# MPI only starts the processes here: the gradients travel by NCCL or gloo, as init_process_group("nccl") says.
exec python -u "$@"
