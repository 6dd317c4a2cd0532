"""Tables, JSON files and pictures say what the results are."""

import json
import math

import pytest
from matplotlib import image

from dape_jax.errors import ConfigError
from dape_jax.evaluation import report


def _row(length, perplexity, crop, non_finite=0):
  row = {"length": length, "protocol": "last256", "regions": 2}
  row |= {"tokens": 512, "bytes": 511, "seconds": 1.25}
  for prefix, value, count in (
      ("", perplexity, non_finite),
      ("crop_", crop, 0),
  ):
    row |= {
        f"{prefix}nats": 512 * math.log(value) if value > 0 else value,
        f"{prefix}perplexity": value,
        f"{prefix}bits_per_byte": value / 2,
        f"{prefix}non_finite_tokens": count,
        f"{prefix}region_nats": [1.5, value],
    }
  return row


def _run(name, encoding, train_length, *rows):
  return {
      "name": name,
      "checkpoint": f"/runs/{name}",
      "encoding": encoding,
      "train_length": train_length,
      "step": 70,
      "rows": list(rows),
  }


@pytest.fixture
def results():
  return {
      "dape_jax_version": "0.1.0",
      "command": "eval.py --checkpoint=/runs/a",
      "corpus_fingerprint": "0123456789abcdef",
      "source": "code",
      "tokenizer": "bytes",
      "split": "test",
      "protocol": "last256",
      "lengths": [128, 256],
      "peak_rss_bytes": 123456789,
      "runs": [
          _run("one", "rope", 128, _row(128, 4.5, 4.5), _row(256, 34567, 4.25)),
          _run(
              "alibi",
              "alibi",
              256,
              _row(128, 5.0, 5.0),
              _row(256, math.nan, 5.125, non_finite=3),
          ),
      ],
  }


def test_json_round_trip(results, tmp_path):
  results["runs"][0]["rows"][0]["nats"] = math.inf
  path = tmp_path / "results.json"
  report.write_json(results, path)
  assert [p.name for p in tmp_path.iterdir()] == ["results.json"]

  def refuse(constant):
    raise AssertionError(f"{constant} is not valid JSON")

  document = json.loads(path.read_text(), parse_constant=refuse)
  assert document["format"] == "dape_jax.evaluation"
  assert document["version"] == 1
  # NaN differs from itself; its repr does not.
  assert repr(report.read_json(path)) == repr(results)


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "No such file"),
        ("{", "not a JSON file"),
        ("[1]", "not a file of evaluation results"),
        ('{"a": 1}', "not a file of evaluation results"),
        ('{"format": "dape_jax.evaluation", "version": 9}', "version 9"),
    ],
)
def test_other_files_are_refused(text, message, tmp_path):
  path = tmp_path / "results.json"
  if text is not None:
    path.write_text(text)
  with pytest.raises(ConfigError, match=message):
    report.read_json(path)


def test_table(results):
  lines = report.table(results).split("\n")
  assert lines[0] == (
      "test split, protocol last256: 512 tokens (511 bytes) of 2 regions, the"
      " same at every length"
  )
  header = lines[2:4]
  assert "one (rope), trained at 128" in header[0]
  assert "| alibi, trained at 256" in header[0]
  first, second = ([c.split() for c in line.split("|")] for line in lines[4:6])
  assert first[0] == ["128"] and first[1][:2] == ["4.500", "4.500"]
  assert second[1] == ["*3.457e+04", "4.250", "1.728e+04", "2.125"]
  assert second[2] == ["nan", "5.125", "nan", "2.562"]
  bars = {tuple(i for i, c in enumerate(x) if c == "|") for x in lines[2:6]}
  assert len(bars) == 1, "columns are not aligned"
  assert lines[-1] == (
      "NOT FINITE: alibi, trained at 256, length 256: 3 of 512 scored tokens"
  )


def test_write_names_files_by_settings(results, tmp_path):
  both = report.write(results, tmp_path)
  results["runs"] = results["runs"][:1]
  single = report.write(results, tmp_path)
  assert [p.name for p in both + single] == [
      "test_last256.json",
      "test_last256.png",
      "test_last256_one_step70.json",
      "test_last256_one_step70.png",
  ]
  assert report.read_json(single[0]) == results
  for path in both[1], single[1]:
    height, width, _ = image.imread(path).shape
    assert height > 500 and width > 800


def test_picture_without_any_finite_value(results, tmp_path):
  for run in results["runs"]:
    for row in run["rows"]:
      row["perplexity"] = row["crop_perplexity"] = math.inf
  assert report.write(results, tmp_path)[1].stat().st_size > 0


def test_folder_that_cannot_be_made(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(ConfigError, match="--output="):
    report.make_folder(tmp_path / "file" / "folder")
