"""The README's examples run as they stand, one after the other."""

import pathlib
import re

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()


def test_the_examples_run(capsys):
  examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
  scope = {"__name__": "readme"}
  for example in examples:
    exec(compile(example, "README.md", "exec"), scope)
  assert capsys.readouterr().out.splitlines() == [
      "(2, 128, 768)",
      "(2, 128, 768)",
      "(2, 128, 12, 64)",
  ]
