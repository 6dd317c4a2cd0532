"""Tables of a grid, from hand-made results."""

import pytest

from dape_jax.studies import report


def result(task, encoding, seed, accuracies, **changes):
  """Returns the result of a run, {length: accuracy}, trained to 40."""
  rows = [
      {"length": length, "samples": 64, "answers": 64, "accuracy": accuracy}
      for length, accuracy in accuracies.items()
  ]
  values = {
      "task": task,
      "scored_on": task,
      "encoding": encoding,
      "form": "encoder",
      "seed": seed,
      "step": 1000,
      "train_length": 40,
      "max_position": 0,
      "chance": 0.5,
      "chance_by_place": None,
      "rows": rows,
  }
  return values | changes


def cells(table):
  """Returns the cells of a Markdown table without its rule."""
  lines = table.splitlines()
  assert len({len(line) for line in lines}) == 1
  assert set(lines[1]) == {"|", "-"}
  return [
      [cell.strip() for cell in line.strip("|").split("|")]
      for line in (lines[0], *lines[2:])
  ]


GRID = [
    result("copy", "rope", 0, {40: 1.0, 80: 0.5, 160: 0.3}),
    result("copy", "nope", 0, {40: 1.0, 80: 0.9, 160: 0.8}),
    result("parity_check", "rope", 0, {40: 0.6, 80: 0.5, 160: 0.51}),
    result("copy", "rope", 1, {40: 0.8, 80: 0.7, 160: 0.7}),
]


def test_papers_table_has_best_and_mean_in_percent():
  # The training length does not count: 0.4 and 0.7 of two seeds.
  assert cells(report.papers_table(GRID)) == [
      ["task", "form", "rope", "nope"],
      ["copy", "encoder", "70.0 / 55.0", "85.0 / 85.0"],
      ["parity_check", "encoder", "50.5 / 50.5", ""],
  ]


def test_task_table_has_mean_and_std_over_seeds():
  copy = [r for r in GRID if r["task"] == "copy"]
  # The sample standard deviation of 1.0 and 0.8 is 0.2 / sqrt(2).
  assert cells(report.task_table(copy)) == [
      ["encoding", "40", "80", "160", "beyond: best", "mean"],
      [
          "rope",
          "0.900 ± 0.141",
          "0.600 ± 0.141",
          "0.500 ± 0.283",
          "0.700",
          "0.550",
      ],
      ["nope", "1.000", "0.900", "0.800", "0.850", "0.850"],
  ]


@pytest.mark.parametrize("number, shown", [(10, True), (11, False)])
def test_more_than_ten_lengths_have_no_columns(number, shown):
  accuracies = {length: length / 100 for length in range(40, 40 + number)}
  runs = [result("copy", "rope", 0, accuracies)]
  header, row = cells(report.task_table(runs))
  assert len(header) == len(row) == (13 if shown else 3)
  # Beyond 40.
  mean = sum(list(accuracies.values())[1:]) / (number - 1)
  assert row[-1] == row[-2] == f"{mean:.3f}"


def test_report_states_training_and_scoring():
  text = report.report(GRID)
  assert text.startswith("Accuracy beyond the training length in percent")
  assert "mean of 2 seeds" in text
  assert (
      "## copy\n\nTrained and scored as an encoder: 1000 steps up to length 40,"
      " scored at 40 to 160 with 64 problems per length. A constant answer scores"
      " 0.500.\n"
  ) in text
  assert "depends only on" not in text
  for table in ("copy", "parity_check"):
    runs = [r for r in GRID if r["task"] == table]
    assert report.task_table(runs) in text
  assert report.papers_table(GRID) in text

  changed = result(
      "bucket_sort",
      "rope",
      0,
      {80: 0.5},
      form="decoder",
      max_position=2048,
      chance=0.2,
      chance_by_place=0.75,
  )
  text = report.report([changed])
  assert "as a decoder on randomized positions below 2048: 1000" in text
  assert (
      "A constant answer scores 0.200, one that depends only on the position"
      " 0.750." in text
  )


def variants():
  """Returns results of two tasks, one a variant of the other."""
  sparse = "flip_flop_sparse"
  return [
      result("flip_flop", "rope", 0, {80: 0.9}),
      result("flip_flop", "rope", 0, {80: 0.6}, scored_on=sparse),
      result(sparse, "rope", 0, {80: 0.8}),
  ]


def test_variants_have_their_own_tables():
  text = report.report(variants())
  assert [line for line in text.splitlines() if line.startswith("## ")] == [
      "## flip_flop",
      "## flip_flop_sparse after flip_flop",
      "## flip_flop_sparse",
  ]
  assert "Trained on flip_flop, scored as an encoder" in text
  assert [row[0::2] for row in cells(report.papers_table(variants()))] == [
      ["task", "rope"],
      ["flip_flop", "90.0 / 90.0"],
      ["flip_flop_sparse after flip_flop", "60.0 / 60.0"],
      ["flip_flop_sparse", "80.0 / 80.0"],
  ]


def test_every_table_has_a_figure(tmp_path):
  paths = report.write_figures(variants(), tmp_path)
  assert [path.name for path in paths] == [
      "flip_flop.png",
      "flip_flop_sparse_after_flip_flop.png",
      "flip_flop_sparse.png",
  ]
  for path in paths:
    assert path.read_bytes().startswith(b"\x89PNG")
