"""Samples text from a trained model.

  python -m dape_jax.generate --checkpoint=runs/my_run --prompt="def main("

--checkpoint is the --workdir of a training run (latest step) or one step in its
checkpoints folder. On a terminal, the text of a single prompt is streamed. With
several prompts, each text is printed at the end, below its prompt. Bytes that
are not UTF-8 are shown as U+FFFD.
"""

import argparse
import codecs
import os
import pathlib
import sys

from dape_jax import cli
from dape_jax.errors import ConfigError

# Maximum number of characters of a prompt in a heading.
_HEADING = 60


def _parser() -> argparse.ArgumentParser:
  parser = cli.ArgumentParser(
      prog="generate",
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  add = parser.add_argument
  add("--checkpoint", metavar="DIR", required=True, help="run to sample from")
  add(
      "--prompt",
      metavar="TEXT",
      action="append",
      default=[],
      help="prompt text; may be repeated",
  )
  add("--prompt_file", metavar="FILE", help="file with one more prompt")
  add(
      "--max_new_tokens",
      type=cli.whole_number_type(),
      default=200,
      help="maximum number of new tokens per prompt (default %(default)s)",
  )
  add(
      "--temperature",
      type=float,
      default=0.8,
      help="sampling temperature; 0 always takes the most likely token"
      " (default %(default)s)",
  )
  add(
      "--top_k",
      type=cli.whole_number_type(),
      default=0,
      help="sample from the k most likely tokens; 0 for all (default"
      " %(default)s)",
  )
  add(
      "--top_p",
      type=float,
      default=1.0,
      help="sample from the most likely tokens that reach this total"
      " probability (default %(default)s)",
  )
  add(
      "--seed",
      type=cli.whole_number_type(),
      default=0,
      help="random seed (default %(default)s)",
  )
  add(
      "--ignore_eos",
      action="store_true",
      help="continue past the end-of-document token instead of stopping",
  )
  return parser


class TextAfter:
  """Decodes a stream of tokens after a prompt, in complete characters.

  Holds incomplete UTF-8 sequences back until their remaining bytes arrive,
  including one at the end of the prompt. Invalid bytes become U+FFFD.
  """

  def __init__(self, prompt: bytes, tokenizer):
    self._tokenizer = tokenizer
    self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
    self._decoder.decode(prompt)

  def read(self, tokens, final: bool = False) -> str:
    """Returns the complete characters; if `final`, also the remainder."""
    return self._decoder.decode(self._tokenizer.decode(tokens), final)


def _prompts(flags: argparse.Namespace) -> list[bytes]:
  # Keep the bytes of arguments that are not UTF-8.
  prompts = [os.fsencode(text) for text in flags.prompt]
  names = ["--prompt"] * len(prompts)
  if flags.prompt_file is not None:
    names.append(f"--prompt_file={flags.prompt_file}")
    try:
      prompts.append(pathlib.Path(flags.prompt_file).read_bytes())
    except OSError as error:
      raise ConfigError(f"{names[-1]}: {error.strerror}.") from error
  if not prompts:
    raise ConfigError("give --prompt=TEXT or --prompt_file=FILE.")
  for name, prompt in zip(names, prompts, strict=True):
    if not prompt:
      raise ConfigError(f"{name} is empty: give at least one character.")
  return prompts


def heading(prompt: bytes) -> str:
  """Returns the heading of a prompt's text: the prompt or its end."""
  text = prompt.decode("utf-8", "replace")
  if len(text) > _HEADING:
    text = "..." + text[-_HEADING:]
  return f"==> {text!r} <=="


def main(argv: list[str]) -> None:
  """Prints sample text to standard output.

  Args:
    argv: command-line flags.

  Raises:
    ConfigError: a flag, the checkpoint or the prompt file is invalid.
  """
  flags = _parser().parse_args(argv)
  prompts = _prompts(flags)

  # Slow imports, so that invalid flags fail at once.
  from dape_jax.checkpoint.runs import (
      check_reads_text,
      load_run,
      load_tokenizer,
      warn_of_edge,
  )

  run = load_run(flags.checkpoint)
  check_reads_text(run, "give one trained on text")
  warn_of_edge(run, flags.checkpoint)

  import jax

  from dape_jax.generate.sampler import generate
  from dape_jax.models import Transformer

  tokenizer = load_tokenizer(run)
  texts = [TextAfter(prompt, tokenizer) for prompt in prompts]
  streams = len(prompts) == 1 and sys.stdout.isatty()

  def show(new_tokens):
    print(texts[0].read(new_tokens[0]), end="", flush=True)

  # Drops the training mesh from the arrays' types; position checks would
  # otherwise run on that mesh.
  params = jax.device_put(run.params, jax.local_devices()[0])
  written = generate(
      Transformer(run.config.model),
      params,
      [tokenizer.encode(prompt) for prompt in prompts],
      max_new_tokens=flags.max_new_tokens,
      temperature=flags.temperature,
      top_k=flags.top_k,
      top_p=flags.top_p,
      seed=flags.seed,
      stop_tokens=[] if flags.ignore_eos else [tokenizer.eos],
      vocab_size=tokenizer.vocab_size,
      on_tokens=show if streams else None,
  )
  for prompt, text, tokens in zip(prompts, texts, written, strict=True):
    if len(prompts) > 1:
      print(heading(prompt))
    print(text.read([] if streams else tokens, final=True))


if __name__ == "__main__":
  # Show characters that the terminal cannot encode as "?".
  sys.stdout.reconfigure(errors="replace")
  # argparse handles the flags; absl gets none.
  cli.run(lambda _: main(sys.argv[1:]), ["generate"])
