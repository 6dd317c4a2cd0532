"""The README's example runs as it stands."""

import pathlib
import re

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()


def test_the_example_runs(capsys):
  (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
  exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
  assert capsys.readouterr().out.strip() == "(2, 128, 768)"
