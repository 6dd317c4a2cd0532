"""Checks across processes, with a simulated second process."""

import contextlib

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from dape_jax.errors import ConfigError
from dape_jax.parallel import distributed


@pytest.fixture
def other_process(monkeypatch):
  """Returns a function that sets the second process's value; None: the same."""

  def other_process(sent):
    def allgather(x):
      x = np.asarray(x)
      return np.stack([x, x if sent is None else np.full_like(x, sent)])

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "process_allgather", allgather)

  return other_process


def test_error_of_any_process_is_an_error_of_all(other_process):
  other_process(False)
  with (
      pytest.raises(ConfigError, match="another process of this run failed"),
      distributed.failing_together(),
  ):
    pass
  other_process(True)
  with distributed.failing_together():
    pass
  with (
      pytest.raises(ConfigError, match="mine"),
      distributed.failing_together(),
  ):
    raise ConfigError("mine")


@pytest.mark.parametrize("sent, is_equal", [(None, True), (0, False)])
def test_processes_must_have_equal_settings(other_process, sent, is_equal):
  other_process(sent)
  refused = pytest.raises(ConfigError, match="they differ")
  with contextlib.nullcontext() if is_equal else refused:
    distributed.check_equal("settings", "they differ")


def test_flags_of_processes_belong_together():
  message = "--coordinator_address, --num_processes and --process_id"
  with pytest.raises(ConfigError, match=message):
    distributed.initialize(num_processes=2)
