"""A checkpoint of an earlier version still loads and resumes.

golden_run.tar.xz contains the workdir of a 12-step run that was killed after
step 7, with a checkpoint of step 5, and the metrics of the same run without
interruption. Commit 4dd707c wrote both, on CPU. Replace it only with a
documented breaking change of the checkpoint format.
"""

import json
import pathlib
import tarfile

import pytest

from dape_jax.checkpoint import store
from dape_jax.training import loop, run

_ARCHIVE = pathlib.Path(__file__).parent / "golden_run.tar.xz"
_CHANGES = {
    "model.num_layers": 1,
    "model.width": 8,
    "model.vocab_size": 259,
    "train.steps": 12,
    "train.eval_every": 6,
    "train.checkpoint_every": 5,
}


def test_checkpoint_of_an_earlier_version_loads_and_resumes(
    make_config, tiny_corpus, read_results, monkeypatch, tmp_path, capsys
):
  with tarfile.open(_ARCHIVE) as archive:
    archive.extractall(tmp_path, filter="data")
  config, params, step = store.load_for_evaluation(tmp_path)
  assert (config, step) == (make_config(_CHANGES), 5)
  assert params["head"]["kernel"].shape == (8, 259)

  monkeypatch.setattr(run, "load_corpora", lambda **_: [tiny_corpus])
  loop.train(config, tmp_path)
  assert "resuming from" in capsys.readouterr().err
  lines = (tmp_path / "uninterrupted.jsonl").read_text().splitlines()
  for record, line in zip(read_results(tmp_path), lines, strict=True):
    # Other processors and versions of XLA round differently.
    expected = json.loads(line)
    expected = {name: expected[name] for name in record}
    assert record == pytest.approx(expected, rel=1e-4)
