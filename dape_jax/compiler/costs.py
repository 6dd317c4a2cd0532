"""Bytes that a compiled program moves: through memory, and between chips."""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator

from dape_jax.compiler import hlo_text
from dape_jax.compiler.hlo_text import Instruction, Program, bytes_of, elements

# Operations that move nothing by themselves.
_FREE = frozenset(
    {
        "parameter",
        "constant",
        "get-tuple-element",
        "tuple",
        "bitcast",
        "after-all",
        "partition-id",
        "opt-barrier",
        "async-update",
        "while",
        "conditional",
        "call",
    }
)
_SLICES = ("dynamic-slice", "slice", "gather", "slice-start")
# Fraction of the full array that each of n chips sends.
_SENT = {
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "collective-permute": lambda n: 1.0,
}


@dataclasses.dataclass(frozen=True)
class Costs:
  """Bytes that one chip moves in one run of a program.

  Attributes:
    memory: read from and written to main memory.
    sent: to other chips, by kind of collective.
    has_unknown_loops: a loop has a data-dependent trip count, and is counted once.
  """

  memory: int
  sent: dict[str, int]
  has_unknown_loops: bool


def program_costs(text: str) -> Costs:
  """Returns the costs of `compiled.as_text()`.

  Sums operands and results of all operations that the compiler did not fuse, times
  the trip counts of loops. Slices and in-place updates count only the part they
  touch. A kernel counts its operands once, however often it reads them.

  Args:
    text: of the optimized HLO.
  """
  program = hlo_text.parse(text)
  memory, unknown = 0, False
  sent: dict[str, dict[str, float]] = collections.defaultdict(dict)
  for name, turns, is_known in _executed(program, program.entry):
    unknown |= not is_known
    for instruction in program.computations[name]:
      memory += turns * _moved(program, instruction)
      for kind, channel, amount in _collectives(program, instruction):
        # Pieces of an overlapped collective share a channel; count one.
        sent[kind][channel] = max(sent[kind].get(channel, 0), turns * amount)
  return Costs(
      memory, {k: int(sum(v.values())) for k, v in sent.items()}, unknown
  )


def _executed(
    program: Program, name: str, turns: int = 1, known: bool = True
) -> Iterator[tuple[str, int, bool]]:
  """Yields (computation, number of runs, whether that is known)."""
  yield name, turns, known
  for instruction in program.computations[name]:
    inside, inner = [], 1
    if instruction.opcode == "while":
      inside, inner = ["body"], program.turns(instruction)
    elif instruction.opcode == "call":
      inside = ["to_apply"]
    elif instruction.opcode == "conditional":
      inside = ["true_computation", "false_computation"]
    called = [x for x in map(instruction.attribute, inside) if x]
    if listed := re.search(
        r"branch_computations=\{([^}]*)\}", instruction.line
    ):
      called += re.findall(r"%?([\w.\-]+)", listed[1])
    for computation in called:
      yield from _executed(
          program, computation, turns * (inner or 1), known and bool(inner)
      )


def _moved(program: Program, instruction: Instruction) -> int:
  """Returns the bytes that an operation reads and writes."""
  opcode = instruction.opcode
  if opcode in _FREE or opcode.endswith("-done"):
    return 0
  types = instruction.operand_types
  if opcode in _SLICES:
    # The type of an asynchronous slice is (operand, result, ...).
    result = elements(instruction.type)[opcode.endswith("-start")]
    whole = bytes_of(types[0])
    return min(whole, bytes_of(result, anywhere=True)) + bytes_of(result)
  if opcode == "dynamic-update-slice":
    return 2 * bytes_of(types[1])
  if opcode == "scatter":
    return 2 * bytes_of(types[2])
  if opcode == "async-start" and (calls := instruction.attribute("calls")):
    return sum(_moved(program, i) for i in program.computations[calls])
  if opcode.endswith("-start") and opcode != "all-reduce-start":
    return bytes_of(instruction.type)  # Operand and result.
  if opcode == "fusion":
    inside = program.computations.get(instruction.attribute("calls"), ())
    return _moved_by_fusion(inside, instruction)
  read = dict(zip(instruction.operands, types)).values()  # Each once.
  return sum(map(bytes_of, read)) + bytes_of(instruction.type)


def _moved_by_fusion(inside, fusion: Instruction) -> int:
  """Returns the bytes of a fusion; slices and updates count what they touch."""
  users = collections.defaultdict(list)
  for i in inside:
    for operand in set(i.operands):
      users[operand].append(i)
  moved = 0
  for parameter in inside:
    if parameter.opcode != "parameter":
      continue
    number = int(re.search(r"parameter\((\d+)\)", parameter.line)[1])
    if number >= len(fusion.operands):
      continue
    whole = bytes_of(fusion.operand_types[number])
    parts = 0
    for user in users[parameter.name]:
      is_first = user.operands[:1] == (parameter.name,)
      if user.opcode in _SLICES and is_first:
        parts += bytes_of(user.type, anywhere=True)
      elif not (user.opcode == "dynamic-update-slice" and is_first):
        parts = whole
        break
    moved += min(parts, whole)
  written = bytes_of(fusion.type)
  for i in inside:
    if i.opcode == "dynamic-update-slice":
      whole = bytes_of(i.type)
      if whole <= written:
        written += bytes_of(i.operand_types[1]) - whole
  return moved + max(written, 0)


def _collectives(program: Program, instruction: Instruction):
  """Yields (kind, channel, bytes sent by a chip) of an instruction."""
  if instruction.opcode == "fusion":
    inside = program.computations.get(instruction.attribute("calls"), ())
  else:
    inside = (instruction,)
  for i in inside:
    kind = i.opcode.removesuffix("-start")
    if kind not in _SENT or i.opcode.endswith("-done"):
      continue
    channel = re.search(r"channel_id=(\d+)", i.line)
    parts = elements(i.type)
    # Asynchronous collectives have type (operand, result, ...), not all-reduce.
    is_pair = i.opcode.endswith("-start") and kind != "all-reduce"
    result = parts[1] if is_pair and parts[1:] else i.type
    amount = bytes_of(result, anywhere=True)
    size = _group_size(i.line)
    if kind == "reduce-scatter":
      amount *= size
    yield kind, channel[1] if channel else i.name, amount * _SENT[kind](size)


def _group_size(line: str) -> int:
  """Returns the number of chips in each group of a collective."""
  if pairs := re.search(r"source_target_pairs=\{(.*?)\}\}", line):
    return pairs[1].count("{")
  if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", line):
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
    return math.prod(int(sizes[x]) for x in re.findall(r"'(\w+)'", mesh[2]))
  if iota := re.search(r"replica_groups=\[(\d+),(\d+)\]", line):
    return int(iota[2])
  if groups := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
    return len(groups[1].split(","))
  return 1
