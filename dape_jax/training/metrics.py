"""Metrics of a run: metrics.jsonl, TensorBoard events and the terminal."""

import contextlib
import errno
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
from dape_jax.training.flops import chip_of

_JSONL = "metrics.jsonl"


class Throughput:
  """Measures training speed since the last measurement or restart."""

  def __init__(self, tokens_per_step: int, flops_per_token: float):
    """Initializes.

    Args:
      tokens_per_step: tokens per batch.
      flops_per_token: see `flops.flops_per_token`.
    """
    self._tokens_per_step = tokens_per_step
    chip = chip_of(jax.devices()[0].device_kind)
    # Over all devices; None if their peak is unknown.
    self._tokens_at_peak = None
    if chip is not None:
      self._tokens_at_peak = chip.flops * jax.device_count() / flops_per_token
    self._step = None
    self._time = 0.0

  def restart(self, step: int) -> None:
    """Restarts the clock after `step`, to exclude other work."""
    self._step, self._time = step, time.monotonic()

  def measure(self, step: int) -> dict[str, float]:
    """Returns tokens_per_second, seconds_per_step and model_flop_utilization.

    The last is included for known chips only (see `flops.chip_of`). Returns {}
    if no step was timed.
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
  """Writes the metrics of a run; a context manager.

  Each `write` appends a line {"step": ..., name: number, ...} to
  `workdir/metrics.jsonl`, floats in full precision, and the same numbers to
  `workdir/tensorboard`. If stderr is a terminal, it shows a progress bar,
  otherwise one line per `write`. A remote workdir is updated on each `flush`.
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
    """Opens the files; drops what an interrupted run wrote after `first_step`.

    Args:
      workdir: an existing folder.
      first_step: updates done before; 0 for a new run.
      total_steps: updates of the entire run.
      tokens_per_step: tokens per batch, to estimate the time left.
      main_process: False in processes that write nothing.
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
    self._log = _LogFile(path)
    # File names have a resolution of seconds; the suffix keeps a quick restart
    # from overwriting the previous file.
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

  def advance(self, step: int) -> None:
    """Moves the progress bar to `step`."""
    if self._bar is not None:
      self._bar.update(step - self._bar.n)

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Writes the metrics of `step`: finite Python numbers by name."""
    if not self._main_process:
      return
    self._log.append(json.dumps({"step": step, **values}) + "\n")
    # A write error ends the writer's thread; add_scalar would then block
    # forever.
    if self._events.file_writer.event_writer._worker.is_alive():
      for name, value in values.items():
        self._events.add_scalar(name, value, step)
    self._show(step, values)

  def flush(self) -> None:
    """Flushes everything written so far to the workdir."""
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

  def _show(self, step: int, values: Mapping[str, float]) -> None:
    shown = [f"{k} {v:.4f}" for k, v in values.items() if "loss" in k]
    speed = values.get("tokens_per_second")
    if speed is not None:
      shown.append(f"{speed:,.0f} tokens/s")
    if (utilization := values.get("model_flop_utilization")) is not None:
      shown.append(f"{utilization:.1%} MFU")
    if self._bar is not None:
      if "loss" in values:
        self._bar.set_postfix_str(", ".join(shown))
      else:
        self._bar.write(f"step {step}: {', '.join(shown)}", file=sys.stderr)
      return
    if speed is not None:
      seconds = (self._total_steps - step) * self._tokens_per_step / speed
      shown.append(f"{tqdm.tqdm.format_interval(seconds)} left")
    print(
        f"step {step}/{self._total_steps}: {', '.join(shown)}",
        file=sys.stderr,
        flush=True,
    )


def _drop_later_lines(path: pathlib.Path, step: int) -> None:
  """Keeps complete lines up to `step`; a resumed run rewrites later ones."""
  if not path.exists():
    return
  kept = []
  for line in path.read_text().splitlines():
    # A line is cut short if the run was killed while writing it.
    with contextlib.suppress(json.JSONDecodeError):
      if json.loads(line)["step"] <= step:
        kept.append(line + "\n")
  temporary = path.with_suffix(".tmp")
  temporary.write_text("".join(kept))
  os.replace(temporary, path)


class _LogFile:
  """A text file that keeps lines in memory while the disk is full."""

  def __init__(self, path: pathlib.Path):
    self._path = path
    self._file = path.open("ab", buffering=0)
    self._size = self._file.seek(0, os.SEEK_END)
    self._unwritten = b""
    self._has_warned = False

  def append(self, line: str) -> None:
    """Writes the lines kept in memory, then this one."""
    self._unwritten += line.encode()
    try:
      written = self._file.write(self._unwritten)
      if written < len(self._unwritten):
        self._file.truncate(self._size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as e:
      if not self._has_warned:
        print(
            f"{self._path} cannot be written ({e.strerror}); its lines are kept"
            " in memory until it can. TensorBoard events may be lost.",
            file=sys.stderr,
            flush=True,
        )
      self._has_warned = True
    else:
      self._size += written
      self._unwritten, self._has_warned = b"", False

  def close(self) -> None:
    """Tries to write the lines kept in memory, then closes the file."""
    if self._unwritten:
      self.append("")
    self._file.close()
