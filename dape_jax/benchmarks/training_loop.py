"""Measures the overhead of the training loop over the compiled step.

  python -m dape_jax.benchmarks.training_loop --config=configs/demo.py:dape_kerple_log

Alternates rounds of the step alone, on one batch, with rounds of the full loop (data
loading, transfers, fetching and writing metrics, and an evaluation step at the end)
in one process, and prints the median ratio.
"""

import contextlib
import dataclasses
import io
import statistics
import tempfile
import time

from absl import flags

from dape_jax import cli
from dape_jax.config import ExperimentConfig, overrides

_CONFIG = overrides.define_config_flag()
_STEPS = cli.define_whole_number("steps", 50, "Steps of a round.", 2)
_ROUNDS = cli.define_whole_number("rounds", 7, "Rounds of each.", 1)
flags.mark_flags_as_required(["config"])


class _NoSaver:
  """Skips checkpoints, which are not part of the measurement."""

  def save(self, *_) -> None:
    pass

  def wait(self) -> bool:
    return True


def measure(
    config: ExperimentConfig, steps: int, rounds: int
) -> tuple[list[float], list[float]]:
  """Returns the seconds of each round, of the bare step and of the loop.

  Args:
    config: of the run.
    steps: steps per round.
    rounds: rounds of each kind.
  """
  # Imported late: JAX takes seconds to start, and invalid flags fail at once.
  import jax
  from etils import epath

  from dape_jax.parallel import partitioning
  from dape_jax.training import loop
  from dape_jax.training.metrics import MetricsWriter, Throughput
  from dape_jax.training.profile import ProfileWindow
  from dape_jax.training.run import Run

  train = dataclasses.replace(
      config.train, steps=steps, eval_every=0, checkpoint_every=0
  )
  optimizer = dataclasses.replace(config.optimizer, warmup_steps=1)
  config = dataclasses.replace(config, train=train, optimizer=optimizer)
  mesh = partitioning.make_mesh(config.mesh)
  run = Run(config, mesh)
  bare, whole = [], []
  with (
      jax.set_mesh(mesh),
      tempfile.TemporaryDirectory() as name,
      contextlib.redirect_stderr(io.StringIO()),
      MetricsWriter(
          epath.Path(name),
          first_step=0,
          total_steps=steps,
          tokens_per_step=1,
          main_process=True,
      ) as writer,
  ):
    profile = ProfileWindow(epath.Path(name), None)

    def seconds(train):
      state = jax.block_until_ready(run.new_state())
      begin = time.perf_counter()
      train(state)
      return time.perf_counter() - begin

    batch = jax.block_until_ready(run.batch(0))

    def train_bare(state):
      for _ in range(steps):
        state, metrics = run.train_step(state, batch)
      jax.block_until_ready((state, metrics))

    def train_whole(state):
      throughput = Throughput(1, 1.0)
      loop.train_steps(run, state, _NoSaver(), writer, throughput, profile)

    seconds(train_bare), seconds(train_whole)  # Compile.
    for _ in range(rounds):
      bare.append(seconds(train_bare))
      whole.append(seconds(train_whole))
  return bare, whole


def main(argv: list[str]) -> None:
  cli.refuse_arguments(argv)
  config = overrides.experiment_from_flag(_CONFIG)
  steps = _STEPS.value
  bare, whole = measure(config, steps, _ROUNDS.value)
  ratio = statistics.median(w / b for w, b in zip(whole, bare, strict=True))
  for name, times in (("bare step", bare), ("full loop", whole)):
    per_step = ", ".join(f"{t / steps * 1e3:.1f}" for t in times)
    print(f"{name}: {per_step} ms per step")
  print(f"the loop adds {ratio - 1:+.1%}")


if __name__ == "__main__":
  cli.run(main)
