"""Sources and jobs of `dape_jax.data.preparation`."""

import json

import numpy as np

from dape_jax import data
from dape_jax.data.preparation import Job
from dape_jax.data.shards import BLOCK_SIZE
from dape_jax.data.text_files import TextFile

_SHARD = 2 * BLOCK_SIZE
FRACTIONS = {"test": 0.1, "validation": 0.1}


def texts(count, seed=0):
  """Returns `count` texts of various lengths, one of them long."""
  rng = np.random.default_rng(seed)
  found = [
      f"document {i} " + "abcdefg "[: 1 + i % 8] * int(rng.integers(1, 200))
      for i in range(count)
  ]
  found[7] = "long " * 6000  # spans several shards
  return found


def lines(texts):
  """Returns the contents of a .jsonl file."""
  return b"".join(json.dumps({"text": t}).encode() + b"\n" for t in texts)


def job(files, folder, **changes):
  """Returns a job with small shards that journals after every batch."""
  settings = dict(
      folder=folder,
      tokenizer=data.ByteTokenizer(),
      sources={"train": [TextFile(file, "text") for file in files]},
      held_out=FRACTIONS,
      shard_tokens=_SHARD,
      journal_seconds=0.0,
  )
  return Job(**settings | changes)


def documents(corpus, name):
  """Returns the decoded documents of a split by name."""
  split = corpus.split(name)
  return {
      split.name(i): corpus.tokenizer.decode(split.tokens[begin:end])
      for i, (begin, end) in enumerate(
          zip(split.starts[:-1].tolist(), split.starts[1:].tolist())
      )
  }
