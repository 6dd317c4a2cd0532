"""Small byte-level BPE tokenizers."""

import tokenizers

EOS = "<|endoftext|>"


def train(text, vocab_size=300):
  """Returns a `tokenizers.Tokenizer` trained on `text`."""
  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
      add_prefix_space=False
  )
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
      vocab_size=vocab_size,
      special_tokens=[EOS],
      initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
      show_progress=False,
  )
  tokenizer.train_from_iterator([text], trainer)
  return tokenizer
