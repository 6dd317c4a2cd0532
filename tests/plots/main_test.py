"""python -m dape_jax.plots, from a checkpoint to PNG and CSV files."""

import argparse
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from matplotlib import image

from dape_jax.checkpoint.runs import load_run
from dape_jax.errors import ConfigError
from dape_jax.plots import __main__ as command
from dape_jax.plots import draw_map, prefill, rows

main = command.main


@pytest.fixture(autouse=True)
def root(in_saved_run):
  return in_saved_run


def paths_of(out):
  """Returns the CSV and the PNG files named in the output."""
  paths = [pathlib.Path(line) for line in out.splitlines() if "/" in line]
  paths = {
      suffix: [p for p in paths if p.suffix == suffix]
      for suffix in (".csv", ".png")
  }
  assert all(p.exists() for found in paths.values() for p in found)
  return paths[".csv"], paths[".png"]


def pixels(path):
  """Returns the shape of a picture that is not blank."""
  picture = image.imread(path)
  assert picture.std() > 0.05
  return picture.shape[:2]


@pytest.fixture
def drawn_rows(monkeypatch):
  """Returns a list that collects the rows plotted from now on."""
  drawn, original = [], command.rows_of_layers

  def recording(*args, **kwargs):
    for found in original(*args, **kwargs):
      drawn.append(found)
      yield found

  monkeypatch.setattr(command, "rows_of_layers", recording)
  return drawn


def table_of(csv):
  header, *lines = csv.read_text().splitlines()
  return header, np.array([line.split(",") for line in lines], np.float64)


def test_bias(root, capsys, drawn_rows):
  flags = ["--query=20", "--layer=all", "--text=text.py", "--chunk=20"]
  main(["bias", "--checkpoint=dape", *flags])
  out = capsys.readouterr().out
  csvs, pngs = paths_of(out)
  assert [p.name for p in csvs] == [
      f"bias_dape_step3_layer{layer}_query20.csv" for layer in (0, 1)
  ]
  assert pngs[0].parent == root / "dape" / "plots"
  assert [pixels(p) for p in pngs] == [(750, 2100)] * 2
  assert [found.layer for found in drawn_rows] == [0, 1]
  for csv, found in zip(csvs, drawn_rows):
    header, table = table_of(csv)
    assert header == "layer,head,key,distance,score,static,adaptive,total"
    assert len(table) == 2 * 21
    of_head_1 = table[table[:, 1] == 1]
    np.testing.assert_array_equal(of_head_1[:, 0], found.layer)
    np.testing.assert_array_equal(of_head_1[:, 2], np.arange(21))
    np.testing.assert_array_equal(of_head_1[:, 3], 20 - np.arange(21))
    for column, values in enumerate(
        (found.scores, found.static, found.adaptive, found.total), start=4
    ):
      written = np.float32(of_head_1[:, column])
      np.testing.assert_array_equal(written, values[1, 0])
    size = np.sqrt(np.mean(np.float64(found.static) ** 2))
    assert f"layer {found.layer}," in out and f"static B {size:.4g}," in out


def test_map(capsys, drawn_rows):
  flags = ["--length=12", "--heads=1", "--output=maps"]
  main(["map", "--checkpoint=dape", *flags])
  (csv,), (png,) = paths_of(capsys.readouterr().out)
  assert str(csv) == "maps/map_dape_step3_layer1_length12.csv"
  assert pixels(png) == (540, 1560)
  header, table = table_of(csv)
  assert header.startswith("layer,head,query,key,distance,score,static,")
  assert len(table) == 12 * 13 / 2  # pairs with the key not after the query
  assert set(table[:, 0]) == {1} and set(table[:, 1]) == {1}
  np.testing.assert_array_equal(table[:, 2] - table[:, 3], table[:, 4])
  (found,) = drawn_rows
  query, key = table[:, 2:4].astype(int).T
  written = np.float32(table[:, 7])
  np.testing.assert_array_equal(written, found.adaptive[1, query, key])


def test_maps_of_zeros_are_omitted(tmp_path):
  scores = np.random.default_rng(0).normal(size=(2, 5, 5))
  positions = np.arange(5)
  visible = np.tri(5, dtype=bool)
  zero = np.zeros_like(scores)
  found = rows.Rows(0, positions, positions, visible, scores, zero, zero)
  draw_map(load_run("dape"), found, [0, 1], "a text", tmp_path / "x.png")
  assert pixels(tmp_path / "x.png") == (540, 1065)


def test_read_text():
  run = load_run("dape")
  flags = argparse.Namespace(string="let it", text=None)
  tokens, _ = prefill.read_text(run, flags, 3)
  assert bytes(tokens.astype(np.uint8)) == b"let"
  # Of the test split's documents of 90, 40 and 60 bytes.
  flags = argparse.Namespace(text=None, split="test", data_dir="")
  found = {n: prefill.read_text(run, flags, n) for n in (1, 50, 61, 100)}
  assert {n: source for n, (_, source) in found.items()} == {
      1: "test split, test/1.py",
      50: "test split, test/2.py",
      61: "test split, test/0.py",
      100: "test split, test/0.py",
  }
  assert len(found[100][0]) == 90  # Without the end token.


def test_effective_length(capsys):
  main(["effective-length", "--checkpoint=dape", "--max_distance=100"])
  out, _ = capsys.readouterr()
  (csv,), (png,) = paths_of(out)
  assert csv.name == "effective_length_dape_step3.csv"
  assert pixels(png) == (735, 1200)
  _, *lines = csv.read_text().splitlines()
  assert [line.split(",")[:4] for line in lines] == [
      ["dape", "dape_kerple_log", layer, head]
      for layer in "01"
      for head in "01"
  ]


def test_help(capsys):
  main(["--help"])
  assert "effective-length" in capsys.readouterr().out
  with pytest.raises(SystemExit) as exit_:
    main(["bias", "--help"])
  assert exit_.value.code == 0
  assert "position of the query, from 0 (default 8191)" in (
      capsys.readouterr().out
  )


@pytest.mark.parametrize(
    "command, message",
    [
        ("", "name a subcommand: bias, effective-length, map"),
        ("bais --checkpoint=dape", 'Did you mean "bias"?'),
        ("bias", "arguments are required: --checkpoint"),
        ("bias --checkpoint=nowhere", "nowhere does not exist"),
        ("map --checkpoint=data", "no finished checkpoint"),
        (
            "bias --checkpoint=dape --query=-1",
            "-1 is not a non-negative integer",
        ),
        (
            "bias --checkpoint=dape --quary=1",
            "Did you mean --query=1? See plots bias",
        ),
        (
            "bias --checkpoint=dape --layer=2",
            "--layer=2: '2' is not one of 0 to 1",
        ),
        (
            "bias --checkpoint=dape --text=none",
            "--text=none: No such file",
        ),
        (
            "bias --checkpoint=dape --text=text.py",
            "--query=8191 needs a text of 8192 tokens, and text.py has 25",
        ),
        (
            "bias --checkpoint=dape --query=90",
            "test/0.py has 90: lower it",
        ),
        (
            "map --checkpoint=dape --heads=0,2",
            "--heads=0,2: '2' is not one of 0 to 1",
        ),
        (
            "map --checkpoint=dape --length=2000",
            "--length=2000: must be at most",
        ),
        ("map --checkpoint=dape --string= ", "--length=64 needs a text of 1"),
        (
            "map --checkpoint=dape --string=a --text=text.py",
            "give only one of --string",
        ),
        (
            "map --checkpoint=dape --split=dev",
            "--split: invalid choice: 'dev'",
        ),
        ("effective-length", "either --checkpoint=DIR or --compare DIR"),
        ("effective-length --compare dape dape", "--compare needs --output"),
        (
            "effective-length --compare dape dape --output=x",
            "dape@3 is given twice",
        ),
    ],
)
def test_bad_input(command, message):
  with pytest.raises(ConfigError) as error:
    main(command.split())
  assert message in str(error.value)
  assert "\n" not in str(error.value)


def test_errors_are_one_line_with_status_2():
  done = subprocess.run(
      [sys.executable, "-m", "dape_jax.plots", "maps"],
      cwd=pathlib.Path(__file__).parents[2],
      capture_output=True,
      text=True,
  )
  assert done.returncode == 2 and not done.stdout
  assert done.stderr == (
      "plots: error: unknown subcommand 'maps'. Did you mean \"map\"? Valid:"
      " bias, effective-length, map.\n"
  )
