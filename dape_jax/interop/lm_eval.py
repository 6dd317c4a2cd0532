r"""Runs lm-evaluation-harness on checkpoints.

  python -m dape_jax.interop.lm_eval --model dape_jax \
      --model_args checkpoint=runs/my_run --tasks wikitext --batch_size 8

Requires `pip install 'dape_jax[lm_eval]'`. This is the harness' own command,
with all its flags and the model "dape_jax" registered. The harness (0.4.13) has
no plugin mechanism, so plain `lm_eval` does not find the model. In Python,
import this module before `lm_eval.simple_evaluate(model="dape_jax", ...)`.
"""

import collections
from typing import Any

import jax
import tqdm

from dape_jax import __version__, cli
from dape_jax.checkpoint.runs import (
    check_reads_text,
    load_run,
    load_tokenizer,
    warn_of_edge,
)
from dape_jax.errors import ConfigError
from dape_jax.interop.lm_eval_requests import (
    ScoredText,
    cut_left,
    generation_of,
    read_texts,
    write_texts,
)
from dape_jax.models import Transformer

try:
  from lm_eval.__main__ import cli_evaluate
  from lm_eval.api.model import TemplateLM
  from lm_eval.api.registry import register_model
  from lm_eval.models.utils import (
      normalize_gen_kwargs,
      postprocess_generated_text,
  )
  from lm_eval.utils import get_rolling_token_windows
except ImportError as error:
  raise ImportError(
      "dape_jax.interop.lm_eval needs lm-evaluation-harness: pip install"
      " 'dape_jax[lm_eval]'"
  ) from error


def _positive(name: str, value: Any) -> int:
  if not str(value).isdecimal() or int(value) == 0:
    raise ConfigError(f"{name}={value}: must be a positive integer.")
  return int(value)


@register_model("dape_jax")
class DapeJaxLM(TemplateLM):
  """Harness model backed by a checkpoint.

  Every text starts at position 0. A continuation is conditioned on its whole
  context; an empty context is replaced by the tokenizer's EOS token, as in the
  harness' own models. A document (loglikelihood_rolling) is scored after EOS in
  one pass through the cache, so each token is conditioned on all previous ones.

  With max_length, contexts are truncated on the left, which is logged, and
  documents are split into the harness' windows of max_length predicted tokens.
  The first window starts with EOS, the others with the last token of the
  previous window, so each token has 1 to max_length tokens of context. The last
  window is extended to the left with earlier tokens.

  Dynamic NTK uses the next power of two of a text's length, at least 64. Up to
  rounding, results do not depend on the batch size, except for DAPE V2 with
  edge="zero". Sampled text depends on the batch size and on the harness' --seed
  (NumPy).
  """

  def __init__(
      self,
      checkpoint: str,
      batch_size: int | str = 1,
      max_length: int | None = None,
      max_gen_toks: int = 256,
      device: str | None = None,
      max_batch_size: int | None = None,
  ):
    """Loads a checkpoint.

    Args:
      checkpoint: workdir of a training run, its `checkpoints` folder, or one
        step in it.
      batch_size: maximum batch size.
      max_length: maximum number of input tokens per text; None for no limit.
      max_gen_toks: maximum number of new tokens if the task sets none.
      device: ignored; the harness always passes one ("cuda:0" by default). JAX
        chooses the device, or the environment variable JAX_PLATFORMS.
      max_batch_size: must be None: --batch_size=auto is not supported.

    Raises:
      ConfigError: an argument or the checkpoint is invalid.
    """
    super().__init__()
    if max_batch_size is not None:
      raise ConfigError("--max_batch_size: give --batch_size a number instead.")
    self.batch_size = _positive("batch_size", batch_size)
    self.max_gen_toks = _positive("max_gen_toks", max_gen_toks)
    self.max_length = None
    if max_length is not None:
      self.max_length = _positive("max_length", max_length)
    self._run = load_run(str(checkpoint))
    check_reads_text(self._run, "give one trained on text")
    warn_of_edge(self._run, str(checkpoint))
    self._ids = load_tokenizer(self._run)
    self._model = Transformer(self._run.config.model)
    self._params = jax.device_put(self._run.params, jax.local_devices()[0])

  @property
  def eot_token_id(self) -> int:
    return self._ids.eos

  @property
  def tokenizer_name(self) -> str:
    return f"dape_jax_{self._ids.name}"

  def tok_encode(
      self, string: str, add_special_tokens: bool | None = None, **kwargs
  ) -> list[int]:
    """Returns the token ids of the text, without special tokens."""
    return self._ids.encode(string.encode()).tolist()

  def apply_chat_template(self, chat_history, add_generation_prompt=True):
    raise NotImplementedError(
        "dape_jax models are trained on plain text and have no chat template;"
        " omit --apply_chat_template."
    )

  def chat_template(self, chat_template: bool | str = False) -> str | None:
    return self.apply_chat_template([]) if chat_template else ""

  def get_model_info(self) -> dict[str, Any]:
    """Returns the metadata that the harness stores with its results."""
    config = self._run.config
    return {
        "model_num_parameters": sum(
            x.size for x in jax.tree.leaves(self._params)
        ),
        "model_dtype": config.model.dtype,
        "encoding": config.model.encoding,
        "train_length": config.data.length,
        "max_length": self.max_length,
        "step": self._run.step,
        "dape_jax_version": __version__,
    }

  def _loglikelihood_tokens(
      self, requests, disable_tqdm: bool = False, **kwargs
  ) -> list[tuple[float, bool]]:
    """Returns log-likelihood in nats and is_greedy of each continuation."""
    scored = [len(target) for *_, target in requests]
    texts = cut_left(
        # The harness moves a context's trailing spaces to the continuation, so
        # a context of spaces is empty.
        [(c or [self._ids.eos]) + target for _, c, target in requests],
        # The last target is not an input.
        limit=self.max_length and self.max_length + 1,
        needed=max(scored, default=0) + 1,
    )
    scored_texts = [
        ScoredText(*scored_text) for scored_text in zip(texts, scored)
    ]
    # An empty continuation has probability 1.
    answers = [(0.0, True)] * len(requests)
    for i, *answer in self._score(scored_texts, disable_tqdm):
      answers[i] = tuple(answer)
      self.cache_hook.add_partial("loglikelihood", requests[i][0], answers[i])
    return answers

  def loglikelihood_rolling(
      self, requests, disable_tqdm: bool = False
  ) -> list[float]:
    """Returns the log-likelihood of each document, in nats."""
    scored_texts, documents = [], []
    for i, request in enumerate(requests):
      tokens = self.tok_encode(*request.args)
      for inputs, targets in get_rolling_token_windows(
          tokens, self.prefix_token_id, self.max_length or len(tokens) or 1, 1
      ):
        scored_texts.append(ScoredText([*inputs, targets[-1]], len(targets)))
        documents.append(i)
    answers = [0.0] * len(requests)
    for i, log_likelihood, _ in self._score(scored_texts, disable_tqdm):
      answers[documents[i]] += log_likelihood
    return answers

  def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
    """Returns the model's continuation of each context."""
    groups = collections.defaultdict(list)
    for i, request in enumerate(requests):
      kwargs = normalize_gen_kwargs(request.args[1], self.max_gen_toks)
      groups[generation_of(kwargs)].append(i)
    answers = [""] * len(requests)
    bar = tqdm.tqdm(
        total=len(requests), desc="generate_until", disable=disable_tqdm
    )
    for generation, members in groups.items():
      contexts = [self.tok_encode(requests[i].args[0]) for i in members]
      prompts = cut_left(
          [context or [self._ids.eos] for context in contexts],
          limit=self.max_length and self.max_length - generation.max_new_tokens,
          needed=1,
      )
      ends = [self.tok_encode(text) for text in generation.until]
      for i, tokens in write_texts(
          self._model,
          self._params,
          prompts,
          generation,
          batch_size=self.batch_size,
          # Longer stop strings are found after generation.
          stop_tokens=[self._ids.eos, *(e[0] for e in ends if len(e) == 1)],
          vocab_size=self._ids.vocab_size,
      ):
        text = self._ids.decode(tokens).decode(errors="replace")
        text = postprocess_generated_text(text, list(generation.until), None)
        answers[members[i]] = text
        self.cache_hook.add_partial(
            "generate_until", requests[members[i]].args, text
        )
        bar.update()
    bar.close()
    return answers

  def _score(self, scored_texts: list[ScoredText], disable_tqdm: bool):
    return tqdm.tqdm(
        read_texts(
            self._model, self._params, scored_texts, batch_size=self.batch_size
        ),
        total=sum(scored_text.scored > 0 for scored_text in scored_texts),
        desc="loglikelihood",
        disable=disable_tqdm,
    )


def main() -> None:
  """Runs the harness' command, which parses sys.argv."""
  cli.run(lambda _: cli_evaluate(), ["lm_eval"])


if __name__ == "__main__":
  main()
