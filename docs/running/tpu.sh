#!/usr/bin/env bash
# A training run on a Cloud TPU slice, from this directory's repository.
#
#   export TPU=my-slice ZONE=us-east5-a TYPE=v5p-128 BUCKET=gs://my-bucket
#   docs/running/tpu.sh create      # ask for the slice
#   docs/running/tpu.sh install     # this code, on all of its workers
#   docs/running/tpu.sh data /data/arxiv     # a prepared folder, to all workers
#   docs/running/tpu.sh train runs/arxiv size=1.3b,encoding=dape_kerple_log,length=512
#   docs/running/tpu.sh watch       # the log of worker 0
#   docs/running/tpu.sh stop        # SIGTERM: saves, and ends
#   docs/running/tpu.sh evaluate runs/arxiv  # on one worker
#   docs/running/tpu.sh delete      # ends what it costs
#
# "train" again, on this slice or another one, goes on with the run. Needs the
# gcloud command and a project with TPU quota.
set -euo pipefail

: "${TPU:?export TPU=name of the slice}" "${ZONE:?export ZONE=zone of the slice}"

on() { # worker number or "all", command
  gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker="$1" --command="$2"
}

case "${1:-}" in
  create)
    : "${TYPE:?export TYPE=v5litepod-16, v5p-128 or v6e-64, for example}"
    case "$TYPE" in
      v5lite*) runtime=v2-alpha-tpuv5-lite ;;
      v5p*) runtime=v2-alpha-tpuv5 ;;
      v6e*) runtime=v2-alpha-tpuv6e ;;
      *) runtime=tpu-ubuntu2204-base ;;
    esac
    # SPOT=--spot is cheaper, and may be taken away: such a run is stopped by
    # SIGTERM, and goes on on the next slice.
    gcloud compute tpus tpu-vm create "$TPU" --zone="$ZONE" \
      --accelerator-type="$TYPE" --version="$runtime" ${SPOT:-}
    ;;
  install)
    archive=$(mktemp --suffix=.tar.gz)
    git archive --format=tar.gz --output="$archive" HEAD
    gcloud compute tpus tpu-vm scp "$archive" "$TPU":dape_jax.tar.gz \
      --zone="$ZONE" --worker=all
    on all "mkdir -p dape_jax && tar -xzf dape_jax.tar.gz -C dape_jax &&
      sudo apt-get -qq update && sudo apt-get -qq install -y python3.11-venv ||
      true; cd dape_jax && \$(command -v python3.11 || echo python3) -m venv .venv &&
      .venv/bin/pip install -q -e '.[tokenizers]' 'jax[tpu]' gcsfs"
    ;;
  data)
    : "${BUCKET:?export BUCKET=gs://...}" "${2:?the prepared folder}"
    gcloud storage cp --recursive "$2" "$BUCKET/data/"
    on all "mkdir -p dape_jax/data &&
      gcloud storage cp --recursive '$BUCKET/data/$(basename "$2")' dape_jax/data/"
    ;;
  train)
    : "${BUCKET:?export BUCKET=gs://...}" "${2:?a name, runs/arxiv for example}"
    : "${3:?arguments of configs/lm.py}"
    shift
    run=$1 arguments=$2
    shift 2
    on all "cd dape_jax && nohup .venv/bin/python train.py \
      --config=configs/lm.py:$arguments --workdir=$BUCKET/$run $* \
      > train.log 2>&1 < /dev/null & sleep 1"
    ;;
  watch) on 0 "tail -n 50 -f dape_jax/train.log" ;;
  stop) on all "pkill -TERM -f '[t]rain.py' || true" ;;
  evaluate)
    : "${BUCKET:?export BUCKET=gs://...}" "${2:?the name of the run}"
    # One worker alone: the others of a slice are not waited for.
    on 0 "cd dape_jax && TPU_PROCESS_BOUNDS=1,1,1 TPU_VISIBLE_CHIPS=0 \
      TPU_CHIPS_PER_PROCESS_BOUNDS=1,1,1 .venv/bin/python eval.py \
      --checkpoint=$BUCKET/$2 --lengths=512,1024,...,131072 --output=report &&
      gcloud storage cp --recursive report '$BUCKET/$2/'"
    ;;
  delete)
    gcloud compute tpus tpu-vm delete "$TPU" --zone="$ZONE" --quiet
    ;;
  *)
    sed -n '2,/^set/{/^set/!p}' "$0" | cut -c3-
    exit 2
    ;;
esac
