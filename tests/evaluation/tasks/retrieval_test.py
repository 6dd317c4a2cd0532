"""Retrieval scores of models with known answers."""

import re

import jax
import numpy as np
import prompt_reader
import pytest

from dape_jax.config import ModelConfig
from dape_jax.data.tokenizers import ByteTokenizer
from dape_jax.errors import ConfigError
from dape_jax.evaluation import perplexity
from dape_jax.evaluation.tasks import prompts, retrieval
from dape_jax.models import Transformer

_BYTES = ByteTokenizer()


def _scores(predict):
  """Returns `segment_scores` of a model; predict: text -> next byte."""

  def segment_scores(params, token_rows, lengths, scored, chunk):
    del params
    assert chunk == 128
    results = []
    for row, length, count in zip(token_rows, lengths, scored, strict=True):
      is_top = [
          predict(_BYTES.decode(row[:end]).decode()) == chr(row[end])
          for end in range(length - count + 1, length + 1)
      ]
      nats = np.zeros(count, np.float32)
      results.append(perplexity.TokenScores(nats, np.array(is_top, bool)))
    return results

  return segment_scores


def _reader(text):
  """Always right: returns the next byte of the answer."""
  pattern = r"(.*(?:is|are):? )([\d, ]*)"
  question, given = re.fullmatch(pattern, text, re.DOTALL).groups()
  return prompt_reader.answer(question)[len(given)]


def _near_reader(text):
  """Right if the question is less than 300 bytes after the answer."""
  question = re.fullmatch(r"(.*[^\d])\d*", text, re.DOTALL)[1]
  near = len(question) - question.index(prompt_reader.answer(question)) < 300
  return _reader(text) if near else "0"


def _score(
    predict,
    task="passkey",
    depths=(0, 0.5, 1),
    samples=5,
    lengths=(500, 700),
):
  sizes = dict(batch_size=4, chunk=128, seed=3)
  model = _scores(predict), None, _BYTES, task
  return [
      row
      for length in lengths
      for row in retrieval.score_retrieval(
          *model, length, depths, samples, **sizes
      )
  ]


@pytest.mark.parametrize("task", sorted(prompts.TASKS))
def test_perfect_model_scores_one(task):
  rows = _score(_reader, task)
  assert rows == [
      {
          "task": task,
          "length": length,
          "depth": depth,
          "samples": 5,
          "exact_match": 1.0,
          "token_accuracy": 1.0,
      }
      for length in (500, 700)
      for depth in (0, 0.5, 1)
  ]


def test_scores_belong_to_their_length_and_depth():
  rows = _score(_near_reader, lengths=[250, 500])
  assert [row["exact_match"] for row in rows] == [1, 1, 1, 0, 1, 1]


def test_constant_answer_scores_its_frequency():
  rows = _score(lambda text: "7", samples=400, depths=(None,), lengths=[200])
  assert rows[0]["exact_match"] == 0
  assert rows[0]["depth"] is None
  # One in nine first digits, one in ten others.
  np.testing.assert_allclose(rows[0]["token_accuracy"], 0.102, atol=0.035)


def test_one_wrong_token_prevents_exact_match():
  # Wrong at the third digit.
  def predict(text):
    wrong = re.search(r"The pass key is \d\d$", text)
    return "x" if wrong else _reader(text)

  rows = _score(predict, depths=(0.5,))
  assert [row["exact_match"] for row in rows] == [0, 0]
  assert [row["token_accuracy"] for row in rows] == [0.8, 0.8]


def test_zero_samples_are_rejected():
  with pytest.raises(ConfigError, match="samples=0"):
    _score(_reader, samples=0)


class ParityTokenizer:
  """Bytes modulo 2, so that an untrained model is sometimes right."""

  def encode(self, text):
    return np.frombuffer(text, np.uint8) % 2


def test_transformer_scores_equal_greedy_decoding():
  samples, length, num_answers = 100, 120, 5
  sizes = dict(vocab_size=2, num_layers=1, width=16, num_heads=2)
  model = Transformer(ModelConfig(**sizes, encoding="alibi", dtype="float32"))
  rngs = [np.random.default_rng([0, i]) for i in range(samples)]
  tokenizer = ParityTokenizer()
  tokens = np.stack(
      [
          prompts.make_prompt(tokenizer, "passkey", length, 0.5, rng).tokens
          for rng in rngs
      ]
  )
  shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
  rng = np.random.default_rng(0)
  params = jax.tree.map(lambda x: np.float32(rng.normal(size=x.shape)), shapes)
  (row,) = retrieval.score_retrieval(
      perplexity.make_segment_scores(model),
      params,
      tokenizer,
      "passkey",
      length,
      [0.5],
      samples,
      batch_size=64,
      chunk=128,
      seed=0,
  )

  apply = jax.jit(model.apply)
  tops = lambda tokens: np.argmax(apply({"params": params}, tokens), axis=-1)
  right = tops(tokens[:, :-1]) == tokens[:, 1:]
  np.testing.assert_allclose(
      row["token_accuracy"], right[:, -num_answers:].mean(), rtol=1e-6
  )
  # Greedy decoding feeds each output back as input.
  written = tokens[:, :-1].copy()
  for place in range(length - num_answers + 1, length):
    written[:, place] = tops(written)[:, place - 1]
  written = np.column_stack([written, tops(written)[:, -1]])
  exact = (written == tokens).all(axis=1).mean()
  assert 0 < exact < 1
  np.testing.assert_allclose(row["exact_match"], exact)
