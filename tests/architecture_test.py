"""The packages import each other in the order of docs/architecture.md."""

import pathlib

import importlinter.configuration
from importlinter.application.use_cases import lint_imports

_ROOT = pathlib.Path(__file__).parents[1]


def test_packages_import_from_lower_layers_only(capsys):
  importlinter.configuration.configure()
  passed = lint_imports(
      config_filename=str(_ROOT / "pyproject.toml"), cache_dir=None
  )
  assert passed, capsys.readouterr().out
