"""The documentation: its examples run, its links and its modules exist."""

import importlib.util
import pathlib
import pkgutil
import re

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_PAGES = sorted(
    [_ROOT / "README.md", *(_ROOT / "docs").rglob("*.md")],
    key=lambda page: page.relative_to(_ROOT),
)
_ids = lambda page: str(page.relative_to(_ROOT))


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("README.md", ["(2, 128, 768)"]),
        (
            "docs/flax.md",
            ["(2, 128, 768)", "(2, 128, 768)", "(2, 128, 12, 64)"],
        ),
    ],
)
def test_examples_run(page, printed, capsys):
  text = (_ROOT / page).read_text()
  scope = {"__name__": page}
  for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
    exec(compile(example, page, "exec"), scope)
  assert capsys.readouterr().out.splitlines() == printed


@pytest.mark.parametrize("page", _PAGES, ids=_ids)
def test_links_lead_somewhere(page):
  links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
  missing = [
      link
      for link in links
      if "://" not in link and not (page.parent / link).exists()
  ]
  assert not missing


@pytest.mark.parametrize("page", _PAGES, ids=_ids)
def test_modules_and_files_exist(page):
  text = page.read_text()
  modules = set(re.findall(r"python -m (dape_jax[\w.]*\w)", text))
  files = set(
      re.findall(r"(?<![\w/.])((?:dape_jax|tests|configs)/[\w/]+\.py)", text)
  )
  missing = [m for m in sorted(modules) if not importlib.util.find_spec(m)]
  missing += [f for f in sorted(files) if not (_ROOT / f).exists()]
  assert not missing


def test_functions_of_the_architecture_page_exist():
  text = (_ROOT / "docs" / "architecture.md").read_text()
  paths = text.partition("## One training step")[2]
  missing = []
  for name in re.findall(r"`([a-z_]+(?:\.\w+)+)`", paths):
    if name == "eval.py" or name.startswith("jax."):
      continue
    try:
      pkgutil.resolve_name(f"dape_jax.{name}")
    except (ImportError, AttributeError):
      missing.append(name)
  assert paths and not missing
