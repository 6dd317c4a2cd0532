"""Correct answers to retrieval prompts."""

import re


def answer(text):
  """Returns the correct answer to `text`, a prompt without its answer."""
  context, question = text.rsplit("\n", 1)
  if "pass key" in question:
    found = re.findall(r"The pass key is (\d+)\. Remember", context)
  else:
    key = re.search(r"magic numbers? for (\w+) mentioned", question)[1]
    found = re.findall(rf"magic numbers for {key} is: (\d+)\.", context)
  return ", ".join(found)
