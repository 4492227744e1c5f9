"""Experiments and privacy know no method by name: what is a method's own lives with it."""

import ast
import pathlib

import pytest

import processes
import processes.registry

ROOT = pathlib.Path(__file__).parents[2]
NAMES = {*processes.METHODS, *processes.ALIASES}
SETTINGS = set(processes.registry.settings())
OTHER_MEANINGS = {
  ('experiments/sweeps/cluster.py', 'local'),  # a Ray cluster of one's own
  ('experiments/recipes/verdicts.py', 'feo2'),  # papers
  ('experiments/recipes/verdicts.py', 'ppsgd'),
  # The two ends of personalisation are drawn like these.
  ('experiments/reports/personalization.py', 'local'),
  ('experiments/reports/personalization.py', 'fedavg'),
  # An attack on the silos of one method: it stills the server, and reads the clip of scores.
  ('experiments/audits/tuned.py', 'server_learning_rate'),
  ('experiments/audits/tuned.py', 'tuning_score_clip'),
}


def mentions(source: str) -> list[tuple[int, str]]:
  """Lines with a method's name as a text, or one of its settings as a text or an attribute."""
  tree = ast.parse(source)
  docstrings = {
    id(node.body[0].value)
    for node in ast.walk(tree)
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    and node.body
    and isinstance(node.body[0], ast.Expr)
  }
  found = []
  for node in ast.walk(tree):
    if (
      isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ):
      words = {node.value, node.value.removeprefix('--method=')}
      found += [(node.lineno, word) for word in words & (NAMES | SETTINGS)]
    elif isinstance(node, ast.Attribute) and node.attr in SETTINGS:
      found.append((node.lineno, node.attr))
  return found


def modules(room: str) -> list[str]:
  return sorted(str(path.relative_to(ROOT)) for path in (ROOT / room).rglob('*.py'))


@pytest.mark.parametrize('path', [*modules('experiments'), *modules('privacy')])
def test_no_method_is_known_by_name(path):
  found = [f for f in mentions((ROOT / path).read_text()) if (path, f[1]) not in OTHER_MEANINGS]
  assert not found


@pytest.mark.parametrize(
  'code',
  ["if config.method == 'feo2': pass", 'x = config.mtl_lambda', "values['ditto_lambda'] = 1"],
)
def test_a_mention_is_found(code):
  assert mentions(code)
  assert not mentions(f'"""About {code!r}."""')
