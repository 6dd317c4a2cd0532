"""Streams documents from .txt, .jsonl, .gz, .zst and .parquet files."""

import glob
import gzip
import io
import json
import pathlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from dape_jax.errors import ConfigError

_ROWS = 256  # rows of a parquet file decoded at a time
_ZSTD_BUFFER = 1 << 16


class Record(NamedTuple):
  """One document of a source, or the reason it cannot be read.

  Attributes:
    number: of the line, row or example, from 1; 0 for the whole file.
    text: UTF-8 text of the document; b"" if empty or damaged.
    problem: why there is no text, or "".
    position: progress through the source, in its unit; 0 if damaged.
  """

  number: int
  text: bytes
  problem: str
  position: int


class TextFile:
  """A file of documents.

  Attributes:
    name: absolute path.
    size: size in `unit`.
    unit: "B".
  """

  unit = "B"

  def __init__(self, path: pathlib.Path, text_field: str):
    """Initializes.

    Args:
      path: a file with an extension in `KINDS`.
      text_field: JSON field or column with the text.
    """
    self.name = str(path)
    self.size = path.stat().st_size
    self._path, self._field = path, text_field

  def identity(self) -> dict[str, Any]:
    """Returns JSON values that change whenever the texts do."""
    modified = self._path.stat().st_mtime_ns
    values = {"name": self.name, "bytes": self.size, "modified_ns": modified}
    if not self.name.endswith(".txt"):
      values["text_field"] = self._field
    return values

  def records(self, skip: int) -> Iterator[Record]:
    """Yields the records after the first `skip`, up to a damaged read."""
    read = next(read for end, read in KINDS.items() if self.name.endswith(end))
    yield from read(self._path, self._field, skip)

  def where(self, number: int) -> str:
    """Returns the name of a record in messages."""
    return f"{self.name}:{number}" if number else self.name


def _text_of(line: bytes, field: str) -> tuple[bytes, str]:
  """Returns the text of a line of JSON and "", or b"" and the problem."""
  if not line.strip():
    return b"", ""
  try:
    values = json.loads(line)
  except RecursionError:
    return b"", "not JSON (it is nested too deeply)"
  except ValueError as error:  # includes UnicodeDecodeError
    utf8 = isinstance(error, UnicodeDecodeError)
    return b"", "not UTF-8" if utf8 else f"not JSON ({error})"
  if not isinstance(values, dict):
    return b"", "not a JSON object"
  return _checked(values.get(field), field, values)


def _checked(text: Any, field: str, names: Sequence[str]) -> tuple[bytes, str]:
  if not isinstance(text, str):
    if field in names:
      return b"", f"the field {field!r} is {type(text).__name__}, not text"
    return b"", _no_field("field", field, names)
  try:
    return text.encode(), ""
  except UnicodeEncodeError:
    return b"", "half of a surrogate pair, which UTF-8 cannot encode"


def _no_field(kind: str, field: str, names: Sequence[str]) -> str:
  """Returns the problem of a record without the field or column."""
  there = ", ".join(sorted(names)) or "none"
  return f"no {kind} {field!r}: set --text_field to one of {there}"


def _read_txt(path: pathlib.Path, field: str, skip: int) -> Iterator[Record]:
  del field
  if skip:
    return
  try:
    text = path.read_bytes()
    text.decode()
  except OSError as error:
    yield Record(0, b"", f"cannot be read ({error.strerror})", 0)
  except UnicodeDecodeError as error:
    yield Record(0, b"", f"not UTF-8 at byte {error.start}", 0)
  else:
    yield Record(0, text, "", len(text))


def _open_zstd(stream: BinaryIO) -> BinaryIO:
  import pyarrow

  # Unlike zstandard's stream_reader, this detects truncated files. It then
  # loses the text in a partly filled buffer, so the buffer is small.
  raw = pyarrow.CompressedInputStream(stream, "zstd")
  return io.BufferedReader(raw, _ZSTD_BUFFER)


def _jsonl_reader(
    decompressed: Callable[[BinaryIO], BinaryIO],
) -> Callable[[pathlib.Path, str, int], Iterator[Record]]:
  def read(path: pathlib.Path, field: str, skip: int) -> Iterator[Record]:
    number = 1
    try:
      with path.open("rb") as stream, decompressed(stream) as lines:
        while line := lines.readline():
          if number > skip:
            text, problem = _text_of(line, field)
            yield Record(number, text, problem, stream.tell())
          number += 1
    except (OSError, EOFError, zlib.error) as error:
      yield Record(number, b"", f"damaged or truncated ({error})", 0)

  return read


def _read_parquet(
    path: pathlib.Path, field: str, skip: int
) -> Iterator[Record]:
  import pyarrow
  from pyarrow import parquet

  number = 0
  try:
    size = path.stat().st_size
    # Otherwise whole row groups, possibly whole files, are held in memory.
    settings = dict(pre_buffer=False, buffer_size=1 << 20)
    with parquet.ParquetFile(path, **settings) as file:
      names = file.schema_arrow.names
      if field not in names:
        yield Record(0, b"", _no_field("column", field, names), 0)
        return
      for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if number + rows <= skip:
          number += rows
          continue
        for batch in file.iter_batches(_ROWS, [group], [field]):
          for value in batch.column(0):
            number += 1
            if number > skip:
              text, problem = _column_text(value, field)
              position = size * (group + 1) // file.num_row_groups
              yield Record(number, text, problem, position)
  except (OSError, pyarrow.ArrowException) as error:
    yield Record(number + 1, b"", f"damaged or truncated ({error})", 0)


def _column_text(value: Any, field: str) -> tuple[bytes, str]:
  try:
    return _checked(value.as_py(), field, [field])
  except UnicodeDecodeError:
    return b"", "not UTF-8"


KINDS = {
    ".txt": _read_txt,
    ".jsonl": _jsonl_reader(lambda stream: stream),
    ".jsonl.gz": _jsonl_reader(lambda stream: gzip.GzipFile(fileobj=stream)),
    ".jsonl.zst": _jsonl_reader(_open_zstd),
    ".parquet": _read_parquet,
}


def _is_visible(file: pathlib.Path, folder: pathlib.Path) -> bool:
  parts = file.relative_to(folder).parts
  return file.is_file() and not any(part.startswith(".") for part in parts)


def find_files(flag: str, patterns: Sequence[str]) -> list[pathlib.Path]:
  """Returns the files a flag refers to, sorted by name within each pattern.

  Args:
    flag: name used in messages.
    patterns: files, globs, or folders (all files in them except hidden ones).

  Raises:
    ConfigError: a pattern matches no file, or a file is of an unknown kind.
  """
  kinds = ", ".join(KINDS)
  files = []
  for pattern in patterns:
    if "://" in pattern:
      raise ConfigError(f"--{flag}={pattern}: copy it to this machine first.")
    path = pathlib.Path(pattern).expanduser()
    if path.is_dir():
      found = [p for p in path.rglob("*") if _is_visible(p, path)]
    elif path.is_file():
      found = [path]
    else:
      names = glob.glob(str(path), recursive=True)
      found = [p for p in map(pathlib.Path, names) if p.is_file()]
    if not found:
      raise ConfigError(f"--{flag}={pattern}: no such file.")
    files += [p.absolute() for p in sorted(found)]
  for file in files:
    if not file.name.endswith(tuple(KINDS)):
      raise ConfigError(
          f"--{flag}: {file} has an unsupported extension (supported: {kinds});"
          " select files with a glob, such as 'DIR/*.jsonl'."
      )
  return files
