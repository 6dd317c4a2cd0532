import gzip

import pyarrow
import pytest
from preparing import lines
from pyarrow import parquet

from dape_jax.data.text_files import KINDS, TextFile, find_files
from dape_jax.errors import ConfigError

_TEXTS = [f"document {i} \u4e2d\n" * (1 + i % 7) for i in range(600)]


def _zstd(data):
  return pyarrow.compress(data, "zstd", asbytes=True)


def _write(folder, kind, texts=_TEXTS):
  path = folder / f"file{kind}"
  if kind == ".parquet":
    table = pyarrow.table({"other": range(len(texts)), "text": texts})
    parquet.write_table(table, path, row_group_size=100)
  elif kind == ".txt":
    path.write_text(texts[0], encoding="utf-8")
  else:
    half = len(texts) // 2
    parts = [lines(texts[:half]), lines(texts[half:])]
    # Two members, as in concatenated files.
    compress = {".gz": gzip.compress, ".zst": _zstd}.get(path.suffix, bytes)
    path.write_bytes(b"".join(map(compress, parts)))
  return path


def _records(path, skip=0, field="text"):
  return list(TextFile(path, field).records(skip))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_yields_texts_and_positions(tmp_path, kind):
  records = _records(_write(tmp_path, kind))
  texts = _TEXTS[:1] if kind == ".txt" else _TEXTS
  numbers = [0] if kind == ".txt" else list(range(1, len(texts) + 1))
  assert [r.text.decode() for r in records] == texts
  assert [r.number for r in records] == numbers
  positions = [r.position for r in records]
  assert positions == sorted(positions)
  assert 0 < positions[-1] <= (tmp_path / f"file{kind}").stat().st_size
  assert not any(r.problem for r in records)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", [1, 100, 101, 600])
def test_resuming_after_any_record(tmp_path, kind, skip):
  path = _write(tmp_path, kind)
  rest = [(r.number, r.text) for r in _records(path)][skip:]
  assert [(r.number, r.text) for r in _records(path, skip)] == rest


@pytest.mark.parametrize(
    "line, problem",
    [
        (b'{"text": "a"', "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"x": ' + 100_000 * b"[", "nested too deeply"),
        (
            b'{"txt": "a"}',
            "no field 'text': set --text_field to one of txt",
        ),
        (b'{"text": 5}', "'text' is int, not text"),
        (b'{"text": "a\xff"}', "not UTF-8"),
        (b'{"text": "\\ud800"}', "surrogate"),
    ],
)
def test_damaged_line_is_reported_and_the_next_is_read(tmp_path, line, problem):
  path = tmp_path / "a.jsonl"
  path.write_bytes(lines(["one"]) + line + b"\n\n" + lines(["two"]))
  one, bad, blank, two = _records(path)
  assert (one.text, two.text) == (b"one", b"two")
  assert bad.number == 2 and problem in bad.problem and bad.text == b""
  assert (blank.text, blank.problem) == (b"", "")
  assert TextFile(path, "text").where(2) == f"{path}:2"


@pytest.mark.parametrize("kind", [".jsonl.gz", ".jsonl.zst", ".parquet"])
@pytest.mark.parametrize("keep", [0.3, 0.6, -3])
def test_truncated_file_is_reported(tmp_path, kind, keep):
  path = _write(tmp_path, kind)
  data = path.read_bytes()
  path.write_bytes(data[: keep if keep < 0 else int(keep * len(data))])
  *before, last = _records(path)
  assert "damaged or truncated" in last.problem
  assert last.number == len(before) + 1
  assert [r.text.decode() for r in before] == _TEXTS[: len(before)]


def test_invalid_utf8_is_reported(tmp_path):
  (tmp_path / "a.txt").write_bytes(b"ab\xff")
  (record,) = _records(tmp_path / "a.txt")
  assert record.problem == "not UTF-8 at byte 2"
  texts = pyarrow.array([b"ab\xff", b"good"]).view(pyarrow.string())
  parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
  bad, good = _records(tmp_path / "a.parquet")
  assert bad.problem == "not UTF-8" and good.text == b"good"


def test_missing_column_is_reported(tmp_path):
  (record,) = _records(_write(tmp_path, ".parquet"), field="txt")
  assert (
      record.problem
      == "no column 'txt': set --text_field to one of other, text"
  )


def test_truncated_zstd_loses_little_text_before_its_end(tmp_path):
  path = tmp_path / "a.jsonl.zst"
  texts = [f"{i} " + "word " * 20 for i in range(5000)]
  path.write_bytes(_zstd(lines(texts))[:-1])
  *before, last = _records(path)
  assert "damaged or truncated" in last.problem
  assert len(texts) - len(before) < 2 * 2**16 / len(texts[0])


def test_files_folders_and_globs(tmp_path):
  for name in ("b/2.txt", "b/1.jsonl", "b/.hidden/3.txt", "a.parquet"):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
  names = lambda *patterns: [
      str(p.relative_to(tmp_path))
      for p in find_files("train", [str(tmp_path / p) for p in patterns])
  ]
  assert names("b") == ["b/1.jsonl", "b/2.txt"]
  assert names("a.parquet", "b/*.txt") == ["a.parquet", "b/2.txt"]
  (tmp_path / "b/notes.md").touch()
  for pattern, message in (
      ("c.txt", "no such file"),
      ("*.md", "no such file"),
      ("b", "notes.md has an unsupported extension"),
  ):
    with pytest.raises(ConfigError, match=f"--train.*{message}"):
      names(pattern)
  with pytest.raises(ConfigError, match="copy it to this machine"):
    find_files("train", ["gs://bucket/a.txt"])
