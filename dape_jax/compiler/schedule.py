"""Reads the TPU compiler's static estimates of a program's time, in cycles.

Neither of the two sources is documented; the functions here return None for
content that they do not recognize:

- the final schedule of a Pallas kernel, which libtpu writes when it starts with
  LIBTPU_INIT_ARGS="--xla_jf_dump_to=DIR --xla_jf_dump_llo_text=true". One line
  is one bundle of instructions, which issue together in one cycle:
      address label: > { instruction ;; instruction }  /* comments */
- the compiler's own "estimated_cycles" of XLA's fusions, in the program's text.

Neither includes time spent waiting for memory.
"""

import dataclasses
import math
import pathlib
import re
from typing import Any

from dape_jax.compiler import hlo_text

_BUNDLE = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s+([A-Z ]*):\s*([> ]*)\{")
_BRANCH = re.compile(r"sbr\.rel\s*(?:\(!?([^)]*)\))?\s*target = \$region(\d+)")
_START = re.compile(r"Start(?:/End empty)? region (\d+)\b")
_DELAY_SLOTS = 4  # Bundles after a branch that execute before it is taken.
_NO_ESTIMATE = 2**62  # A missing estimate is the largest int64.


@dataclasses.dataclass(frozen=True)
class Schedule:
  """Cycles of a kernel, from its bundles.

  Attributes:
    bodies: cycles of each conditional block that multiplies matrices, in program
      order: the tile without and with a mask.
    step: bundles of the rest of a grid step, with every condition true.
    unknown_trips: a loop inside a body has an unknown trip count, and is counted
      once.
  """

  bodies: tuple[int, ...]
  step: int
  unknown_trips: bool


def kernel_schedule(folder: pathlib.Path, name: str) -> Schedule | None:
  """Returns the schedule of the Pallas kernel `name` that was dumped last.

  None if libtpu wrote no schedule, or one in an unknown format.
  """
  pattern = re.compile(rf"\d+-{re.escape(name)}(\.\d+)?-\d+-final_bundles\.txt")
  files = sorted(f for f in folder.glob("*.txt") if pattern.fullmatch(f.name))
  if not files:
    return None
  return parse_schedule(files[-1].read_text(errors="replace"))


def parse_schedule(text: str) -> Schedule | None:
  """Parses a final_bundles file; returns None if it has no tile."""
  bundles = [m for line in text.splitlines() if (m := _BUNDLE.match(line))]
  lines = [bundle.string for bundle in bundles]
  starts: dict[str, int] = {}
  heads = []
  for i, (bundle, line) in enumerate(zip(bundles, lines)):
    if "LB" in bundle[1].split():
      heads.append((i, bundle[2].count(">")))
    for region in _START.findall(line):
      starts.setdefault(region, i)

  # A forward branch makes the bundles it skips conditional; a backward branch
  # ends a loop.
  pieces, loops = [], []
  for i, line in enumerate(lines):
    for predicate, region in _BRANCH.findall(line):
      end = starts.get(region, -1)
      if end > i:
        pieces.append((i + 1, end))
      elif depth := bundles[i][2].count(">"):
        inside = [start for start, d in heads if start <= i and d == depth]
        if inside and depth > 1:  # The loop of depth 1 is the grid.
          trips = _trips(lines[inside[-1] : i + 1], predicate)
          end = min(i + 1 + _DELAY_SLOTS, len(lines))
          loops.append((inside[-1], end, trips))
  bodies = _bodies(lines, pieces)
  if not bodies:
    return None

  def cycles(start, end):
    turns = [1] * (end - start)
    for loop_start, loop_end, trips in loops:
      for i in range(max(start, loop_start), min(end, loop_end)):
        turns[i - start] *= trips or 1
    return sum(turns)

  grid = min((start for start, depth in heads if depth == 1), default=0)
  counted = tuple(cycles(*body) for body in bodies)
  in_bodies = sum(end - start for start, end in bodies)
  return Schedule(
      bodies=counted,
      step=len(lines) - grid - in_bodies,
      unknown_trips=any(
          trips is None and start <= loop_start < end
          for loop_start, _, trips in loops
          for start, end in bodies
      ),
  )


def _bodies(lines, pieces) -> list[tuple[int, int]]:
  """Returns the innermost conditional blocks that multiply matrices."""
  products = [len(re.findall(r"\bvmatmul", line)) for line in lines]
  counts = {(start, end): sum(products[start:end]) for start, end in pieces}

  # Blocks with few products, such as a transposition, are not tiles.
  most = max(counts.values(), default=0)
  large = [piece for piece, n in counts.items() if n and 10 * n >= most]
  inside = lambda x, y: x != y and y[0] <= x[0] and x[1] <= y[1]
  return sorted(y for y in large if not any(inside(x, y) for x in large))


def _trips(lines, predicate: str) -> int | None:
  """Returns the constant trip count of a loop, or None."""
  compare = re.compile(
      rf"{re.escape(predicate)} = scmp\.[a-z.0-9]+ %\w+, (\d+)\b"
  )
  found = [m for line in lines for m in compare.findall(line)]
  return int(found[-1]) if predicate and found else None


def pallas_kernels(jaxpr: Any) -> list[tuple[str, int]]:
  """Returns (name, grid steps) of the Pallas kernels that a jaxpr calls."""
  kernels = []
  for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
    if equation.primitive.name == "pallas_call":
      name = equation.params.get("name")
      name = name or getattr(
          equation.params.get("name_and_src_info"), "name", ""
      )
      grid = getattr(equation.params.get("grid_mapping"), "grid", ())
      if all(isinstance(size, int) for size in grid):
        kernels.append((name, math.prod(grid)))
      continue
    for value in equation.params.values():
      for item in value if isinstance(value, list | tuple) else [value]:
        if hasattr(getattr(item, "jaxpr", item), "eqns"):
          kernels += pallas_kernels(item)
  return kernels


@dataclasses.dataclass(frozen=True)
class XlaCycles:
  """Sums of the compiler's "estimated_cycles".

  Attributes:
    known: everything outside the loops below, times known trip counts. None if the
      compiler has no estimate for some operation.
    per_turn: one iteration of each loop with a data-dependent trip count.
  """

  known: int | None
  per_turn: tuple[int, ...]


def xla_cycles(text: str) -> XlaCycles | None:
  """Sums the estimates in a compiled program's text, None if it has none."""
  if '"estimated_cycles"' not in text:
    return None
  program = hlo_text.parse(text)

  def total(name: str) -> tuple[int, list[int]]:
    known, dynamic = 0, []
    for instruction in program.computations.get(name, ()):
      if instruction.opcode == "while":
        inner, inner_dynamic = total(instruction.attribute("body"))
        dynamic += inner_dynamic
        turns = program.turns(instruction)
        if turns is None:
          dynamic.append(inner)
        else:
          known += turns * inner
      elif cycles := re.search(r'"estimated_cycles":"(\d+)"', instruction.line):
        known += int(cycles[1])
    return known, dynamic

  known, dynamic = total(program.entry)
  per_turn = tuple(cycles for cycles in dynamic if cycles < _NO_ESTIMATE)
  return XlaCycles(known if known < _NO_ESTIMATE else None, per_turn)
