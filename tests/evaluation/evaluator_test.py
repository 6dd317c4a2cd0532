"""Cached rows are returned unchanged; damaged ones are not."""

import dataclasses
import json
import math

import numpy as np
import pytest

from dape_jax import data
from dape_jax.checkpoint import runs
from dape_jax.errors import ConfigError
from dape_jax.evaluation.evaluator import Evaluator, RowFiles, Settings
from dape_jax.evaluation.scoring import make_plan

_KEY = {"text": "abc", "length": 128, "regions": [[0, 0, 128]]}
_ROW = {"nats": [0.1, math.inf, -1e300], "seconds": 1 / 3, "positions": None}


def test_rows_round_trip(tmp_path):
  files = RowFiles(tmp_path / "rows")
  assert files.get(_KEY) is None
  files.put(_KEY, _ROW)
  assert files.get(_KEY) == _ROW
  assert RowFiles(tmp_path / "rows").get(dict(reversed(_KEY.items()))) == _ROW
  for field, other in (("text", "abd"), ("length", 256), ("regions", [])):
    assert files.get(_KEY | {field: other}) is None
  files.put(_KEY, {"nats": [math.nan]})
  assert math.isnan(files.get(_KEY)["nats"][0])
  [path] = (tmp_path / "rows").iterdir()
  assert json.loads(path.read_text())["key"] == _KEY


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("0.1", "0.2"),
        lambda text: text.replace('"row"', '"raw"'),
        lambda text: "[]",
        lambda text: "\x80",
    ],
)
def test_damaged_row_is_reported(tmp_path, capsys, damage):
  files = RowFiles(tmp_path)
  files.put(_KEY, _ROW)
  [path] = tmp_path.iterdir()
  path.write_text(damage(path.read_text()), encoding="latin-1")
  assert files.get(_KEY) is None
  assert capsys.readouterr().err == f"{path} is damaged; recomputing it.\n"
  files.put(_KEY, _ROW)
  assert files.get(_KEY) == _ROW


def test_unwritable_folder_is_reported(tmp_path):
  (tmp_path / "rows").write_text("")
  with pytest.raises(ConfigError, match="rerun the command to resume"):
    RowFiles(tmp_path / "rows").put(_KEY, _ROW)


@pytest.mark.parametrize("edge", ["zero", "extend"])
def test_row_key_has_chunk_only_if_numbers_depend_on_it(root, edge):
  run = runs.find_run(root / "a")
  options = {"encoding": "dape_v2_alibi", "encoding_options": {"edge": edge}}
  model = dataclasses.replace(run.config.model, **options)
  run = dataclasses.replace(
      run, config=dataclasses.replace(run.config, model=model)
  )
  split = data.Split("test", "f", np.zeros(99), np.array([0, 99]), ("x",))
  plan = make_plan(split, lengths=[16], protocol="all", max_regions=9)
  tokenizer = data.make_tokenizer("bytes")
  first, second = (
      Evaluator(plan, tokenizer, None, Settings([16], chunk=n))._keys(run)
      for n in (8, 16)
  )
  assert (first != second) == (edge == "zero")
