"""The pictures of pages of results are drawn from the tables beside them."""

import re

import pytest

from experiments.recipes import pictures, recipes
from tests.docs import markdown
from tests.drawing import overlaps

_FOLDER = markdown.ROOT / pictures.FOLDER
_TABLES = sorted(_FOLDER.glob('*.csv'))


@pytest.mark.parametrize('table', _TABLES, ids=lambda table: table.stem)
def test_a_stored_table_is_drawn_without_faults(table):
  assert not overlaps.faults(pictures.draw(table))


def test_every_picture_is_on_a_page_beside_its_table():
  """What theory shows is computed: it needs none."""
  theory = {f'{recipe.name}_figure' for recipe in recipes.read_all() if recipe.analysis}
  tables = {table.stem for table in _TABLES}
  shown = set()
  for page in _FOLDER.parent.glob('*.md'):
    text = page.read_text()
    for name in re.findall(r'!\[[^\]]*\]\(images/(\w+)\.png\)', text):
      shown.add(name)
      said = rf'images/{name}\.png\)\n\n\[The numbers of this figure\]\(images/{name}\.csv\)'
      if name not in theory:
        assert name in tables and re.search(said, text), name
  assert {picture.stem for picture in _FOLDER.glob('*.png')} == shown
  assert tables <= shown and len(tables) >= 8


def test_an_epsilon_at_a_tick_is_rounded_up():
  """223.348: a printed epsilon is never below the true one."""
  [axes] = pictures.draw(_FOLDER / 'ppsgd_fig1a_synthetic_personalization_front.csv').axes
  assert '223.4' in {label.get_text() for label in axes.get_xticklabels()}


def test_a_table_of_no_kind_is_refused(tmp_path):
  with pytest.raises(ValueError, match='of no kind of figure; its name ends in one of clients'):
    pictures.draw(tmp_path / 'something.csv')
