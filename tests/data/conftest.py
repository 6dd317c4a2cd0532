import socket

import numpy as np
import pytest

from dape_jax import data

_SPLITS = ("train",) * 40 + ("validation",) * 8 + ("test",) * 12


def _document(index: int) -> data.Document:
  rng = np.random.default_rng(index)
  # All byte values, so neither UTF-8 nor free of NUL; a few documents are
  # longer than a token block, so that blocks and documents cut each other.
  size = 150_000 if index % 20 == 3 else int(rng.integers(1, 5000))
  text = rng.integers(0, 256, size, dtype=np.uint8).tobytes()
  return data.Document(
      f"pkg/{index:02}.py", f"group{index // 4}", _SPLITS[index], text
  )


@pytest.fixture(scope="session")
def documents() -> list[data.Document]:
  return [_document(index) for index in range(60)]


@pytest.fixture
def no_network(monkeypatch):
  def refuse(*args, **kwargs):
    raise AssertionError("the data pipeline opened a socket")

  monkeypatch.setattr(socket, "socket", refuse)
  monkeypatch.setattr(socket, "create_connection", refuse)
  monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="session")
def corpus(documents, tmp_path_factory) -> data.Corpus:
  folder = tmp_path_factory.mktemp("corpus")
  return data.open_corpus(documents, "synthetic", data_dir=folder)
