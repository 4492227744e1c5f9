"""The page of the data sets is up to date."""

from datasets import registry
from tests.docs import data_sets_table


def test_page_is_what_the_command_writes():
  assert data_sets_table.PAGE.read_text() == data_sets_table.page()


def test_every_source_that_names_a_file_has_it_in_the_table():
  names = {file.name for file in data_sets_table.data_files()}
  for entry in registry.DATASETS.values():
    first = entry.source.split()[0].rstrip(',;')
    if '.' in first:
      assert first in names
