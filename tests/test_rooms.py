"""The house: imports run downhill between rooms and never in a circle; nothing is too long."""

import ast
import pathlib

import pytest

from tests.docs import import_graph, rooms

LONGEST_FILE = 400  # lines
LONGEST_CLASS = 150  # lines of code: what documents it does not make it long
_REASON = 'Long because'  # a sentence of the docstring of whatever is longer


def test_no_module_imports_itself_by_way_of_others():
  assert import_graph.circles(import_graph.graph()) == []


def test_every_room_has_a_floor():
  known = {room for floor in rooms.FLOORS for room in floor}
  assert {rooms.room_of(module) for module in import_graph.graph()} - known == set()


def test_imports_run_downhill():
  assert rooms.uphill(rooms.arrows(import_graph.graph())) == []


def test_every_room_has_a_face_that_says_what_is_in_it():
  for floor in rooms.FLOORS:
    for room in floor:
      path = import_graph.ROOT / room.replace('.', '/') / '__init__.py'
      if path.parent.is_dir() and room != 'notebooks':  # which are opened, not imported
        assert ast.get_docstring(ast.parse(path.read_text())), path


@pytest.mark.slow
def test_nothing_is_too_long_without_a_reason():
  found = {name: too_long(path.read_text()) for name, path in import_graph.modules().items()}
  assert {name: what for name, what in found.items() if what} == {}


def too_long(text: str) -> list[str]:
  """What of a module is longer than it may be, and does not say why."""
  tree, code = ast.parse(text), _lines_of_code(text)
  found = []
  if len(text.splitlines()) > LONGEST_FILE and _REASON not in (ast.get_docstring(tree) or ''):
    found.append('the file')
  for node in ast.walk(tree):
    if isinstance(node, ast.ClassDef):
      own = code & set(range(node.lineno, node.end_lineno + 1))
      if len(own) > LONGEST_CLASS and _REASON not in (ast.get_docstring(node) or ''):
        found.append(node.name)
  return found


def _lines_of_code(text: str) -> set[int]:
  """Numbers of the lines that are no docstring, comment, or blank."""
  documented = set()
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
      documented |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
  lines = enumerate(text.splitlines(), 1)
  return {n for n, line in lines if line.strip() and line.strip()[0] != '#'} - documented


@pytest.mark.slow
def test_the_picture_is_of_today(tmp_path):
  """`python -m tests.docs.rooms` draws it anew."""
  assert rooms.shown() == rooms.picture()
  rooms.draw(tmp_path / 'rooms.png')
  assert rooms.shown(tmp_path / 'rooms.png') == rooms.picture()


def test_the_picture_leaves_out_only_what_follows():
  pairs = {('c', 'b'), ('b', 'a'), ('c', 'a'), ('d', 'a')}
  assert rooms.needed(pairs) == {('c', 'b'), ('b', 'a'), ('d', 'a')}


# ------------------------------------------------------------ broken houses are found


def _graph(**sources: str) -> import_graph.Graph:
  known = {name.replace('__', '.'): ast.parse(text) for name, text in sources.items()}
  return {name: frozenset(import_graph.imports(tree, known)) for name, tree in known.items()}


@pytest.mark.parametrize(
  'back',
  [
    'import a.one',
    'from a import one',
    'from a.one import thing',
    'def later():\n  from a.one import thing',
    'if TYPE_CHECKING:\n  from a.one import Thing',
    "importlib.import_module('a.one')",
  ],
)
def test_a_circle_is_found_however_it_is_closed(back):
  circle = [['a.one', 'b.two']]
  ring = dict(b__two='import c.three', c__three=back)
  assert import_graph.circles(_graph(a__one='from b import two', b__two=back)) == circle
  (longer,) = import_graph.circles(_graph(a__one='import b.two', **ring))
  assert longer == ['a.one', 'b.two', 'c.three']
  assert not import_graph.circles(
    _graph(a__one='import b.two', b__two='import c', c='import numpy')
  )


def test_the_face_of_a_room_is_no_part_of_what_is_in_it():
  face = 'def __getattr__(name):\n  from a.one import thing'
  assert not import_graph.circles(_graph(a=face, a__one='from a import two', a__two=''))
  assert import_graph.circles(_graph(a=face, a__one='from a import thing')) == [['a', 'a.one']]


@pytest.mark.parametrize(
  'arrow',
  [
    ('datasets', 'processes'),
    ('runtime', 'privacy'),
    ('processes', 'experiments.config'),
    ('experiments.folder', 'experiments.running'),
    ('experiments.sweeps', 'experiments.audits'),  # beside one another
  ],
)
def test_an_arrow_up_or_across_is_found(arrow):
  assert rooms.uphill([arrow, ('experiments.running', 'runtime')]) == [arrow]


def test_length_is_found_and_documentation_is_not_length():
  body = ''.join(f'  x{i} = {i}\n' for i in range(LONGEST_CLASS))
  assert too_long(f'class Long:\n  """Much."""\n{body}') == ['Long']
  assert not too_long(f'class Long:\n  """Much.\n\n  {_REASON} of its many x.\n  """\n{body}')
  assert not too_long('class Said:\n  """Much.\n' + '\n  word' * 170 + '"""\n  x = 1\n')
  many = 'x = 1\n' * (LONGEST_FILE + 1)
  assert too_long(many) == ['the file']
  assert not too_long(f'"""{_REASON} of x."""\n' + many)


def test_the_modules_are_those_of_the_project():
  names = import_graph.modules()
  assert {'run_experiment', 'runtime', 'runtime.xla.program', 'experiments.running.loop'} <= set(
    names
  )
  assert all(isinstance(path, pathlib.Path) and path.exists() for path in names.values())
  assert not any(name.startswith('tests') for name in names)
