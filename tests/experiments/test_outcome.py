"""Pages of results say what is stored of the papers' claims, and what own messages are."""

import math
import re

import pytest

from experiments.recipes import evidence, outcome, recipes, reproduce, rules, verdicts
from experiments.recipes import page as recipe_page

PAGES = sorted((verdicts.PAGE.parent / 'results').glob('*.md'))
INDEX = (verdicts.PAGE.parent / 'results.md').read_text()
OWN = verdicts.read_own_messages()
TABLES = [recipe for recipe in recipes.read_all() if recipe.evidence_of]
FIGURE = 'feo2_fig1'  # of theory: it needs no runs
AGAINST = {
  id_
  for id_, by_data in verdicts.read_verdicts().items()
  for found in by_data.values()
  if found.verdict == verdicts.NOT_MET or rules.NO_PREMISE in found.text
}
NO_PREMISE = verdicts.Verdict(verdict=verdicts.NOT_RUN, text=f'{rules.NO_PREMISE}: 0 of 2')


def _rows(name):
  """The rows of the index that lead to a recipe's page."""
  return [row for row in INDEX.splitlines() if row.startswith(f'| [`{name}`](results/{name}.md)')]


def _beside(messages):
  """The claims beside own messages that stand against them, by id."""
  stored = verdicts.read_verdicts()
  claims = {id_: data for message in messages for id_, data in message.claims.items()}
  found = {(c.id, verdicts.verdict_of(j, stored.get(c.id, {}))) for c, j in _judged(claims)}
  return {id_ for id_, v in found if v.verdict == verdicts.NOT_MET or rules.NO_PREMISE in v.text}


def _judged(claims):
  judged = verdicts.judges_of(claims)
  assert {claim.id: judge.data for claim, judge in judged} == dict(claims)  # each is there
  return judged


@pytest.mark.parametrize('path', PAGES, ids=lambda path: path.stem)
def test_a_page_says_what_is_stored_now(path):
  """A page of a changed verdict is printed anew by any command that judges."""
  page, recipe = path.read_text(), recipes.read(path.stem)
  assert page == outcome.shown_anew(recipe, page)
  assert '(../claims.md)' in page
  messages = verdicts.read_messages_of(recipe.name).values()
  shown = [c.id for c, _ in verdicts.resting_on(recipe.name)] or _beside(messages)
  assert all(f'| `{id_}` |' in page for id_ in shown)
  assert all(f'{message.when} ({message.written})' in page for message in messages)


def test_every_judged_recipe_has_a_page_and_its_row_with_the_counts():
  stored = verdicts.read_verdicts()
  judged = verdicts.judged_recipes()
  assert judged == [path.stem for path in PAGES if path.stem.startswith('claims_')]
  named = re.findall(r'^\| \[`(claims_\w+)`\]', INDEX, re.MULTILINE)
  assert sorted(named) == judged
  for name in judged:
    [row] = _rows(name)
    counts = verdicts.in_short(verdicts.resting_on(name), stored)
    assert f'| {", ".join(counts.split(", ")[:2])}' in row, (name, counts)
    lacking = [c.id for c, j in verdicts.resting_on(name) if _lacks_its_premise(c, j, stored)]
    assert bool(lacking) == ('premise' in row), (name, lacking)


def _lacks_its_premise(claim, judge, stored):
  return rules.NO_PREMISE in verdicts.verdict_of(judge, stored.get(claim.id, {})).text


def test_every_other_page_has_its_row_which_names_the_claims_against_its_messages():
  for path in PAGES:
    if not path.stem.startswith('claims_'):
      [row] = _rows(path.stem)
      assert f'| {outcome.how_many(recipes.read(path.stem), path.read_text())}' in row, path.stem
      messages = verdicts.read_messages_of(path.stem).values()
      when = ' and '.join(dict.fromkeys(message.when for message in messages))
      assert not messages or f'| {when} |' in row, path.stem
      named = set(re.findall(r'`((?:feo2|ppsgd|silo)-[\w-]+)`', row))
      assert _beside(messages) <= named <= AGAINST, path.stem


def test_messages_that_count_as_one_show_one_number():
  """And the page says that they do."""
  same = [message for message in OWN if message.same_as]
  assert len(same) == 5
  for message in same:
    text = (verdicts.PAGE.parent / 'results' / f'{message.recipe}.md').read_text()
    numbers = {
      float(line.split(' | ')[1])
      for line in text.splitlines()
      if line.startswith((f'| {message.what} |', f'| {message.same_as} |'))
    }
    if message.recipe == 'feo2_table7_femnist_sample':  # a convolution's rounding grows
      assert 0 < max(numbers) - min(numbers) < 0.01, message
    else:
      assert len(numbers) == 1, message
    assert f"rows are one number but for rounding, '{message.same_as}', and count as one" in text
  text = (verdicts.PAGE.parent / 'results' / 'feo2_table4.md').read_text()
  table = outcome.how_many(recipes.read('feo2_table4'), text)
  assert table == '100 of 108 numbers met; 1 of 1 own messages met'


@pytest.mark.parametrize('recipe', TABLES, ids=lambda recipe: recipe.name)
def test_a_table_that_reads_the_evidence_of_another_recipe_shows_its_numbers(recipe):
  """Of all its seeds, three at least; a page that was not made again fails."""
  runs = recipes.read(recipe.evidence_of)
  assert all(len(runs.grid(part).seeds) >= 3 for part in runs.parts)
  page = (verdicts.PAGE.parent / 'results' / f'{recipe.name}.md').read_text()
  assert re.search(r'\| privacy \| epsilon .*[0-9.]+ at delta 0.0001.* Adjacency: zero-out', page)
  verdict = reproduce.compare(recipe, evidence.read(runs).tables)
  shown = {row[0]: row for row in (line[2:-2].split(' | ') for line in page.splitlines())}
  for row in verdict.to_dict('records'):
    cells = shown[row['what']]
    assert row['seeds'] == len(runs.grid(next(iter(runs.parts))).seeds)
    of_us = cells[1 if math.isnan(row['expected']) else 2].split(' ')[0]
    assert float(of_us) == pytest.approx(row['ours'], rel=1e-3, abs=1e-6), row['what']
    assert (outcome.NOT_MET in cells) == (not row['met']), row['what']


def test_claims_beside_own_messages_are_of_the_same_data():
  for message in OWN:
    judged = _judged(message.claims)
    if message.claims:
      assert all(judge.recipe or judge.theory for _, judge in judged), message
      data = set(recipes.read(message.recipe).dataset_files)
      runs = [recipes.read(judge.recipe) for _, judge in judged if judge.recipe]
      assert all(set(recipe.dataset_files) == data for recipe in runs), message


def _with(monkeypatch, tmp_path, verdict):
  """The verdict beside the message of the figure, and the figure's page by it."""
  monkeypatch.setattr(verdicts, 'STORE', tmp_path / 'verdicts.json')
  [message] = verdicts.read_messages_of(FIGURE).values()
  [(id_, data)] = message.claims.items()
  verdicts.write_verdicts({id_: {data: verdict}})
  row = (message.what, '0.4', '0', 'met')
  return id_, outcome.show(recipes.read(FIGURE), [], [row])


def test_a_claim_that_is_not_met_stands_beside_the_message_that_is(monkeypatch, tmp_path):
  bad = verdicts.Verdict(verdict=verdicts.NOT_MET, text='1 ± 2', seeds=3)
  id_, page = _with(monkeypatch, tmp_path, bad)
  assert f'| 0.4 | 0 | met | `{id_}`: **not met** |' in page
  assert f'**Not met**: `{id_}`.' in page and '| **not met** | 1 ± 2 (3 seeds) |' in page
  assert '1 of 1 own messages met. They are no claims of a paper' in page
  _, page = _with(monkeypatch, tmp_path, verdicts.Verdict(verdict=verdicts.MET, text='3 ± 2'))
  assert f'| 0.4 | 0 | met | `{id_}`: met |' in page and 'Not met' not in page
  _, page = _with(monkeypatch, tmp_path, NO_PREMISE)
  assert f'| met | `{id_}`: not run, the premise does not hold |' in page
  assert f'**Without a verdict**, since the premise does not hold: `{id_}`.' in page


def test_verdicts_on_a_page_are_printed_anew_and_nothing_else(monkeypatch, tmp_path):
  """Of a page on which somebody has written; and a recipe that was judged gets its page."""
  monkeypatch.setattr(verdicts, 'STORE', tmp_path / 'verdicts.json')
  name, id_ = 'claims_silo_budgets_school', 'silo-e5-own-lambda-beats-common'
  met = {'school': verdicts.Verdict(verdict=verdicts.MET, text='2')}
  other = {'silo-e5-outlier-direction': met}
  verdicts.write_verdicts({id_: met, **other})
  recipe_page.print_verdicts_anew(tmp_path / 'nowhere')
  recipe_page.print_verdicts_anew(tmp_path)
  [path] = tmp_path.glob('*.md')
  assert path.stem == name
  first = path.read_text()
  assert '**2 met, 0 not met** of the papers' in first and '![' not in first
  assert '| runs | not kept here' in first
  assert '| privacy | epsilon of `recipes/school_budgets.csv` at delta 0.001' in first
  path.write_text(first + '\nBy hand.\n')
  not_met = {'school': verdicts.Verdict(verdict=verdicts.NOT_MET, text='1')}
  verdicts.write_verdicts({id_: not_met, **other})
  recipe_page.print_verdicts_anew(tmp_path)
  second = path.read_text()
  assert '**1 met, 1 not met** of the papers' in second and f'**Not met**: `{id_}`.' in second
  assert second.endswith('\n\nBy hand.\n') and second.startswith(first.partition('<!--')[0])
  path.write_text('# A page of another kind\n')
  with pytest.raises(ValueError, match=r'budgets_school\.md has no marks'):
    recipe_page.print_verdicts_anew(tmp_path)


def test_a_page_without_runs_names_noise_multipliers_where_no_epsilon_is_asked_for():
  (asked,) = recipe_page._asked_for(recipes.read('claims_ppsgd_mnist_by_writer_cnn'))
  assert 'of noise multiplier 1 (local), of noise multiplier 0 (shared)' in asked
  assert 'of noise multiplier 3 (shared) at delta 0.0001' in asked and 'None' not in asked


def test_a_variants_page_says_that_it_does_not_count():
  shown = outcome.show(recipes.read('claims_ppsgd_mnist_by_writer_fixed'), [], [])
  assert "a variant and do not count there: the authors' cohorts of exactly ten writers." in shown
  assert 'variant' not in outcome.show(recipes.read('claims_ppsgd_mnist_by_writer'), [], [])


def test_settings_of_ones_own_have_no_verdicts_on_claims():
  """Nor has a recipe whose runs no claim rests on."""
  recipe = recipes.read('claims_silo_school')
  assert '`silo-' in outcome.show(recipe, [], [])
  assert 'claim' not in outcome.show(recipe, [], [], of_recipe=False)
  none = outcome.show(recipes.read('silo_school_reference'), [], [])
  assert "None of the papers' claims ([claims.md](../claims.md)) rests on these runs." in none
