"""Who imports whom, read from the sources.

An arrow is every import that the text of a module holds: at its top, inside a function
(later, but an import all the same), under TYPE_CHECKING (one has to read the other to
understand it), and `importlib.import_module` of a name that is written down. Importing
`a.b` is an arrow to `a.b`, not to the face `a`, unless a name of the face is taken.
"""

import ast
import functools
import pathlib
from collections.abc import Iterable, Iterator, Mapping

ROOT = pathlib.Path(__file__).resolve().parents[2]
Graph = Mapping[str, frozenset[str]]


def modules() -> dict[str, pathlib.Path]:
  """The project's modules by name, and their files."""
  found = {'run_experiment': ROOT / 'run_experiment.py'}
  packages = {path.parent for path in ROOT.glob('*/__init__.py')} - {ROOT / 'tests'}
  for package in sorted(packages | {ROOT / 'notebooks'}):
    for path in sorted(package.rglob('*.py')):
      parts = path.relative_to(ROOT).with_suffix('').parts
      found['.'.join(parts[:-1] if parts[-1] == '__init__' else parts)] = path
  return found


@functools.cache
def graph() -> Graph:
  """Each module and the modules of the project that it imports."""
  files = modules()
  return {
    name: frozenset(imports(ast.parse(path.read_text()), files) - {name})
    for name, path in files.items()
  }


def imports(tree: ast.AST, known: Iterable[str]) -> set[str]:
  """The known modules that a module's text imports."""
  found = set()
  for node in ast.walk(tree):
    for name in _named(node):
      parts = name.split('.')
      # `from a.b import c` may name the module a.b.c or something in a.b.
      longest = ('.'.join(parts[:n]) for n in range(len(parts), 0, -1))
      found |= {next((m for m in longest if m in known), '')}
  return found - {''}


def _named(node: ast.AST) -> Iterator[str]:
  if isinstance(node, ast.Import):
    yield from (alias.name for alias in node.names)
  elif isinstance(node, ast.ImportFrom):
    assert node.level == 0, 'imports name their module in full'
    yield from (f'{node.module}.{alias.name}' for alias in node.names)
  elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith('import_module'):
    yield from (a.value for a in node.args if isinstance(a, ast.Constant))


def circles(arrows: Graph) -> list[list[str]]:
  """Groups of modules that import one another, directly or by way of others (Tarjan)."""
  index: dict[str, int] = {}
  low: dict[str, int] = {}
  stack: list[str] = []
  found = []

  def visit(name: str) -> None:
    index[name] = low[name] = len(index)
    stack.append(name)
    for other in sorted(arrows[name]):
      if other not in index:
        visit(other)
        low[name] = min(low[name], low[other])
      elif other in stack:
        low[name] = min(low[name], index[other])
    if low[name] == index[name]:
      group = stack[stack.index(name) :]
      del stack[stack.index(name) :]
      if len(group) > 1:
        found.append(sorted(group))

  for name in sorted(arrows):
    if name not in index:
      visit(name)
  return found
