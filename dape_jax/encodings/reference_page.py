"""Generates the reference page of encodings from docstrings and the registry.

python -m dape_jax.encodings.reference_page > docs/encodings.md
"""

import inspect
import math

import jax
import jax.numpy as jnp

from dape_jax.encodings import modifiers, registry
from dape_jax.encodings.base import PositionalEncoding
from dape_jax.encodings.dape import Dape
from dape_jax.encodings.dape_v2 import DapeV2
from dape_jax.encodings.sum import Sum

NUM_HEADS, HEAD_DIM, WIDTH = 12, 64, 768

_HEADER = """\
# Encodings

<!-- Generated from the docstrings in `dape_jax/encodings/`; edit those and run
`python -m dape_jax.encodings.reference_page > docs/encodings.md`. -->

S denotes the scaled scores q.k / sqrt(H), i the position of the query, j that
of the key, and h the head. `dape_jax.encodings.make(name, num_heads=12,
**options)` builds any encoding. Where the last column says "yes",
`make("dape_<name>")`, `make("dape_v2_<name>")` and `make("dape_static_<name>")`
wrap it in DAPE, in DAPE V2 and in DAPE's non-adaptive control. "Memory" is the
memory of `attention` besides its inputs and output. On TPU, encodings marked
"in kernels" use the Pallas kernels; the others use XLA tiles, also with linear
memory. "Extrapolates" is what the encoding's authors claim, not a measurement
of ours.

Parameter counts are for one layer with 12 heads of 64 channels and width 768.
"""


def lines_of(cls: type[PositionalEncoding]) -> dict[str, str]:
  """Returns the formula, source, claim and full docstring of a class.

  Raises:
    ValueError: the docstring lacks its source or claim.
  """
  doc = inspect.cleandoc(cls.__doc__)
  found = {"formula": doc.split("\n\n")[0].replace("\n", " ").rstrip(".")}
  for label in ("Source", "Extrapolates"):
    start = doc.find(f"\n{label}: ")
    if start < 0:
      raise ValueError(f'{cls.__name__}: its docstring has no line "{label}:".')
    text = doc[start + len(label) + 3 :]
    for end in ("\nExtrapolates: ", "\n\n"):
      text = text.split(end)[0]
    found[label.lower()] = " ".join(text.split()).rstrip(".")
  return found | {"doc": doc}


def num_parameters(name: str) -> int:
  """Returns the number of parameters of one layer's encoding."""
  encoding = registry.make(name, num_heads=NUM_HEADS)
  x = jnp.zeros((1, 1, WIDTH))
  heads = jnp.zeros((1, 1, NUM_HEADS, HEAD_DIM))

  def init(module):
    module.embed(x, jnp.zeros(1, jnp.int32))
    module.features(x, heads, heads)

  shapes = jax.eval_shape(
      lambda key: encoding.init(key, method=init), jax.random.key(0)
  )
  return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))


def memory(name: str) -> str:
  """Returns how the memory of attention scales with the length."""
  encoding = registry.make(name, num_heads=NUM_HEADS)
  variables = encoding.init(jax.random.key(0), method="score_mod")
  score_mod = encoding.apply(variables, method="score_mod")
  if score_mod is not None and score_mod.scope == "row":
    return "linear, in whole rows"
  if encoding.key_features:
    return "linear"
  if score_mod is None or score_mod.function.in_kernel:
    return "linear, in kernels"
  return "linear"


def page() -> str:
  """Returns the reference page as Markdown."""
  rows = [
      "| name | formula | parameters | memory | extrapolates | source | DAPE |",
      "| --- | --- | --- | --- | --- | --- | --- |",
  ]
  details = []
  known = registry.names()
  for name in known:
    wrapper, base = registry.split_name(name)
    if wrapper is not None:
      continue
    found = lines_of(registry.base_class(name))
    cells = [
        f"[`{name}`](#{name})",
        found["formula"].replace("|", "\\|"),
        f"{num_parameters(name):,}",
        memory(name),
        found["extrapolates"],
        found["source"],
        "yes" if f"dape_{base}" in known else "",
    ]
    rows.append(f"| {' | '.join(cells)} |")
    details.append(_details(name, registry.base_class(name)))
  around = [Dape, DapeV2, Sum, *_modifiers()]
  sizes = [
      f"- `{name}`: {num_parameters(name):,} parameters"
      for name in ("dape_rope", "dape_kerple_log", "dape_v2_kerple_log")
  ]
  return "\n".join(
      [
          _HEADER,
          *rows,
          "\n## Around other encodings\n",
          "`Dape(base)`, `DapeV2(base)` and `Sum(a, b)` compose encodings. The"
          " other wrappers are options of every name: `ssmax=True`, `log_n=512`"
          " (the training length), `sink=True`, `soft_cap=50.0`. Sizes:\n",
          *sizes,
          "",
          *(_details(cls.__name__, cls) for cls in around),
          "## All encodings\n",
          *details,
      ]
  )


def _modifiers() -> list[type[PositionalEncoding]]:
  return [
      modifiers.SSMax,
      modifiers.LogN,
      modifiers.LearnedSink,
      modifiers.SoftCap,
  ]


def _details(title: str, cls: type[PositionalEncoding]) -> str:
  return f"### {title}\n\n```text\n{lines_of(cls)['doc']}\n```\n"


if __name__ == "__main__":
  print(page(), end="")
