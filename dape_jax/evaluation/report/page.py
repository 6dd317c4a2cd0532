"""The page that holds all of a report: pictures and tables in one file."""

import base64
import html
import pathlib
import string
from collections.abc import Mapping, Sequence
from typing import Any

from dape_jax.evaluation.report import tables
from dape_jax.evaluation.report.markup import as_html
from dape_jax.evaluation.report.tables import Table

_PAGE = string.Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
:root { --ink: #1c1c1e; --paper: #fff; --faint: #6b6b70; --line: #d8d8dc;
  --stripe: #f6f6f8; --warn: #b00020; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8ea; --paper: #161618; --faint: #a0a0a6; --line: #3a3a3e;
    --stripe: #1f1f22; --warn: #ff8a80; }
}
body { color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 70rem; padding: 1rem; font: 16px/1.5 system-ui, sans-serif;
  overflow-wrap: break-word; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
p, li, figcaption, dt { color: var(--faint); font-size: .9rem; }
p.warn { color: var(--warn); font-weight: bold; }
figure { margin: 1rem 0; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 6px; }
.wide { overflow-x: auto; margin-top: 1.5rem; }
table { border-collapse: collapse; font-size: .875rem;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: bold; padding: .3rem 0; }
th, td { padding: .25rem .7rem; white-space: nowrap; text-align: right;
  border-bottom: 1px solid var(--line); }
th[scope=row], th:first-child { text-align: left; font-weight: normal; }
tr { background: var(--paper); }
tbody tr:nth-child(odd) { background: var(--stripe); }
th:first-child { position: sticky; left: 0; background: inherit; }
td span { display: inline-block; min-width: 1.2em; text-align: left; }
ul { padding-left: 1.2rem; margin-top: .5rem; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr);
  gap: .1rem 1rem; font-size: .9rem; } dd { margin: 0; }
summary { cursor: pointer; margin-top: 2.5rem; font-weight: bold; }
</style>
</head>
<body>
<main>
<h1>$title</h1>
<p>$summary</p>
$warnings
$sections
<h2>How it was measured</h2>
<dl>
$facts
</dl>
</main>
</body>
</html>
""")


def _facts(results: dict[str, Any]) -> dict[str, str]:
  stride = results["stride"]
  return {
      "Command": results["command"],
      "Corpus": f"{results['source']}, {results['corpus_fingerprint']}",
      "Tokenizer": results["tokenizer"],
      "Split": results["split"],
      "Protocol": results["protocol"],
      "Stride": "none" if stride is None else str(stride),
      "Peak memory": f"{results['peak_rss_bytes'] / 2**30:.2f} GiB",
      "dape_jax": results["dape_jax_version"],
  }


def _picture(path: pathlib.Path, alt: str) -> str:
  data = base64.b64encode(path.read_bytes()).decode()
  alt = html.escape(alt)
  return (
      f'<figure><img alt="{alt}" src="data:image/png;base64,{data}">'
      f"<figcaption>{alt}</figcaption></figure>"
  )


def page(
    results: dict[str, Any],
    pictures: Mapping[pathlib.Path, str],
    shown: Sequence[Table],
    folded: Sequence[Table],
) -> str:
  """Returns an HTML page that needs no other file, no network and no script.

  Args:
    results: see `results_file`.
    pictures: {PNG file: what it shows}.
    shown: tables.
    folded: tables that open when asked.
  """
  sections = ["<h2>Pictures</h2>"]
  sections += [_picture(path, alt) for path, alt in pictures.items()]
  sections += ["<h2>Tables</h2>", *map(as_html, shown)]
  sections += [
      f"<details><summary>{html.escape(table.title)}</summary>\n"
      f"{as_html(table)}</details>"
      for table in folded
  ]
  names = ", ".join(dict.fromkeys(run["encoding"] for run in results["runs"]))
  return _PAGE.substitute(
      title=html.escape(f"Length extrapolation: {names}"),
      summary=html.escape(tables.summary(results)),
      warnings="\n".join(
          f'<p class="warn">{html.escape(line)}</p>'
          for line in tables.not_finite(results)
      ),
      sections="\n".join(sections),
      facts="\n".join(
          f"<dt>{name}</dt><dd>{html.escape(text)}</dd>"
          for name, text in _facts(results).items()
      ),
  )
