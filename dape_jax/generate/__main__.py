"""Text that a trained model writes after a prompt.

  python -m dape_jax.generate --checkpoint=runs/my_run --prompt="def main("

A checkpoint is the --workdir of a training run (the latest step) or a step in its
checkpoints folder. One prompt's text appears on a terminal as it is written;
texts of several prompts are printed when all are done, each under its prompt.
Bytes that are not UTF-8 are shown as U+FFFD.
"""

import argparse
import codecs
import os
import pathlib
import sys

from dape_jax import cli
from dape_jax.errors import ConfigError

# Characters of a prompt above its text.
_HEADING = 60


def _parser() -> argparse.ArgumentParser:
  parser = cli.ArgumentParser(
      prog="generate",
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  add = parser.add_argument
  add("--checkpoint", metavar="DIR", required=True, help="the run that writes")
  add(
      "--prompt",
      metavar="TEXT",
      action="append",
      default=[],
      help="what the text begins with; may be given several times",
  )
  add("--prompt_file", metavar="FILE", help="a file that is one more prompt")
  add(
      "--max_new_tokens",
      type=cli.whole_number_type(),
      default=200,
      help="at most so many after each prompt (default %(default)s)",
  )
  add(
      "--temperature",
      type=float,
      default=0.8,
      help="logits are divided by it; 0 takes the likeliest token every time"
      " (default %(default)s)",
  )
  add(
      "--top_k",
      type=cli.whole_number_type(),
      default=0,
      help="draw from the k likeliest tokens only; 0 is all (default"
      " %(default)s)",
  )
  add(
      "--top_p",
      type=float,
      default=1.0,
      help="draw from the likeliest tokens that make up this probability"
      " (default %(default)s)",
  )
  add(
      "--seed",
      type=cli.whole_number_type(),
      default=0,
      help="another one draws another text (default %(default)s)",
  )
  add(
      "--ignore_eos",
      action="store_true",
      help="write on where the model ends the document; by default a text stops"
      " there",
  )
  return parser


class TextAfter:
  """Text of tokens as they come, whole characters only.

  Bytes of a character wait for the rest of it, those at the end of the prompt
  too. What is not UTF-8 becomes U+FFFD.
  """

  def __init__(self, prompt: bytes, tokenizer):
    self._tokenizer = tokenizer
    self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
    self._decoder.decode(prompt)

  def read(self, tokens, final: bool = False) -> str:
    """Returns the characters that are complete; if `final`, what is left too."""
    return self._decoder.decode(self._tokenizer.decode(tokens), final)


def _prompts(flags: argparse.Namespace) -> list[bytes]:
  # Arguments that are not UTF-8 are bytes all the same.
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
  """Returns the line above a prompt's text: the prompt, or the end of it."""
  text = prompt.decode("utf-8", "replace")
  if len(text) > _HEADING:
    text = "..." + text[-_HEADING:]
  return f"==> {text!r} <=="


def _load(path: str):
  """Returns the run, which must have been trained on text."""
  # Orbax takes seconds to start; a wrong flag is told at once.
  from dape_jax.checkpoint.runs import check_reads_text, load_run, warn_of_edge

  run = load_run(path)
  check_reads_text(run, "give one trained on text")
  warn_of_edge(run, path)
  return run


def main(argv: list[str]) -> None:
  """Writes text to standard output.

  Args:
    argv: flags.

  Raises:
    ConfigError: they are wrong, or the checkpoint or the prompt file is.
  """
  flags = _parser().parse_args(argv)
  prompts = _prompts(flags)
  run = _load(flags.checkpoint)

  import jax

  from dape_jax.checkpoint.runs import load_tokenizer
  from dape_jax.generate.sampler import generate
  from dape_jax.models import Transformer

  tokenizer = load_tokenizer(run)
  texts = [TextAfter(prompt, tokenizer) for prompt in prompts]
  streams = len(prompts) == 1 and sys.stdout.isatty()

  def show(new_tokens):
    print(texts[0].read(new_tokens[0]), end="", flush=True)

  # Through the host: arrays that go from all devices to one keep the mesh of all
  # in their type, which position checks would run on.
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
  # What the terminal has no letter for is shown as "?".
  sys.stdout.reconfigure(errors="replace")
  # No flags are left for absl, whose flags are of the whole process.
  cli.run(lambda _: main(sys.argv[1:]), ["generate"])
