"""Draws the pictures of pages of results again, each from the table beside it: `make pictures`.

  ./fl python -m experiments.recipes.pictures [FOLDER]

A page's picture NAME.png has its numbers in NAME.csv. Nothing is run; figures of theory, whose
recipes take seconds, are computed. Importing this module does not import TensorFlow.
"""

import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence

import matplotlib
import pandas as pd
from matplotlib import figure

import drawing
from experiments.folder import figures
from experiments.recipes import recipes
from experiments.reports import clients, groups, layout, mechanisms, personalization
from experiments.reports import figures as report_figures
from experiments.running import startup

FOLDER = pathlib.Path('docs/results/images')
DRAW: Mapping[str, Callable[[pd.DataFrame], figure.Figure]] = {
  'clients': clients.draw_distributions,
  'gains': clients.draw_gains,
  'groups': groups.draw_groups,
  'groups_along': groups.draw_groups_along,
  'lambda': report_figures.draw_against_lambda,
  'learning_curves': report_figures.draw_learning_curves,
  'mechanisms': mechanisms.draw_mechanisms,
  'personalization': personalization.draw_curves,
  'personalization_front': personalization.draw_front,
  'privacy_utility': report_figures.draw_fronts,
}
"""What draws each kind of a report's figures, by name, of its table."""


def draw(table: pathlib.Path) -> figure.Figure:
  """Draws a figure of its stored table.

  Args:
    table: RECIPE_KIND.csv, or KIND.csv; a kind of `DRAW`.

  Raises:
    ValueError: there is no such kind.
  """
  kinds = [kind for kind in DRAW if f'_{table.stem}'.endswith(f'_{kind}')]
  if not kinds:
    raise ValueError(f'{table} is of no kind of figure; its name ends in one of {", ".join(DRAW)}.')
  with matplotlib.rc_context(drawing.STYLE):
    return DRAW[max(kinds, key=len)](layout.read_table(table))


def main(argv: Sequence[str]) -> int:
  """Draws all pictures of a folder again, and says which have no table."""
  folder = pathlib.Path(argv[1]) if len(argv) > 1 else FOLDER
  done = set()
  for table in sorted(folder.glob('*.csv')):
    done |= {*figures.save(draw(table), table.with_suffix(''), ('.png',))}
  for recipe in recipes.read_all():
    picture = folder / f'{recipe.name}_figure.png'
    if recipe.analysis and picture.exists():
      with startup.quiet(), matplotlib.rc_context(drawing.STYLE):
        done |= {*figures.save(recipe.analyse().draw(), picture.with_suffix(''), ('.png',))}
  print(f'{len(done)} pictures drawn.')
  for picture in sorted({*folder.glob('*.png')} - done):
    print(f'without a table, left as it was: {picture}')
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv))
