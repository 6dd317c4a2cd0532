"""Parses the text of compiled programs, which is documented only in XLA's source.

A program consists of computations, a computation of instructions, one per line:
    %name = type opcode(%operand, ...), attribute=value, ...
"""

import dataclasses
import functools
import math
import re

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(
    r"\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)"
)
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
_OPERAND = re.compile(r"%([\w.\-]+)")
_BITS = {"pred": 8, "bf16": 16, "token": 0}


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One instruction.

  Attributes:
    name: within its computation.
    type: the type of the result, as text.
    opcode: for example "fusion".
    operands: names of instructions of the same computation.
    operand_types: their types, "" if unknown.
    line: the text of the instruction.
  """

  name: str
  type: str
  opcode: str
  operands: tuple[str, ...]
  operand_types: tuple[str, ...]
  line: str

  def attribute(self, name: str) -> str | None:
    """Returns the computation that an attribute names, or None."""
    found = re.search(rf"\b{name}=%?([\w.\-]+)", self.line)
    return found and found[1]


@dataclasses.dataclass(frozen=True)
class Program:
  """A compiled program.

  Attributes:
    entry: name of the computation that runs.
    computations: each computation's instructions, by its name.
  """

  entry: str
  computations: dict[str, tuple[Instruction, ...]]

  def turns(self, loop: Instruction) -> int | None:
    """Returns the trip count of a `while`, None if it depends on data."""
    condition = self.computations.get(loop.attribute("condition"), ())
    at = {instruction.name: instruction for instruction in condition}
    for compare in condition:
      if compare.opcode == "compare" and "direction=LT" in compare.line:
        limit = at.get(compare.operands[-1])
        number = limit and re.search(r" constant\((\d+)\)", limit.line)
        return int(number[1]) if number else None
    return None


def parse(text: str) -> Program:
  """Parses the output of `compiled.as_text()`."""
  computations: dict[str, list[Instruction]] = {}
  entry = name = types = None
  for line in text.splitlines():
    if head := _COMPUTATION.match(line):
      name = head[2]
      entry = name if head[1] else entry
      computations[name], types = [], {}
    elif name is not None and (found := _INSTRUCTION.match(line)):
      label, type_, opcode, rest = found.groups()
      operands = tuple(_OPERAND.findall(_until_closed(rest)))
      operand_types = tuple(types.get(operand, "") for operand in operands)
      types[label] = type_
      computations[name].append(
          Instruction(label, type_, opcode, operands, operand_types, line)
      )
  return Program(entry, {k: tuple(v) for k, v in computations.items()})


def _until_closed(text: str) -> str:
  """Returns the text before the matching closing parenthesis."""
  depth = 1
  for i, character in enumerate(text):
    depth += (character == "(") - (character == ")")
    if depth == 0:
      return text[:i]
  return text


def elements(type_: str) -> list[str]:
  """Returns the elements of a tuple type, or a list of the one type."""
  if not type_.startswith("("):
    return [type_]
  parts, depth, begin = [], 0, 1
  for i, character in enumerate(type_):
    depth += (character in "([{") - (character in ")]}")
    if (character == "," and depth == 1) or depth == 0:
      parts.append(re.sub(r"/\*.*?\*/", "", type_[begin:i]).strip())
      begin = i + 1
  return parts


@functools.cache
def bytes_of(type_: str, *, anywhere: bool = False) -> int:
  """Returns the bytes of a type; for a tuple, the sum of its arrays.

  Args:
    type_: as text.
    anywhere: also count arrays outside main memory (such as those with "S(1)" in
      their layout, which are in VMEM).
  """
  total = 0
  for kind, shape, layout in _ARRAY.findall(type_):
    if "S(" in layout and not anywhere:
      continue
    digits = re.search(r"\d+", kind)
    bits = _BITS.get(kind) if kind in _BITS else int(digits[0]) if digits else 0
    total += bits * math.prod(map(int, filter(None, shape.split(",")))) // 8
  return total
