#!/usr/bin/env bash
# A training run on a GPU cluster with Slurm: one process for each GPU.
#
#   sbatch --nodes=4 docs/running/slurm.sh runs/arxiv \
#       size=350m,encoding=dape_kerple_log,length=512 --config.data.source=/data/arxiv
#
# from the repository, whose .venv has jax[cuda12] beside the package
# (.venv/bin/pip install -e '.[tokenizers]' 'jax[cuda12]'). It, the data and the
# workdir lie on a file system that all nodes see. Most clusters want --account and
# --partition too. Two minutes before its time is over the job saves, and queues itself again; the
# run then goes on.
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

# JAX finds the other processes by what srun sets; each takes one GPU of its node.
# Some versions of Slurm do not hand --cpus-per-task on to srun.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 .venv/bin/python train.py \
  --config=configs/lm.py:"$arguments" --workdir="$run" "$@"

steps=$(.venv/bin/python -c 'import json, sys
print(json.load(open(sys.argv[1] + "/config.json"))["train"]["steps"])' "$run")
if [ ! -d "$run/checkpoints/$steps" ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
