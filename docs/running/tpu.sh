#!/usr/bin/env bash
# Trains on a Cloud TPU slice. Run it from the repository.
#
#   export TPU=my-slice ZONE=us-east5-a TYPE=v5p-128 BUCKET=gs://my-bucket
#   docs/running/tpu.sh create      # request the slice; billing starts
#   docs/running/tpu.sh install     # install the current commit on all workers
#   docs/running/tpu.sh data /data/arxiv     # copy a prepared folder to workers
#   docs/running/tpu.sh train runs/arxiv size=1.3b,encoding=dape_kerple_log,length=512 \
#       --config.data.source=data/arxiv
#   docs/running/tpu.sh watch       # follow worker 0's log; "watch 3": worker 3's
#   docs/running/tpu.sh stop        # SIGTERM: save a checkpoint and exit
#   docs/running/tpu.sh evaluate runs/arxiv --lengths=512,1024,...,32768  # one worker
#   docs/running/tpu.sh delete      # delete the slice; billing ends
#
# Rerun "train", on this slice or another one, to resume. SPOT=--spot is cheaper
# but may be preempted; the run saves a checkpoint first.
#
# Requires gcloud, logged in; a project with the TPU API enabled and quota for
# TYPE in ZONE; and a bucket near ZONE that the slice's service account can
# write to. The first connection creates an ssh key. Slice types, their
# --topology for `python -m dape_jax.compiler`, and their chips (v5p types count
# two cores per chip):
#
#   TYPE v5litepod-16   --topology=v5e:4x4     16 chips
#   TYPE v6e-16         --topology=v6e:4x4     16 chips
#   TYPE v5p-128        --topology=v5p:4x4x4   64 chips
set -euo pipefail

usage() {
  sed -n '2,/^set/{/^set/!p;}' "$0" | cut -c3-
  exit 2
}
[ $# -gt 0 ] || usage

: "${TPU:?export TPU=name of the slice}" "${ZONE:?export ZONE=zone of the slice}"

on() { # worker number or "all", command
  gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker="$1" --command="$2"
}

command=$1
shift
case "$command" in
  create)
    : "${TYPE:?export TYPE=v5litepod-16, v5p-128 or v6e-16, for example}"
    case "$TYPE" in
      v5lite*) runtime=v2-alpha-tpuv5-lite ;;
      v5p*) runtime=v2-alpha-tpuv5 ;;
      v6e*) runtime=v2-alpha-tpuv6e ;;
      *) runtime=tpu-ubuntu2204-base ;;
    esac
    gcloud compute tpus tpu-vm create "$TPU" --zone="$ZONE" \
      --accelerator-type="$TYPE" --version="$runtime" ${SPOT:-}
    ;;
  install)
    folder=$(mktemp -d)
    git archive --format=tar.gz --output="$folder/dape_jax.tar.gz" HEAD
    gcloud compute tpus tpu-vm scp "$folder/dape_jax.tar.gz" "$TPU": \
      --zone="$ZONE" --worker=all
    # Some images have Python 3.11, others a newer version.
    on all "set -e; mkdir -p dape_jax; tar -xzf dape_jax.tar.gz -C dape_jax
      cd dape_jax
      { sudo apt-get -qq update && sudo apt-get -qq install -y python3.11-venv; } ||
        true
      \$(command -v python3.11 || echo python3) -m venv .venv
      .venv/bin/pip install -q -e '.[tokenizers]' 'jax[tpu]' gcsfs"
    ;;
  data)
    : "${BUCKET:?export BUCKET=gs://...}" "${1:?the prepared folder}"
    name=$(basename "$1")
    gcloud storage cp --recursive "$1" "$BUCKET/data/"
    on all "mkdir -p dape_jax/data &&
      gcloud storage cp --recursive '$BUCKET/data/$name' dape_jax/data/"
    echo "train with --config.data.source=data/$name"
    ;;
  train)
    : "${BUCKET:?export BUCKET=gs://...}" "${1:?a name, runs/arxiv for example}"
    : "${2:?arguments of configs/lm.py}"
    run=$1 arguments=$2
    shift 2
    case "$*" in
      *--config.data.source=*) ;;
      *) echo "give --config.data.source=data/NAME" >&2 && exit 2 ;;
    esac
    on all "cd dape_jax && nohup .venv/bin/python train.py \
      --config=configs/lm.py:$arguments --workdir=$BUCKET/$run $* \
      > train.log 2>&1 < /dev/null & sleep 1"
    ;;
  watch) on "${1:-0}" "tail -n 50 -f dape_jax/train.log" ;;
  stop)
    on all "pkill -TERM -f '[t]rain.py'; while pgrep -f '[t]rain.py' > /dev/null
      do sleep 2; done"
    ;;
  evaluate)
    : "${BUCKET:?export BUCKET=gs://...}" "${1:?the name of the run}"
    : "${2:?flags of eval.py, --lengths=512,1024,...,32768 for example}"
    run=$1
    shift
    # Uses one chip of worker 0, without waiting for the other workers.
    on 0 "cd dape_jax && TPU_PROCESS_BOUNDS=1,1,1 TPU_VISIBLE_CHIPS=0 \
      TPU_CHIPS_PER_PROCESS_BOUNDS=1,1,1 .venv/bin/python eval.py \
      --checkpoint=$BUCKET/$run --output=reports/$run $* &&
      gcloud storage cp --recursive reports/$run '$BUCKET/$run/report'"
    ;;
  delete)
    gcloud compute tpus tpu-vm delete "$TPU" --zone="$ZONE" --quiet
    ;;
  *) usage ;;
esac
