"""Self-attention with every encoding, as one small compiled program.

Everything that a check varies (positions, documents, padding, cotangents) is an
input of the program, so each encoding compiles once per implementation.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dape_jax
from dape_jax import encodings

HEADS, HEAD_DIM, WIDTH, LENGTH = 2, 4, 6, 24
# Keep networks small and place thresholds within LENGTH.
_OPTIONS = {
    "width": 5,
    "fire_width": 5,
    "threshold": 6.0,
    "max_length": 80_000,
    "max_distance": 20,
    "num_buckets": 8,
    "train_length": 8,
    "max_position": 7,
    "dimension": 8,
    "sinusoid_width": 6,
}
# Encodings that depend on absolute positions, not only on distances.
_ABSOLUTE_BASES = ("fire", "learned", "sinusoidal")


@dataclasses.dataclass(frozen=True)
class Case:
  """An encoding under test and its invariants."""

  encoding: dape_jax.PositionalEncoding
  base: str
  scales_by_length: bool = False

  @property
  def depends_on_distance_only(self) -> bool:
    return not (self.scales_by_length or self.base in _ABSOLUTE_BASES)

  @property
  def far(self) -> int:
    """A position beyond the integers that bfloat16 and float16 represent."""
    # xPos is exact only near its center: this is as far after it as 0 is
    # before.
    return 32_700 if self.base == "xpos" else 70_000


def registered(name: str, **options) -> Case:
  """Returns the case of a registered encoding."""
  small = {k: v for k, v in _OPTIONS.items() if k in encodings.options(name)}
  encoding = encodings.make(name, num_heads=HEADS, **small | options)
  return Case(
      encoding,
      encodings.registry.split_name(name)[1],
      bool({"ssmax", "log_n"} & set(options)),
  )


def _composed() -> dict[str, Case]:
  cases = {
      f"dape_kerple_log, form {form}": registered("dape_kerple_log", form=form)
      for form in ("concat", "add_residual")
  }
  modifiers = dict(sink=True, soft_cap=3.0)
  cases["dape_alibi, ssmax, sink, soft cap"] = registered(
      "dape_alibi", ssmax=True, **modifiers
  )
  cases["fox, log n, sink, soft cap"] = registered("fox", log_n=4, **modifiers)
  make = functools.partial(encodings.make, num_heads=HEADS)
  cases["rope + kerple_log"] = Case(
      dape_jax.Sum(make("rope"), make("kerple_log")), "rope"
  )
  cases["dape_v2 of fox + t5"] = Case(
      dape_jax.DapeV2(dape_jax.Sum(make("fox"), make("t5")), width=5), "fox"
  )
  return cases


CASES = {name: registered(name) for name in encodings.names()} | _composed()
# Bases of each kind: by position, by token, with and without parameters, and
# rotating queries and keys. Wrappers of other bases are soak tests.
_WRAPPED = {
    "dape": ("fire", "fox", "kerple_log", "rope"),
    "dape_static": ("fire", "fox", "t5"),
    "dape_v2": ("alibi", "fire", "fox", "rope"),
}


def _marked(name: str):
  base = CASES[name].base
  wrapper = name.removesuffix(base).removesuffix("_")
  is_soak = wrapper in _WRAPPED and base not in _WRAPPED[wrapper]
  return pytest.param(name, marks=pytest.mark.soak if is_soak else ())


NAMES = [_marked(name) for name in CASES]


@functools.cache
def parameters(name: str) -> dict[str, Any]:
  """Returns random nonzero parameters as NumPy arrays."""
  encoding = CASES[name].encoding
  x = np.ones((1, 1, WIDTH), np.float32)
  heads = np.ones((1, 1, HEADS, HEAD_DIM), np.float32)

  def init(module):
    module.embed(x, jnp.zeros(1, jnp.int32))
    module.features(x, heads, heads)

  with jax.enable_x64(False):
    variables = encoding.init(jax.random.key(0), method=init)
  generator = np.random.default_rng(1)
  return jax.tree.map(
      lambda p: np.asarray(p)
      + np.float32(0.3 * generator.normal(size=p.shape)),
      dict(variables.get("params", {})),
  )


@functools.cache
def inputs() -> np.ndarray:
  """Returns x [2, LENGTH, WIDTH], exactly representable in bfloat16."""
  x = np.random.default_rng(2).normal(size=(2, LENGTH, WIDTH))
  return np.float32(jnp.asarray(x, jnp.bfloat16))


def projected(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns query, key and value [B, T, N, H] of x [B, T, D]."""
  kernels = np.random.default_rng(3).normal(size=(3, WIDTH, HEADS, HEAD_DIM))
  return tuple(
      jnp.einsum("btd,dnh->btnh", x, jnp.asarray(kernel / 2, x.dtype))
      for kernel in kernels
  )


def self_attention(name, implementation, params, x, positions, ids, **options):
  """Returns [B, T, N, H]."""
  encoding = CASES[name].encoding.bind({"params": params})
  x = encoding.embed(x, positions)
  return dape_jax.attend(
      encoding,
      x,
      *projected(x),
      positions=positions,
      segment_ids=ids,
      implementation=implementation,
      **options,
  )


def program(name, implementation, **options):
  """Returns a jitted function that computes outputs and gradients.

  It maps (parameters, x, positions, segment ids, cotangent of the output) to
  (output, (gradients of the parameters, gradient of x)).
  """

  @jax.jit
  def run(params, x, positions, ids, cotangent):
    out, pull = jax.vjp(
        lambda params, x: self_attention(
            name, implementation, params, x, positions, ids, **options
        ),
        params,
        x,
    )
    return out, pull(cotangent)

  return run
