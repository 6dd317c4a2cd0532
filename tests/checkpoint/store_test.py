"""Saving, finding and loading intact and damaged checkpoints."""

import itertools
import pathlib
import resource
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from dape_jax.checkpoint import store as checkpoint
from dape_jax.checkpoint.paths import step_folders
from dape_jax.checkpoint.saver import CheckpointSaver
from dape_jax.config.dicts import experiment_to_dict
from dape_jax.errors import ConfigError
from dape_jax.parallel import partitioning


@pytest.fixture(scope="module")
def config(make_config):
  return make_config({"model.encoding_options": {}})


@pytest.fixture(scope="module")
def state(config, make_mesh, make_state):
  return make_state(config, make_mesh(1))


def _save(workdir, state, config, steps, keep=2, keep_every=0):
  sharding = partitioning.replicated(partitioning.make_mesh())
  folder = epath.Path(workdir / "checkpoints")
  with CheckpointSaver(folder, keep, keep_every) as checkpoints:
    for step in steps:
      this = state.replace(step=jnp.asarray(step, jnp.int32))
      checkpoints.save(
          jax.device_put(this, sharding),
          experiment_to_dict(config),
          {"step": step, "list": [1, None, {}]},
      )


@pytest.fixture(scope="module")
def saved(tmp_path_factory, state, config):
  """A workdir with steps 2 and 3; tests that change it take a copy."""
  workdir = tmp_path_factory.mktemp("saved")
  _save(workdir, state, config, steps=(1, 2, 3))
  return workdir


@pytest.fixture
def copy(saved, tmp_path):
  return pathlib.Path(shutil.copytree(saved, tmp_path / "copy"))


def _assert_equal(tree, expected):
  jax.tree.map(np.testing.assert_array_equal, tree, expected)


def test_latest_steps_are_kept(saved):
  names = sorted(p.name for p in (saved / "checkpoints").iterdir())
  assert names == ["2", "3"]


def test_multiples_of_keep_every_are_kept(tmp_path, state, config):
  _save(tmp_path, state, config, steps=range(1, 8), keep=1, keep_every=3)
  names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
  assert names == ["3", "6", "7"]


def test_failed_save_is_reported_and_others_stay(copy, state, config, capsys):
  folder = epath.Path(copy / "checkpoints")
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  with CheckpointSaver(folder, 5) as checkpoints:

    def save(step):
      this = state.replace(step=jnp.asarray(step, jnp.int32))
      checkpoints.save(this, experiment_to_dict(config), {})
      return checkpoints.wait()

    # Compile first: the limit would damage JAX's compilation cache.
    assert save(4)
    # No file may grow beyond this, as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
      assert not save(5)
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    message = capsys.readouterr().err
    assert "step 5: its checkpoint could not be written (" in message
    assert message.rstrip().endswith("checkpoints/4.")
    assert save(6)
  assert sorted(p.name for p in folder.iterdir()) == ["2", "3", "4", "6"]
  assert checkpoint.load_for_evaluation(copy)[2] == 6


@pytest.mark.parametrize("num_devices", [1, 8])
def test_state_loads_on_any_number_of_devices(
    saved, state, make_mesh, num_devices
):
  mesh = make_mesh(num_devices)
  latest = step_folders(epath.Path(saved / "checkpoints"))[0]
  assert latest == saved / "checkpoints" / "3"
  restored = checkpoint.load_state(latest, jax.eval_shape(lambda: state), mesh)
  assert int(restored.step) == 3
  _assert_equal(restored.params, state.params)
  _assert_equal(restored.opt_state, state.opt_state)
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  for leaf in jax.tree.leaves(restored):
    assert leaf.sharding == partitioning.replicated(mesh)


def test_metadata_is_unchanged(saved, config):
  metadata = checkpoint.load_metadata(saved / "checkpoints" / "3")
  assert metadata["config"] == experiment_to_dict(config)
  assert metadata["data_state"] == {"step": 3, "list": [1, None, {}]}
  assert metadata["dape_jax_version"]


@pytest.mark.parametrize(
    "path, step", [("", 3), ("checkpoints", 3), ("checkpoints/2", 2)]
)
def test_load_for_evaluation_finds_the_step(saved, state, config, path, step):
  loaded_config, params, loaded_step = checkpoint.load_for_evaluation(
      saved / path
  )
  assert loaded_config == config
  assert loaded_step == step
  _assert_equal(params, state.params)


def test_load_for_evaluation_needs_no_optimizer(copy, state):
  shutil.rmtree(copy / "checkpoints" / "3" / "optimizer")
  _, params, _ = checkpoint.load_for_evaluation(copy)
  _assert_equal(params, state.params)


def test_state_may_be_donated_after_save(tmp_path, state, config):
  double = jax.jit(
      lambda s: s.replace(params=jax.tree.map(lambda x: x * 2, s.params)),
      donate_argnums=0,
  )
  # A copy, because the fixture must not be donated.
  this = jax.tree.map(jnp.copy, state).replace(step=jnp.asarray(7, jnp.int32))
  folder = epath.Path(tmp_path / "checkpoints")
  with CheckpointSaver(folder, keep=1) as checkpoints:
    checkpoints.save(this, experiment_to_dict(config), {})
    for _ in range(10):
      this = double(this)
    jax.block_until_ready(this)
  _, params, _ = checkpoint.load_for_evaluation(tmp_path)
  _assert_equal(params, state.params)


def test_remains_of_a_killed_save_are_ignored_and_removed(copy, state, config):
  folder = copy / "checkpoints"
  (folder / "3").rename(folder / "3.orbax-checkpoint-tmp")
  assert checkpoint.load_for_evaluation(copy)[2] == 2
  _save(copy, state, config, steps=(4,))
  assert sorted(p.name for p in folder.iterdir()) == ["2", "4"]


def test_folder_of_runs_named_by_numbers_is_not_a_checkpoint(saved):
  (saved.parent / "runs").mkdir()
  shutil.copytree(saved, saved.parent / "runs" / "2")
  with pytest.raises(ConfigError, match="holds no finished checkpoint"):
    checkpoint.load_for_evaluation(saved.parent / "runs")


def test_missing_and_empty_paths(tmp_path):
  with pytest.raises(ConfigError, match=r"nowhere does not exist"):
    checkpoint.load_for_evaluation(tmp_path / "nowhere")
  for folder in (tmp_path, tmp_path / "checkpoints"):
    folder.mkdir(exist_ok=True)
    with pytest.raises(ConfigError, match="holds no finished checkpoint"):
      checkpoint.load_for_evaluation(folder)
  file = tmp_path / "file"
  file.write_text("x")
  with pytest.raises(ConfigError, match="holds no finished checkpoint"):
    checkpoint.load_for_evaluation(file)
  (tmp_path / "12").mkdir()
  for path in (tmp_path / "12", tmp_path):
    with pytest.raises(ConfigError, match="holds no finished checkpoint"):
      checkpoint.load_for_evaluation(path)


def _files(folder):
  files = [f for f in folder.rglob("*") if f.is_file() and f.stat().st_size]
  # Never read: markers, and files not needed to load with given shardings.
  unused = ("commit_success.txt", "_sharding", "_CHECKPOINT_METADATA")
  return sorted(f for f in files if f.name not in unused)


def test_damage_to_any_file_is_reported_or_harmless(copy, state, capfd):
  """Truncates and corrupts each file; loading never returns wrong values."""
  step = copy / "checkpoints" / "3"
  reported = 0
  for file, damage in itertools.product(
      _files(step / "params") + _files(step / "metadata"), ("cut", "flip")
  ):
    content = bytearray(file.read_bytes())
    half = len(content) // 2
    damaged = content[:half]
    if damage == "flip":
      damaged += bytes([content[half] ^ 16]) + content[half + 1 :]
    file.write_bytes(damaged)
    try:
      _, params, _ = checkpoint.load_for_evaluation(copy)
      _assert_equal(params, state.params)
    except ConfigError as e:
      reported += 1
      assert "\n" not in str(e)
    file.write_bytes(content)
  assert reported >= 8
  assert "Traceback" not in capfd.readouterr().err
  checkpoint.load_for_evaluation(copy)


def _change(tree, names, function):
  tree = dict(tree)
  if len(names) == 1:
    function(tree, names[0])
  else:
    tree[names[0]] = _change(tree[names[0]], names[1:], function)
  return tree


@pytest.mark.parametrize(
    "function, message",
    [
        (
            lambda tree, name: tree.pop(name),
            r"tensor {} has shape none \(it is missing\)",
        ),
        (
            lambda tree, name: tree.update({name: tree[name][:-1]}),
            r"tensor {} has shape \(31,\).*has \(32,\)",
        ),
        (
            lambda tree, name: tree.update(more=tree[name]),
            r"tensor final_norm/more .* has no such tensor",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tmp_path, state, config, function, message
):
  params = _change(state.params, ["final_norm", "scale"], function)
  _save(tmp_path, state.replace(params=params), config, steps=(1,))
  with pytest.raises(ConfigError, match=message.format("final_norm/scale")):
    checkpoint.load_for_evaluation(tmp_path)
