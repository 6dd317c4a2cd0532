"""The results file."""

import json
import math

import pytest

from dape_jax.errors import ConfigError
from dape_jax.evaluation import report


def test_round_trip(two_runs, tmp_path):
  two_runs["runs"][0]["rows"][0]["nats"] = math.inf
  path = tmp_path / "results.json"
  report.write_json(two_runs, path)
  assert [p.name for p in tmp_path.iterdir()] == ["results.json"]

  def refuse(constant):
    raise AssertionError(f"{constant} is not valid JSON")

  document = json.loads(path.read_text(), parse_constant=refuse)
  assert document["format"] == report.FORMAT == "dape_jax.evaluation"
  assert document["version"] == report.VERSION == 2
  assert document["runs"][0]["rows"][0]["nats"] == "Infinity"
  # Compare by repr, because NaN != NaN.
  assert repr(report.read_json(path)) == repr(two_runs)


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "No such file"),
        ("{", "not a JSON file"),
        ("[1]", "not a file of evaluation results"),
        ('{"a": 1}', "not a file of evaluation results"),
        (
            '{"format": "dape_jax.evaluation", "version": 1}',
            r"version 1 .* reads version 2: evaluate the checkpoints again",
        ),
    ],
)
def test_invalid_file_is_refused(text, message, tmp_path):
  path = tmp_path / "results.json"
  if text is not None:
    path.write_text(text)
  with pytest.raises(ConfigError, match=message):
    report.read_json(path)


def test_folder_that_cannot_be_created(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(ConfigError, match="--output="):
    report.make_folder(tmp_path / "file" / "folder")
