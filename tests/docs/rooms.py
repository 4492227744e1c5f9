"""The project's rooms, their floors, and the picture of them in docs/how_it_is_built.md.

    python -m tests.docs.rooms

draws the picture anew from the imports.
"""

import json
import pathlib
from collections.abc import Iterable

from matplotlib import figure, patches
from PIL import Image

from tests.docs import import_graph

PICTURE = import_graph.ROOT / 'docs' / 'images' / 'rooms.png'
# From the ground up. A room is a package, a package inside `experiments`, or a module.
FLOORS: tuple[tuple[str, ...], ...] = (
  ('runtime', 'settings', 'drawing'),
  ('tff_models', 'datasets', 'privacy'),
  ('processes',),
  ('experiments.config', 'analysis', 'benchmarks'),
  ('experiments.folder',),
  ('experiments.running',),
  ('experiments.sweeps', 'experiments.audits'),
  ('experiments.reports', 'experiments.cli'),
  ('experiments.recipes', 'experiments'),  # the latter is the face that users import
  ('run_experiment', 'notebooks'),
)
_WORDS = {
  'runtime': 'any TFF process as one\nprogram on GPU or CPU',
  'drawing': 'how all\nfigures look',
  'settings': 'what a setting is:\nrange, default, help',
  'tff_models': 'models as\npure functions',
  'datasets': 'federated tensors\nof every data set',
  'privacy': 'plan, queries,\naccountant, statement',
  'processes': 'every method:\none TFF process',
  'analysis': "the papers' theory\nas code",
  'experiments.config': 'settings, checks, flags',
  'benchmarks': 'speed beside\nother runtimes',
  'experiments.folder': 'what a run leaves:\ncheckpoints, metrics',
  'experiments.running': 'build, the round loop,\nevaluation',
  'experiments.sweeps': 'many runs in\nfew programs',
  'experiments.audits': 'attacks on the\nclaimed epsilon',
  'experiments.reports': 'one page of\nany runs',
  'experiments.cli': 'flags to a run,\nerrors to one line',
  'experiments.recipes': "the papers' tables\nand figures, judged",
  'experiments': 'the face: the names\nthat users import',
  'run_experiment': 'the command line',
  'notebooks': 'tutorials in Colab',
}
_ACROSS = {  # the middle of a room in the picture, in inches
  'runtime': 3.4, 'settings': 5.8, 'drawing': 8.25, 'datasets': 1.2, 'tff_models': 3.9,
  'privacy': 6.8, 'processes': 4.8, 'analysis': 9.98, 'benchmarks': 12.28,
  'experiments.config': 4.8, 'experiments.folder': 4.8, 'experiments.running': 4.8,
  'experiments.sweeps': 7.4, 'experiments.audits': 2.2, 'experiments.reports': 7.4,
  'experiments.cli': 2.2, 'experiments.recipes': 7.4, 'experiments': 4.8,
  'run_experiment': 2.2, 'notebooks': 4.8,
}  # fmt: skip
_WIDTH, _HEIGHT, _STOREY = 2.2, 0.74, 1.16  # inches
# Fill and edge: Okabe and Ito's colours, and tints of them.
_COLOURS = {
  'ground': ('#FBE3D3', '#D55E00'),
  'material': ('#D3EEE4', '#009E73'),
  'method': ('#F4DEEA', '#B5568C'),
  'house': ('#D6E8F5', '#0072B2'),
  'door': ('#EDEDED', '#555555'),
}


def room_of(module: str) -> str:
  """The room that a module is in."""
  parts = module.split('.')
  return '.'.join(parts[:2]) if parts[0] == 'experiments' else parts[0]


def arrows(graph: import_graph.Graph) -> set[tuple[str, str]]:
  """(room, another room that it imports from)."""
  pairs = {(room_of(a), room_of(b)) for a, others in graph.items() for b in others}
  return {(a, b) for a, b in pairs if a != b}


def uphill(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
  """The arrows that do not lead to a lower floor."""
  height = {room: floor for floor, own in enumerate(FLOORS) for room in own}
  return sorted((a, b) for a, b in pairs if height[a] <= height[b])


def needed(pairs: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
  """The arrows from which all others follow, by going along several."""
  pairs = set(pairs)
  below = {a: {b for x, b in pairs if x == a} for a in {x for pair in pairs for x in pair}}

  def reached(room: str) -> set[str]:
    return below[room] | {far for near in below[room] for far in reached(near)}

  return {(a, b) for a, b in pairs if not any(b in reached(other) for other in below[a] - {b})}


def picture() -> dict[str, list]:
  """What the picture shows, of the imports as they are: rooms, and the needed arrows."""
  graph = import_graph.graph()
  here = {room_of(module) for module in graph}
  floors = [[room for room in floor if room in here] for floor in FLOORS]
  return {'floors': floors, 'arrows': [list(pair) for pair in sorted(needed(arrows(graph)))]}


def shown(path: pathlib.Path = PICTURE) -> dict[str, list]:
  """What a picture says that it shows."""
  with Image.open(path) as image:
    return json.loads(image.info['rooms'])


def draw(path: pathlib.Path = PICTURE) -> None:
  """Draws the picture; what it shows is also in its text, for `shown`."""
  content = picture()
  storeys = len(content['floors'])
  places = {
    room: (_ACROSS[room], _STOREY * (floor + 0.5))
    for floor, own in enumerate(content['floors'])
    for room in own
  }
  drawing = figure.Figure(figsize=(13.5, _STOREY * storeys + 0.1))
  axes = drawing.add_axes((0, 0, 1, 1))
  axes.set(xlim=(-0.05, 13.45), ylim=(-0.05, _STOREY * storeys + 0.05))
  axes.axis('off')
  axes.add_patch(
    patches.FancyBboxPatch(
      (0.85, 3 * _STOREY + 0.06), 7.9, 6 * _STOREY - 0.12, facecolor='#F6FAFD',
      edgecolor='#0072B2', linewidth=1.2, linestyle=(0, (4, 3)), zorder=0,
      boxstyle='round,pad=0,rounding_size=0.15',
    )
  )  # fmt: skip
  axes.text(
    1.05, 3 * _STOREY + 0.2, 'experiments/', ha='left', va='bottom', fontsize=13, color='#0072B2',
    style='italic',
  )  # fmt: skip
  for above, below in content['arrows']:
    (x, y), (to_x, to_y) = places[above], places[below]
    side = 0.22 * (to_x - x) / max(1.0, abs(to_x - x) / 4)
    start, end, way = (x + side, y - _HEIGHT / 2), (to_x - side, to_y + _HEIGHT / 2), 'arc3'
    if y - to_y > 3 * _STOREY:  # around the rooms between: to the side, then down
      start, end = (x + _WIDTH / 2, y), (to_x, to_y + _HEIGHT / 2)
      way = 'angle,angleA=0,angleB=90,rad=12'
    axes.annotate(
      '', end, start,
      arrowprops=dict(
        arrowstyle='-|>,head_width=0.22,head_length=0.45', color='#666666', linewidth=1.3,
        shrinkA=0, shrinkB=1, connectionstyle=way,
      ), zorder=1,
    )  # fmt: skip
  for room, (x, y) in places.items():
    fill, edge = _COLOURS[_kind(room)]
    axes.add_patch(
      patches.FancyBboxPatch(
        (x - _WIDTH / 2, y - _HEIGHT / 2), _WIDTH, _HEIGHT, facecolor=fill, edgecolor=edge,
        linewidth=1.4, boxstyle='round,pad=0,rounding_size=0.09', zorder=2,
      )
    )  # fmt: skip
    name = room.removeprefix('experiments.')
    lines = _WORDS[room].count('\n') + 1
    axes.text(
      x, y + 0.08 * lines + 0.02, name, ha='center', va='center', fontsize=11.5, weight='bold',
      color='#1a1a1a', zorder=3,
    )  # fmt: skip
    axes.text(
      x, y - 0.13 + 0.01 * lines, _WORDS[room], ha='center', va='center', fontsize=8.3,
      color='#333333', linespacing=1.1, zorder=3,
    )  # fmt: skip
  drawing.savefig(path, dpi=130, metadata={'rooms': json.dumps(content)})


def _kind(room: str) -> str:
  if room in FLOORS[0]:
    return 'ground'
  if room in FLOORS[1]:
    return 'material'
  if room in FLOORS[2] or room == 'analysis':
    return 'method'
  return 'house' if room.startswith('experiments') else 'door'


if __name__ == '__main__':
  draw()
