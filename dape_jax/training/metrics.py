"""Where the numbers of a run go: JSONL, TensorBoard, the terminal."""

import contextlib
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping

import jax
import tensorboardX
import tqdm
from etils import epath

from dape_jax.checkpoint.paths import is_remote
from dape_jax.training.chips import chip_of
from dape_jax.training.log_file import LogFile

_JSONL = "metrics.jsonl"


def _drop_later_lines(path: pathlib.Path, step: int) -> None:
  """Keeps the whole lines up to `step`, so that a resumed run repeats none."""
  if not path.exists():
    return
  kept = []
  for line in path.read_text().splitlines():
    try:
      record = json.loads(line)
    except json.JSONDecodeError:
      continue  # Cut short when the run was killed; the resumed run repeats it.
    if record["step"] <= step:
      kept.append(line + "\n")
  temporary = path.with_suffix(".tmp")
  temporary.write_text("".join(kept))
  os.replace(temporary, path)


class Throughput:
  """How fast steps were since the last question or restart."""

  def __init__(self, tokens_per_step: int, flops_per_token: float):
    """Initialises.

    Args:
      tokens_per_step: of a batch.
      flops_per_token: of `flops.flops_per_token`.
    """
    self._tokens_per_step = tokens_per_step
    chip = chip_of(jax.devices()[0].device_kind)
    # Of all devices; None where what a device can do is not known.
    self._tokens_at_peak = None
    if chip is not None:
      self._tokens_at_peak = chip.flops * jax.device_count() / flops_per_token
    self._step = None
    self._time = 0.0

  def restart(self, step: int) -> None:
    """Starts to count after `step`, leaving out the time spent elsewhere."""
    self._step, self._time = step, time.monotonic()

  def measure(self, step: int) -> dict[str, float]:
    """Returns tokens_per_second, seconds_per_step and model_flop_utilization.

    The latter only of devices whose FLOP/s are known (see `chips`); none of them
    when nothing was counted yet.
    """
    since, start = self._step, self._time
    self.restart(step)
    if since is None or since == step:
      return {}
    seconds = (self._time - start) / (step - since)
    speed = self._tokens_per_step / seconds
    values = {"tokens_per_second": speed, "seconds_per_step": seconds}
    if self._tokens_at_peak:
      values["model_flop_utilization"] = speed / self._tokens_at_peak
    return values


class MetricsWriter:
  """Writes the numbers of a run; a context manager.

  `workdir/metrics.jsonl` has a line {"step": ..., name: number, ...} per
  `write`, floats in full precision; `workdir/tensorboard` the same as events.
  A terminal shows a progress bar, anything else a line per `write`. In a workdir
  that is not local, both are there as of the last `flush`, which copies them.
  """

  def __init__(
      self,
      workdir: epath.Path,
      *,
      first_step: int,
      total_steps: int,
      tokens_per_step: int,
      main_process: bool,
  ):
    """Opens the files; what an earlier try wrote beyond `first_step` goes.

    Args:
      workdir: an existing folder.
      first_step: updates done before; 0 for a new run.
      total_steps: updates of the whole run.
      tokens_per_step: of a batch, for the time left.
      main_process: the others write nothing.
    """
    self._total_steps = total_steps
    self._tokens_per_step = tokens_per_step
    self._main_process = main_process
    self._bar = None
    if not main_process:
      return
    self._workdir = workdir
    self._is_remote = is_remote(workdir)
    if not self._is_remote:
      self._folder = pathlib.Path(workdir)
    else:
      self._folder = pathlib.Path(tempfile.mkdtemp(prefix="dape_jax_"))
      if (workdir / _JSONL).exists():
        (workdir / _JSONL).copy(self._folder / _JSONL)
    path = self._folder / _JSONL
    _drop_later_lines(path, first_step)
    self._log = LogFile(path)
    # The name has seconds only; the suffix keeps a quick restart from
    # overwriting the file of the run before.
    self._events = tensorboardX.SummaryWriter(
        str(self._folder / "tensorboard"),
        purge_step=first_step + 1,
        filename_suffix=f".{first_step}",
    )
    if sys.stderr.isatty():
      self._bar = tqdm.tqdm(
          initial=first_step,
          total=total_steps,
          unit="step",
          dynamic_ncols=True,
          file=sys.stderr,
      )

  def __enter__(self) -> "MetricsWriter":
    return self

  def __exit__(self, *_) -> None:
    if self._main_process:
      self._log.close()
      with contextlib.suppress(OSError):
        self._events.close()
      self._copy()
      if self._is_remote:
        shutil.rmtree(self._folder)
    if self._bar is not None:
      self._bar.close()

  def flush(self) -> None:
    """Makes all that was written be in the workdir."""
    if self._main_process:
      with contextlib.suppress(OSError):
        self._events.flush()
      self._copy()

  def _copy(self) -> None:
    if not self._is_remote:
      return
    for file in self._folder.rglob("*"):
      if file.is_file():
        target = self._workdir / file.relative_to(self._folder).as_posix()
        target.parent.mkdir(parents=True, exist_ok=True)
        epath.Path(file).copy(target, overwrite=True)

  def advance(self, step: int) -> None:
    """Moves the progress bar to `step`."""
    if self._bar is not None:
      self._bar.update(step - self._bar.n)

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Writes named numbers of `step`.

    Args:
      step: updates done.
      values: finite Python numbers.
    """
    if not self._main_process:
      return
    self._log.append(json.dumps({"step": step, **values}) + "\n")
    # Its thread ends when it cannot write, and would be waited for ever after.
    if self._events.file_writer.event_writer._worker.is_alive():
      for name, value in values.items():
        self._events.add_scalar(name, value, step)
    self._show(step, values)

  def _show(self, step: int, values: Mapping[str, float]) -> None:
    losses = [f"{k} {v:.4f}" for k, v in values.items() if "loss" in k]
    speed = values.get("tokens_per_second")
    if speed is not None:
      losses.append(f"{speed:,.0f} tokens/s")
    if (utilization := values.get("model_flop_utilization")) is not None:
      losses.append(f"{utilization:.1%} MFU")
    if self._bar is not None:
      if "loss" in values:
        self._bar.set_postfix_str(", ".join(losses))
      else:
        self._bar.write(f"step {step}: {', '.join(losses)}", file=sys.stderr)
      return
    if speed is not None:
      seconds = (self._total_steps - step) * self._tokens_per_step / speed
      left = tqdm.tqdm.format_interval(seconds)
      losses.append(f"{left} left")
    print(
        f"step {step}/{self._total_steps}: {', '.join(losses)}",
        file=sys.stderr,
        flush=True,
    )
