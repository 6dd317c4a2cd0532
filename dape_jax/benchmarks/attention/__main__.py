r"""Measures attention: time and memory here, or the TPU compiler's estimates.

The passes are forward, and forward and backward with the gradients of queries, keys,
values and all parameters of the encoding. "materialised" is the formulation of DAPE's
released code in JAX, with the full score matrix; --torch also measures it in PyTorch
(on the CPU, with all cores for both).

  python -m dape_jax.benchmarks.attention --lengths=512,1024,2048 --output=bench
  python -m dape_jax.benchmarks.attention --torch --encodings=dape_fire,fire

With --tpu nothing runs: the TPU compiler (pip install libtpu; no TPU is needed)
compiles for the given chips and reports memory, whether it fits, and cycles per
(query, key) pair, along with the bound of the matrix units and JAX's splash
attention. The cycles exclude waiting for memory.

  python -m dape_jax.benchmarks.attention --tpu=v5e,v5p,v6e --lengths=8192
"""

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from absl import flags

from dape_jax import cli
from dape_jax.benchmarks.attention import report, tpu
from dape_jax.errors import ConfigError, did_you_mean

_IMPLEMENTATIONS = flags.DEFINE_list(
    "implementations",
    None,
    "materialised, reference, chunked, pallas_tpu and, with --tpu, splash."
    " Default: materialised, chunked; with --tpu also pallas_tpu, splash.",
)
_ENCODINGS = flags.DEFINE_list(
    "encodings", ["dape_kerple_log", "kerple_log"], "Registered names."
)
_LENGTHS = flags.DEFINE_list(
    "lengths", ["512", "1024"], "Numbers of queries and keys."
)
_PASSES = flags.DEFINE_list(
    "pass",
    ["forward", "both"],
    "forward, both (with backward), or both of them.",
)
_BATCH = cli.define_whole_number("batch", 1, "Batch size.", 1)
_HEADS = cli.define_whole_number("heads", 12, "Heads.", 1)
_HEAD_DIM = cli.define_whole_number("head_dim", 64, "Channels of a head.", 1)
_DTYPE = flags.DEFINE_enum(
    "dtype",
    None,
    ["float32", "bfloat16"],
    "Dtype of queries, keys and values. Default: float32; with --tpu bfloat16.",
)
_REPEATS = cli.define_whole_number(
    "repeats", 5, "Timed rounds after a warm-up.", 1
)
_TORCH = flags.DEFINE_bool(
    "torch", False, "Also measure PyTorch: pip install 'dape_jax[bench]'."
)
_TPU = flags.DEFINE_list(
    "tpu", None, f"Compile for chips of {', '.join(tpu.CHIPS)} instead."
)
_OUTPUT = flags.DEFINE_string(
    "output", None, "Prefix: also write PREFIX.json and PREFIX.md."
)

_KNOWN = ["materialised", "reference", "chunked", "pallas_tpu"]


def main(argv: Sequence[str]) -> None:
  cli.refuse_arguments(argv)
  lengths = _lengths(_LENGTHS.value)
  chips = _TPU.value or []
  known = [*_KNOWN, "splash"] if chips else _KNOWN
  default = [x for x in known if x != "reference"]
  default = default if chips else default[:2]
  implementations = _IMPLEMENTATIONS.value or default
  _check("tpu", chips, tpu.CHIPS)
  _check("implementations", implementations, known)
  _check("pass", _PASSES.value, ["forward", "both"])
  if chips and _TORCH.value:
    raise ConfigError("--torch: PyTorch does not run on a TPU; omit it.")
  if _OUTPUT.value and not pathlib.Path(_OUTPUT.value).parent.is_dir():
    raise ConfigError(f"--output={_OUTPUT.value}: its folder does not exist.")
  # Imported late: JAX takes seconds to start, and invalid flags fail at once.
  from dape_jax import encodings

  _check("encodings", _ENCODINGS.value, encodings.names())
  from dape_jax.benchmarks.attention import materialised, run

  cases = materialised.Cases(
      _ENCODINGS.value,
      lengths,
      _PASSES.value,
      (_BATCH.value, _HEADS.value, _HEAD_DIM.value),
      _DTYPE.value or ("bfloat16" if chips else "float32"),
  )
  results = {
      "format": "dape_jax.benchmarks.attention",
      "version": 1,
      "command": cli.command(),
      **dataclasses.asdict(cases),
  }
  if chips:
    rows = tpu.measure(cases, chips, implementations)
    names = dict.fromkeys(_ENCODINGS.value)
    if "splash" in implementations:
      names["nope"] = None
    results["bounds"] = _bounds(chips, names)
  else:
    results["machine"] = run.machine()
    if _TORCH.value:
      run.check_torch(results["machine"]["platform"])
      # The baseline's memory decides whether PyTorch can run.
      implementations = list(dict.fromkeys(["materialised", *implementations]))
    rows = run.measure(
        cases,
        implementations,
        repeats=_REPEATS.value,
        with_torch=_TORCH.value,
    )
  results["rows"] = []
  for row in rows:
    print(report.one_line(row), file=sys.stderr, flush=True)
    results["rows"].append(row)
  text = report.markdown(results)
  print(text)
  if _OUTPUT.value:
    pathlib.Path(f"{_OUTPUT.value}.md").write_text(text + "\n")
    document = json.dumps(results, indent=1) + "\n"
    pathlib.Path(f"{_OUTPUT.value}.json").write_text(document)


def _lengths(words: list[str]) -> list[int]:
  if not words:
    raise ConfigError("--lengths: give one or more, as in --lengths=512,1024.")
  try:
    return [cli.whole_number_type(1)(word) for word in words]
  except argparse.ArgumentTypeError as e:
    raise ConfigError(f"--lengths={','.join(words)}: {e}.") from e


def _check(flag: str, words: Sequence[str], valid: Sequence[str]) -> None:
  for word in words:
    if word not in valid:
      raise ConfigError(
          f'--{flag}: unknown "{word}".{did_you_mean(word, valid)}'
      )


def _bounds(chips: Iterable[str], names: Iterable[str]) -> list[dict[str, Any]]:
  """Returns the bounds of the matrix units for each chip and encoding."""
  from dape_jax import encodings

  bounds = []
  for chip in chips:
    for name in names:
      _, base = encodings.registry.split_name(name)
      options = encodings.registry.options(name)
      bound = tpu.mxu_bound(
          chip,
          heads=_HEADS.value,
          head_dim=_HEAD_DIM.value,
          width=options.get("width"),
          bias=base not in ("nope", "rope"),
          taps=options.get("kernel_size", 1),
      )
      bounds.append({"chip": chip, "encoding": name, **bound})
  return bounds


if __name__ == "__main__":
  cli.run(main, ["bench", *sys.argv[1:]])
