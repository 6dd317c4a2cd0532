#!/usr/bin/env bash
# Trains on a GPU cluster with Slurm, with one process per GPU.
#
#   sbatch --nodes=4 docs/running/slurm.sh runs/arxiv \
#       size=350m,encoding=dape_kerple_log,length=512 --config.data.source=/data/arxiv
#
# Submit it from the repository, after installing into its .venv:
#
#   .venv/bin/pip install -e '.[tokenizers]' 'jax[cuda12]'
#
# The repository, the data and the workdir must be on a file system shared by
# all nodes. Most clusters also require --account and --partition. Two minutes
# before its time limit, the job saves a checkpoint and requeues itself to
# resume.
#SBATCH --job-name=dape_jax
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail

run=${1:?a workdir} arguments=${2:?arguments of configs/lm.py}
shift 2

# JAX finds the other processes from srun's environment; each process uses one
# GPU. Some versions of Slurm do not pass --cpus-per-task on to srun.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 .venv/bin/python train.py \
  --config=configs/lm.py:"$arguments" --workdir="$run" "$@"

steps=$(.venv/bin/python -c 'import json, sys
print(json.load(open(sys.argv[1] + "/config.json"))["train"]["steps"])' "$run")
if [ ! -d "$run/checkpoints/$steps" ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
