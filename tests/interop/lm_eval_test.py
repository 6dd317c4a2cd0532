"""lm-evaluation-harness tasks match one full forward pass."""

import dataclasses
import functools
import importlib
import json
import logging
import math
import os
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

# Read when the harness is imported.
os.environ["HF_DATASETS_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"
pytest.importorskip("lm_eval")

import saved_runs
from lm_eval.api.instance import Instance

from dape_jax.checkpoint.state import init_state
from dape_jax.config import (
    DataConfig,
    TaskConfig,
)
from dape_jax.errors import ConfigError
from dape_jax.interop import lm_eval as harness
from dape_jax.interop import lm_eval_requests
from dape_jax.models import Transformer

_EOS = 257
# Even numbers of texts, because another batch size would be compiled again.
_QUESTIONS = [
    {"question": "Who?", "choices": ["I", "you", "not I"], "answer": 1},
    {"question": "Where is it: ", "choices": ["in", "out"], "answer": 0},
    {"question": "A é", "choices": ["b", "cde", " h"], "answer": 2},
]
_DOCUMENTS = [
    "a b c",
    "One two three, four; the fifth is a café. ",
    "x y\n z w\n\nv",
    "So many small words in it that it has two chunks",
]
_CONTEXTS = ["Who is it?", "", "Which of these", "é" * 8]


@pytest.fixture(scope="module", autouse=True)
def _small_chunks():
  """Makes longer documents take several chunks."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(lm_eval_requests, "_CHUNK", 32)
    yield


@pytest.fixture(scope="module")
def state():
  init = lambda: init_state(
      Transformer(saved_runs.TINY), optax.sgd(0.1), seed=0
  )
  state = dataclasses.replace(jax.jit(init)(), step=jnp.asarray(3, jnp.int32))
  # Far from uniform; the most likely token is ASCII.
  params = jax.tree.map(lambda x: 2 * x, state.params)
  ids = jnp.arange(saved_runs.TINY.vocab_size)
  params["head"]["kernel"] *= ((ids > 32) & (ids < 127))[None]
  return dataclasses.replace(state, params=params)


def _save(folder, state, data):
  saved_runs.save_run(folder, state, data)
  return str(folder)


@pytest.fixture(scope="module")
def checkpoint(state, tmp_path_factory):
  return _save(tmp_path_factory.mktemp("run"), state, DataConfig(length=16))


@pytest.fixture(scope="module")
def make_lm(checkpoint):
  load = functools.cache(harness.load_run)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(harness, "load_run", load)
    yield functools.partial(harness.DapeJaxLM, checkpoint)


@pytest.fixture(scope="module")
def log_probs(state):
  """Returns a function: ids -> float64 [T, V], by one full forward pass."""
  apply = jax.jit(Transformer(saved_runs.TINY).apply)

  def of(ids):
    # A fixed length, because compiling takes longer than running.
    tokens = np.zeros((1, 64), np.int32)
    tokens[0, : len(ids)] = ids
    logits = np.asarray(apply({"params": state.params}, tokens), np.float64)
    logits = logits[0, : len(ids)]
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

  return of


@pytest.fixture(scope="module")
def direct(log_probs):
  """Returns a function: ids, n -> log-likelihood, is_greedy of the last n."""

  def of(ids, scored):
    rows = log_probs(ids[:-1])[-scored:]
    targets = np.array(ids[-scored:])
    picked = rows[np.arange(scored), targets]
    return picked.sum(), bool((rows.argmax(-1) == targets).all())

  return of


@pytest.fixture(scope="module")
def written(log_probs):
  """Returns a function: context, n -> the n most likely bytes, greedily."""

  def of(context, count):
    ids = list(context.encode()) or [_EOS]
    begin = len(ids)
    for _ in range(count):
      ids.append(int(log_probs(ids)[-1].argmax()))
    return bytes(ids[begin:]).decode()

  return functools.cache(of)


def _requests(kind, arguments):
  return [Instance(kind, {}, a, i) for i, a in enumerate(arguments)]


def _task(folder, name, documents, **settings):
  (folder / f"{name}.json").write_text("\n".join(map(json.dumps, documents)))
  settings |= {
      "task": name,
      "dataset_path": "json",
      "dataset_kwargs": {
          "data_files": {"test": str(folder / f"{name}.json")},
          "cache_dir": str(folder / "cache"),
      },
      "test_split": "test",
  }
  # JSON is YAML.
  (folder / f"{name}.yaml").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def results(checkpoint, tmp_path_factory):
  """Results and samples per task of the harness' own command."""
  folder = tmp_path_factory.mktemp("tasks")
  metrics = lambda *names: [{"metric": name} for name in names]
  _task(
      folder,
      "choice",
      _QUESTIONS,
      output_type="multiple_choice",
      doc_to_text="{{question}}",
      doc_to_choice="{{choices}}",
      doc_to_target="{{answer}}",
      metric_list=metrics("acc"),
  )
  _task(
      folder,
      "rolling",
      [{"text": text} for text in _DOCUMENTS],
      output_type="loglikelihood_rolling",
      doc_to_text="",
      doc_to_target="{{text}}",
      metric_list=metrics(
          "word_perplexity", "byte_perplexity", "bits_per_byte"
      ),
  )
  _task(
      folder,
      "writing",
      [{"text": text} for text in _CONTEXTS],
      output_type="generate_until",
      doc_to_text="{{text}}",
      doc_to_target="x",
      generation_kwargs={"until": ["\n\n"], "max_gen_toks": 12},
      metric_list=metrics("exact_match"),
  )
  arguments = {
      "--model": "dape_jax",
      "--model_args": f"checkpoint={checkpoint}",
      "--tasks": "choice,rolling,writing",
      "--include_path": str(folder),
      "--batch_size": "2",
      "--output_path": str(folder / "output"),
  }
  with pytest.MonkeyPatch.context() as patch:
    from lm_eval import evaluator, tasks

    # Listing the harness' own tasks takes seconds, and so does PyTorch's
    # description of the machine.
    manager = functools.partial(tasks.TaskManager, include_defaults=False)
    patch.setattr(tasks, "TaskManager", manager)
    patch.setattr(evaluator, "add_env_info", lambda results: None)
    flat = [word for pair in arguments.items() for word in pair]
    patch.setattr(sys, "argv", ["lm_eval", *flat, "--log_samples"])
    with pytest.raises(SystemExit) as exit_:
      harness.main()
  assert not exit_.value.code
  (path,) = folder.glob("output/*/results*.json")
  samples = {}
  for name in ("choice", "rolling", "writing"):
    (file,) = folder.glob(f"output/*/samples_{name}_*.jsonl")
    samples[name] = [json.loads(line) for line in file.read_text().splitlines()]
  return json.loads(path.read_text()), samples


def test_multiple_choice_is_the_most_likely(results, direct):
  hits = []
  for sample, doc in zip(results[1]["choice"], _QUESTIONS, strict=True):
    expected = []
    for choice in doc["choices"]:
      # The harness moves trailing spaces of a context to the choice.
      context = doc["question"].rstrip()
      text = doc["question"] + " " + choice
      scored = len(text.encode()) - len(context.encode())
      expected.append(direct(list(text.encode()), scored))
    found = [
        (float(ll), greedy == "True") for ((ll, greedy),) in sample["resps"]
    ]
    for one, other in zip(found, expected, strict=True):
      assert one == pytest.approx(other, rel=1e-6)
    hits.append(np.argmax([ll for ll, _ in expected]) == doc["answer"])
  assert results[0]["results"]["choice"]["acc,none"] == np.mean(hits)


def test_perplexity_of_documents(results, direct):
  totals = [
      direct([_EOS, *text.encode()], len(text.encode()))[0]
      for text in _DOCUMENTS
  ]
  found = [float(s["resps"][0][0]) for s in results[1]["rolling"]]
  np.testing.assert_allclose(found, totals, rtol=1e-6)
  nats = -sum(totals)
  num_bytes = sum(len(text.encode()) for text in _DOCUMENTS)
  num_words = sum(len(re.split(r"\s+", text)) for text in _DOCUMENTS)
  expected = {
      "word_perplexity": math.exp(nats / num_words),
      "byte_perplexity": math.exp(nats / num_bytes),
      "bits_per_byte": nats / math.log(2) / num_bytes,
  }
  for name, value in expected.items():
    found = results[0]["results"]["rolling"][f"{name},none"]
    assert found == pytest.approx(value, rel=1e-6), name


def test_generation_is_greedy_by_default(results, written):
  found = [sample["resps"][0][0] for sample in results[1]["writing"]]
  assert found == [written(context, 12) for context in _CONTEXTS]
  assert len(set(found)) == len(_CONTEXTS)


def test_batch_size_changes_neither_results_nor_order(make_lm, direct, written):
  pairs = [
      (context, context[:3] + "..."[:n])
      for context, n in zip(_CONTEXTS * 2, (1, 2, 3, 1, 2, 2, 1, 3))
  ]
  # An empty continuation has probability 1; spaces go to the continuation.
  pairs += [("Why", ""), ("   ", "x")]
  expected = [
      direct([*(c.encode() or [_EOS]), *t.encode()], len(t.encode()))
      for c, t in pairs[:-2]
  ]
  expected += [(0.0, True), direct([_EOS, *b"   x"], 4)]
  # Only the model's own continuation is greedy.
  for context in _CONTEXTS[:2]:
    text = written(context, 4)
    pairs += [(context, text), (context, text[:3] + chr(ord(text[3]) ^ 1))]
    expected += [
        direct([*(context.encode() or [_EOS]), *t.encode()], 4)
        for _, t in pairs[-2:]
    ]
  assert [greedy for _, greedy in expected[-4:]] == [True, False] * 2
  for batch_size in (1, 4):
    lm = make_lm(batch_size=batch_size)
    found = lm.loglikelihood(_requests("loglikelihood", pairs))
    for one, other in zip(found, expected, strict=True):
      assert one == pytest.approx(other, rel=1e-6)
  # Three prompts, so that the batch of four has a padding row.
  requests = [(context, {"max_gen_toks": 16}) for context in _CONTEXTS[:3]]
  texts = lm.generate_until(_requests("generate_until", requests))
  assert texts == [written(context, 16) for context in _CONTEXTS[:3]]


def test_text_ends_before_the_first_stop_string(make_lm, written):
  texts = [written(context, 12) for context in _CONTEXTS]
  # Generation stops at single tokens; longer strings are found afterwards.
  token, strings = texts[0][4], [texts[2][8:11], texts[3][3:5]]
  untils = [token, token, strings, strings]
  requests = [
      (context, {"until": until, "max_gen_toks": 12})
      for context, until in zip(_CONTEXTS, untils)
  ]
  lm = make_lm(batch_size=2)
  found = lm.generate_until(_requests("generate_until", requests))
  for text, whole, until in zip(found, texts, untils):
    # A single string is accepted as well as a list.
    assert text == min((whole.split(u)[0] for u in until), key=len)
  assert found[0] != texts[0] and found[2] != texts[2]


def test_sampling_follows_the_seed_of_the_harness(make_lm):
  lm = make_lm(batch_size=2)
  settings = {"do_sample": True, "temperature": 1.0, "max_gen_toks": 9}
  requests = _requests("generate_until", [("Which of these", settings)] * 4)

  def draw(seed):
    np.random.seed(seed)
    return lm.generate_until(requests)

  # Equal requests are sampled independently.
  assert len(set(draw(0))) == 4
  assert draw(0) == draw(0) != draw(1)


def test_windows_of_max_length(make_lm, direct):
  length = 24
  lm = make_lm(batch_size=2, max_length=length)
  found = lm.loglikelihood_rolling(
      _requests("loglikelihood_rolling", [(text,) for text in _DOCUMENTS])
  )
  expected = []
  for text in _DOCUMENTS:
    ids = [_EOS, *text.encode()]
    total = 0.0
    for start in range(1, len(ids), length):
      end = min(start + length, len(ids))
      total += direct(ids[max(0, end - length - 1) : end], end - start)[0]
    expected.append(total)
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_max_length_cuts_contexts(make_lm, direct, written, caplog):
  lm = make_lm(batch_size=2, max_length=20)
  context = "Which of these words?"
  pairs = _requests("loglikelihood", [(context, "abc"), ("b", "c" * 20)])
  with caplog.at_level(logging.WARNING):
    found = lm.loglikelihood(pairs)
  assert "1 of 2 texts are truncated on the left to 21 tokens" in caplog.text
  cut = list((context + "abc").encode())[-21:]
  assert found[0] == pytest.approx(direct(cut, 3), rel=1e-6)
  requests = [(text, {"max_gen_toks": 3}) for text in (context, "Who")]
  assert lm.generate_until(_requests("generate_until", requests)) == [
      written(context[-17:], 3),
      written("Who", 3),
  ]
  with pytest.raises(ConfigError, match="increase it by 2"):
    lm.loglikelihood(_requests("loglikelihood", [("a", "b" * 22)]))
  request = _requests("generate_until", [("a", {"max_gen_toks": 20})])
  with pytest.raises(ConfigError, match="max_length leaves 0 tokens"):
    lm.generate_until(request)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"batch_size": "auto"}, "batch_size=auto: must be a positive integer"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"max_batch_size": 8}, "--max_batch_size"),
        ({"max_length": 0}, "max_length=0"),
        ({"max_length": 2.5}, "max_length=2.5"),
        ({"max_gen_toks": -1}, "max_gen_toks=-1"),
    ],
)
def test_bad_arguments(make_lm, arguments, message):
  with pytest.raises(ConfigError, match=message):
    make_lm(**arguments)


def test_checkpoints_without_text_are_rejected(state, tmp_path):
  with pytest.raises(ConfigError, match="nowhere does not exist"):
    harness.DapeJaxLM("nowhere")
  path = _save(tmp_path, state, TaskConfig(task="parity_check"))
  with pytest.raises(ConfigError, match="trained on the task parity_check"):
    harness.DapeJaxLM(path)


def test_chat_templates_are_rejected(make_lm):
  with pytest.raises(NotImplementedError, match="--apply_chat_template"):
    make_lm().chat_template(True)
  with pytest.raises(NotImplementedError, match="--apply_chat_template"):
    make_lm().apply_chat_template([{"role": "user", "content": "a"}])
  assert make_lm().tokenizer_name == "dape_jax_bytes"


def test_install_hint(monkeypatch):
  monkeypatch.delitem(sys.modules, harness.__name__)
  monkeypatch.setitem(sys.modules, "lm_eval.__main__", None)
  with pytest.raises(ImportError, match=r"pip install 'dape_jax\[lm_eval\]'"):
    importlib.import_module(harness.__name__)
