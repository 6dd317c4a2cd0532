"""A tiny grid: training, scoring, resuming and rejected settings."""

import json
import pathlib
import re
import shutil

import pytest
from refusals import assert_refused

from dape_jax.errors import ConfigError
from dape_jax.plots.__main__ import main as plots

SETTINGS = (
    "--set=model.num_layers=1",
    "--set=model.width=16",
    "--set=model.num_heads=2",
    "--set=model.windows=(0,)",
    "--set=data.length=4",
    "--set=data.lengths_per_batch=2",
    "--set=optimizer.warmup_steps=1",
    "--set=train.batch_size=4",
    "--set=train.steps=3",
)
RUNS = ["induction/nope/seed3", "induction/alibi/seed3"]


@pytest.fixture(scope="module")
def grid(tasks_command):
  """Returns a function: folder, flags -> result of the tiny grid's command."""

  def call(folder, *flags):
    return tasks_command(
        "--config=configs/length_tasks.py",
        "--tasks=induction",
        "--encodings=nope,alibi",
        "--seeds=3",
        "--times=1,2,4",
        "--samples=16",
        "--batch_size=16",
        f"--output={folder}",
        *SETTINGS,
        *flags,
    )

  return call


@pytest.fixture(scope="module")
def grid_run(grid, tmp_path_factory):
  """A finished grid and what the command printed."""
  folder = tmp_path_factory.mktemp("grid") / "runs"
  return folder, grid(folder)


@pytest.fixture
def finished(grid_run, tmp_path):
  return pathlib.Path(shutil.copytree(grid_run[0], tmp_path / "copy"))


def written(folder):
  """Returns {file: modification time} of all files of the runs."""
  runs = [path for run in RUNS for path in (folder / run).rglob("*")]
  return {path: path.stat().st_mtime_ns for path in runs if path.is_file()}


def stored(folder, run):
  return json.loads((folder / run / "accuracy.json").read_text())


def test_grid_is_trained_scored_and_drawn(grid_run):
  folder, (status, out, err) = grid_run
  assert status == 0, err
  titles = re.findall(r"^\[.*", err, re.MULTILINE)
  assert titles == [
      "[1/2] induction, nope, seed 3",
      "[2/2] induction, alibi, seed 3",
  ]
  table = (folder / "table.md").read_text()
  assert out == f"{table}\n{folder / 'induction.png'}\n"
  assert "3 steps up to length 4, scored at 4 to 16 with 16 problems" in table
  assert (folder / "induction.png").read_bytes().startswith(b"\x89PNG")

  document = json.loads((folder / "results.json").read_text())
  assert document["format"] == "dape_jax.task_grid"
  results = document["results"]
  assert results == [
      result for run in RUNS for result in stored(folder, run)["results"]
  ]
  for run, result in zip(RUNS, results, strict=True):
    assert run == "{task}/{encoding}/seed{seed}".format(**result)
    assert result["scored_on"] == "induction"
    assert (result["form"], result["step"]) == ("decoder", 3)
    assert [row["length"] for row in result["rows"]] == [4, 8, 16]
    assert all(row["samples"] == row["answers"] == 16 for row in result["rows"])
    config = json.loads((folder / run / "config.json").read_text())
    assert config["seed"] == result["seed"]
    assert config["model"]["encoding"] == result["encoding"]


def test_rerun_of_finished_grid_only_prints(grid_run, grid):
  folder, (_, out, _) = grid_run
  before = written(folder)
  assert grid(folder) == (0, out, "")
  assert written(folder) == before


def test_more_samples_are_scored_without_training(finished, grid):
  before = written(finished)
  status, out, err = grid(finished, "--samples=24")
  assert status == 0, err
  assert "with 24 problems per length" in out
  assert err.count("already finished, 3 of 3 steps") == 2
  changed = {p for p, time in written(finished).items() if time != before[p]}
  assert changed == {finished / run / "accuracy.json" for run in RUNS}
  for run in RUNS:
    (result,) = stored(finished, run)["results"]
    assert {row["samples"] for row in result["rows"]} == {24}


@pytest.mark.parametrize("damage", ["[]", '{"made_with": 1'])
def test_run_with_damaged_results_is_scored_again(
    grid_run, finished, grid, damage
):
  before = stored(finished, RUNS[1])
  path = finished / RUNS[1] / "accuracy.json"
  path.write_text(damage)
  status, out, err = grid(finished)
  assert status == 0
  assert f"{path} is damaged; scoring the run again." in err
  assert "[2/2]" in err and err.count("[") == 1
  assert out == grid_run[1][1].replace(str(grid_run[0]), str(finished))
  assert stored(finished, RUNS[1]) == before


def test_interrupted_grid_resumes(grid_run, finished, grid):
  shutil.rmtree(finished / RUNS[1])
  status, out, err = grid(finished)
  assert status == 0
  assert re.findall(r"\[.*", err) == ["[2/2] induction, alibi, seed 3"]
  assert out == grid_run[1][1].replace(str(grid_run[0]), str(finished))


def test_runs_with_other_settings_are_refused(finished, grid):
  before = written(finished)
  assert_refused(
      grid(finished, "--set=train.steps=4"),
      f"{finished / RUNS[0]}: config.train.steps=4 but the checkpoint in"
      " --output was trained with 3; set it back, or give another --output.",
  )
  assert written(finished) == before


def test_score_of_one_run(grid_run, tasks_command):
  folder = grid_run[0] / RUNS[1]
  flags = f"--score={folder}", "--times=1,2,4", "--samples=16"
  status, out, err = tasks_command(*flags)
  assert status == 0, err
  assert "| alibi" in out and "nope" not in out
  (result,) = stored(grid_run[0], RUNS[1])["results"]
  for row in result["rows"]:
    assert f"| {row['accuracy']:.3f} " in out
  before = written(grid_run[0])
  for batch_size in (5, 16):
    assert tasks_command(*flags, f"--batch_size={batch_size}") == (0, out, "")
  assert written(grid_run[0]) == before


def test_score_of_text_run_points_to_eval(finished, tasks_command):
  run = finished / RUNS[0]
  (metadata,) = run.glob("checkpoints/3/metadata/data.json")
  values = json.loads(metadata.read_text())
  values["config"]["data"] = {"source": "stdlib", "length": 4}
  values["config"]["model"]["num_outputs"] = 0
  metadata.write_text(json.dumps(values))
  assert_refused(
      tasks_command(f"--score={run}"),
      f"{run} was trained on text; evaluate it with eval.py --checkpoint={run}.",
  )


def test_map_of_text_refuses_task_run(grid_run):
  run = grid_run[0] / RUNS[1]
  with pytest.raises(ConfigError, match="trained on the task induction; map"):
    plots(["map", f"--checkpoint={run}", "--string=abc"])
