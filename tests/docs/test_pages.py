"""What the pages say of commands, links and flags is true."""

import re

import pytest

from experiments.config.experiment import settings
from tests.docs import markdown

_PAGES = [str(page.relative_to(markdown.ROOT)) for page in markdown.pages()]
_SWEEP = ('sweep', 'seeds', 'workers', 'cluster', 'select_on')
_AUDIT = ('audit_canaries', 'audit_choice', 'audit_runs')
# absl's, uv's, those of recipes and claims.
_OTHERS = ('extra', 'flagfile', 'help', 'helpfull', 'judge', 'page_dir', 'run', 'verbosity')


@pytest.mark.parametrize('page', _PAGES)
def test_links_lead_somewhere(page):
  path = markdown.ROOT / page
  for target in re.findall(r'\]\(([^)#\s]+)(?:#[^)]*)?\)', path.read_text()):
    if '://' not in target:
      assert (path.parent / target).exists(), target


@pytest.mark.parametrize('page', _PAGES)
def test_flags_exist(page):
  known = {*settings(), *_SWEEP, *_AUDIT, *_OTHERS}
  text = (markdown.ROOT / page).read_text()
  for flag in re.findall(r'`--(\w+)', text):
    assert flag in known, flag


@pytest.mark.parametrize('page', _PAGES)
def test_lines_of_code_are_short(page):
  for _, code in markdown.blocks(markdown.ROOT / page):
    assert all(len(line) <= 100 for line in code.splitlines())
