"""Effective lengths of checkpoints: values, CSV and plot."""

import numpy as np
import pytest
from matplotlib import image

from dape_jax.errors import ConfigError
from dape_jax.plots import effective_length, figures

_FAR = 1000


def kerple_length(r1, r2):
  return int((np.exp(2 / r1) - 1) / r2) + 1


def test_lengths_are_per_layer_unless_shared(make_run):
  r1, r2 = [[0.3, 0.5], [0.9, 0.1]], [[1.0, 0.5], [0.25, 1.0]]
  run = make_run("dape_kerple_log", {"r1": r1, "r2": r2})
  lengths = effective_length.lengths_of_run(run, _FAR)
  assert list(lengths) == [0, 1]
  expected = [kerple_length(0.3, 1.0), kerple_length(0.5, 0.5)]
  np.testing.assert_array_equal(lengths[0], expected)
  expected = [kerple_length(0.9, 0.25), _FAR + 1]
  np.testing.assert_array_equal(lengths[1], expected)

  shared = {"r1": [0.5, 1.0], "r2": [1.0, 1.0]}
  run = make_run("kerple_log", shared, share_encoding=True)
  (of_all,) = effective_length.lengths_of_run(run, _FAR).values()
  np.testing.assert_array_equal(
      of_all, [kerple_length(0.5, 1), kerple_length(1, 1)]
  )


def test_layers_without_a_static_bias_are_left_out(make_run, capsys):
  run = make_run("alibi,rope")
  lengths = effective_length.lengths_of_run(run, _FAR)
  assert list(lengths) == [0]
  np.testing.assert_array_equal(lengths[0], [33, 513])  # slopes 2^-4, 2^-8
  assert "left out: rope adds nothing" in capsys.readouterr().err
  assert figures.layers_with_bias(run, [0, 1]) == [0]
  with pytest.raises(ConfigError, match="nothing is added to the scores"):
    figures.layers_with_bias(run, [1])


def test_encodings_without_a_static_bias(make_run):
  run = make_run("fox,transformer_xl,cope,dape_nope,rope", num_layers=5)
  with pytest.raises(ConfigError) as error:
    effective_length.lengths_of_run(run, _FAR)
  for reason in (
      "fox has a bias that depends on the tokens",
      "transformer_xl has a bias that depends on the tokens",
      "cope has no static bias",
      "dape_nope has no static bias",
      "rope adds nothing to the scores, so its heads have no effective length",
  ):
    assert reason in str(error.value)


def test_files(make_run, tmp_path):
  runs = [
      make_run("kerple_log", {"r1": [[0.3, 1], [1, 0.1]], "r2": [[1, 1]] * 2}),
      make_run("alibi"),
      make_run(
          "fire", share_encoding=True, encoding_options={"threshold": 9.0}
      ),
  ]
  depends = [effective_length.depends_on_position(run, _FAR) for run in runs]
  assert depends == [False, False, True]
  names = ["a", "b", "c"]
  lengths = [effective_length.lengths_of_run(run, _FAR) for run in runs]
  arguments = (runs, names, lengths)
  effective_length.write_lengths(*arguments, tmp_path / "x.csv", _FAR)
  lines = (tmp_path / "x.csv").read_text().splitlines()
  assert lines[:7] == [
      "run,encoding,layer,head,effective_length",
      f"a,kerple_log,0,0,{kerple_length(0.3, 1)}",
      f"a,kerple_log,0,1,{kerple_length(1, 1)}",
      f"a,kerple_log,1,0,{kerple_length(1, 1)}",
      "a,kerple_log,1,1,",
      "b,alibi,0,0,33",
      "b,alibi,0,1,513",
  ]
  assert len(lines) == 1 + 4 + 4 + 2 and lines[-1].startswith("c,fire,all,1,")
  effective_length.draw_lengths(*arguments, tmp_path / "x.png", _FAR)
  picture = image.imread(tmp_path / "x.png")
  assert picture.shape[:2] == (795, 1200) and picture.std() > 0.05
