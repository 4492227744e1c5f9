"""The claims: complete, as they were written, judged by something, and the page in step."""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import threading

import numpy as np
import pandas as pd
import pytest

from analysis.claims import feo2, ppsgd, silo
from analysis.claims.pairs import Aside, Pair
from experiments.folder import files
from experiments.recipes import claims, evidence, measures, recipes, rules, verdicts
from experiments.running import interruption
from tests.experiments import made_tables

CLAIMS = verdicts.read()
CHECKS_OF = {'feo2': feo2, 'ppsgd': ppsgd, 'silo': silo}
FROZEN = 'b9e3b1d1b5b56f21ae084ff1c55303921359ebbba83cafc1e1b6a93a9ae479ce'


def test_all_claims_are_there():
  """140 claims; by paper and kind, and how many of them are central."""
  assert len({claim.id for claim in CLAIMS}) == len(CLAIMS) == 140
  by_paper = collections.Counter(claim.paper for claim in CLAIMS)
  central = collections.Counter(c.paper for c in CLAIMS if c.strength == 'central')
  assert by_paper == {'feo2': 60, 'ppsgd': 24, 'silo': 56}
  assert central == {'feo2': 29, 'ppsgd': 13, 'silo': 30}
  kinds = collections.Counter(claim.kind for claim in CLAIMS)
  assert kinds == {'number': 47, 'order': 47, 'trend': 24, 'theory': 22}
  assert {claim.strength for claim in CLAIMS} == {'central', 'supporting'}


def test_nothing_was_weakened():
  """What is compared, relations, margins and tolerances are as on the day before the first run."""
  fields = ('id', 'paper', 'kind', 'strength', 'left', 'relation', 'right', 'margin', 'tolerance')
  frozen = [{name: getattr(claim, name) for name in fields} for claim in CLAIMS]
  text = json.dumps(frozen, sort_keys=True)
  assert hashlib.sha256(text.encode()).hexdigest() == FROZEN


def test_every_claim_has_a_judge_or_the_reason_why_not():
  known = {recipe.name for recipe in recipes.read_all()}
  families = verdicts.read_families()
  for claim in CLAIMS:
    assert claim.what and claim.judges
    assert len({judge.data for judge in claim.judges}) == len(claim.judges), claim.id
    for judge in claim.judges:
      if judge.recipe:
        assert {judge.recipe, *judge.with_.values()} <= known, claim.id
        assert judge.family in families and claim.measure is not None
        assert claim.measure['rule'] in measures.NAMES
      elif judge.theory:
        assert callable(claims.check_of(claim, judge))
      else:
        assert judge.counts or judge.missing
  # What may be tried on nothing at hand.
  nothing = [c.id for c in CLAIMS if all(judge.missing for judge in c.judges)]
  assert len(nothing) == 6, nothing


def _parts(thing):
  """Names of parts in a measure."""
  if isinstance(thing, dict):
    here = [thing['part']] if isinstance(thing.get('part'), str) else []
    return here + [part for value in thing.values() for part in _parts(value)]
  if isinstance(thing, list | tuple):
    return [part for value in thing for part in _parts(value)]
  return []


def _terms(thing, terms):
  """Names of terms in a measure."""
  if isinstance(thing, str):
    return [thing] if thing in terms else []
  if isinstance(thing, dict):
    inside = (value for key, value in thing.items() if key not in ('part', 'where', 'group'))
    return [name for value in inside for name in _terms(value, terms)]
  if isinstance(thing, list | tuple):
    return [name for value in thing for name in _terms(value, terms)]
  return []


def test_measures_read_parts_that_their_recipes_have():
  families = verdicts.read_families()
  for claim in CLAIMS:
    for judge in claim.judges:
      if not judge.recipe:
        continue
      recipe = recipes.read(judge.recipe)
      parts = set(recipe.parts)
      for prefix, name in judge.with_.items():
        parts |= {f'{prefix}.{part}' for part in recipes.read(name).parts}
      terms = families[judge.family]['terms']
      wanted = _parts(claim.measure) + [
        part for name in _terms([claim.measure, dict(judge.values)], terms)
        for part in _parts([terms[name]])
      ]  # fmt: skip
      assert wanted or claim.measure['rule'] in ('order', 'all', 'trend'), claim.id
      missing = {part for part in wanted if not part.startswith('$')} - parts
      assert not missing, (claim.id, judge.data, missing)


def test_recipes_of_claims_have_seeds_and_one_grid_for_all_methods():
  families = verdicts.read_families()
  tuning = {
    j.recipe: families[j.family]['tuning_seeds'] for c in CLAIMS for j in c.judges if j.recipe
  }
  assert tuning
  for name, first in tuning.items():
    recipe = recipes.read(name)
    rates, lambdas = set(), set()
    for part in recipe.parts:
      grid = recipe.grid(part)
      assert len(grid.seeds) - first >= 3, (name, part)
      rates.add(grid.axes.get('client_learning_rate'))
      lambdas |= {grid.axes.get(axis) for axis in ('mtl_lambda', 'ditto_lambda')}
    assert len(rates) == 1, (name, rates)
    assert len(lambdas - {None}) <= 1, (name, lambdas)


_RECIPES_OF_CLAIMS = sorted({j.recipe for c in CLAIMS for j in c.judges if j.recipe})


def _has_run(name):
  """Whether a recipe's evidence is judged by a test of its own."""
  try:
    evidence.check(recipes.read(name))
  except evidence.Lacking:
    return False
  return True


@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[pytest.mark.exhaustive] * _has_run(name))
    for name in _RECIPES_OF_CLAIMS
  ],
)
def test_measures_find_their_runs_in_the_tables_of_their_recipes(monkeypatch, tmp_path, name):
  """Before hours are spent on runs that a measure then does not know; from evidence likewise."""
  monkeypatch.setattr(evidence, 'FOLDER', tmp_path)
  monkeypatch.setattr(rules.bootstrap, '__kwdefaults__', {'draws': 2})
  rng, tables, kept = np.random.default_rng(0), {}, {}
  judged = [(c, j) for c in CLAIMS for j in c.judges if j.recipe == name]
  groups = {'feo2': ('all', 'private', 'opted out')}.get(judged[0][1].family, ('all',))
  groups += ('epsilon 2', 'epsilon 8') * ('budgets' in name)
  names = {j.values['metric'] for _, j in judged if 'metric' in j.values}
  names |= {metric for metric, _ in measures._COLUMNS.values()} if 'feo2' in name else set()
  names |= {term['of']['metric'] for _, j in judged for term in j.values.get('beside', ())}
  names |= {'cluster_accuracy'} if 'rotated' in name else set()  # data with known clusters
  for recipe in map(
    recipes.read, sorted({name, *(x for _, j in judged for x in j.with_.values())})
  ):
    early = [f'{metric}@{round_}' for metric in sorted(names) for round_ in recipe.after]
    metrics = list(itertools.product([*sorted(names), *early], groups))
    tables[recipe.name] = {
      part: made_tables.of_part(recipe, part, metrics, rng) for part in recipe.parts
    }
  for claim, judge in judged:
    found = claims.judge_runs(claim, judge, claims.RunsOfRecipes(tables))
    assert found.met is not None or 'the premise does not hold' in found.text, (claim.id, found)
    for recipe in map(recipes.read, {*judge.recipes} - kept.keys()):
      used = claims.read_of(recipe.name)
      kept[recipe.name] = evidence.write(
        recipe, tables[recipe.name], used, date='', commits=()
      ).tables
    assert claims.judge_runs(claim, judge, claims.RunsOfRecipes(kept)) == found, claim.id


def test_the_page_is_what_the_stored_verdicts_say():
  stored = verdicts.read_verdicts()
  assert verdicts.PAGE.read_text() == verdicts.page(CLAIMS, stored)
  known = {claim.id: {judge.data for judge in claim.judges} for claim in CLAIMS}
  for id_, by_data in stored.items():
    assert by_data.keys() <= known[id_], id_


def test_the_page_says_not_met_as_plainly_as_met():
  some = [claim for claim in CLAIMS if claim.judges[0].theory][:4]
  kinds = (verdicts.MET, verdicts.NOT_MET, verdicts.NOT_RUN)
  stored = {
    claim.id: {claim.judges[0].data: verdicts.Verdict(verdict=verdict, text='1 | 2')}
    for claim, verdict in zip(some, kinds, strict=False)
  }
  page = verdicts.page(some, stored)
  assert '| met | 1 / 2 |' in page and '| **not met** | 1 / 2 |' in page
  assert f'**Not met**: `{some[1].id}`.' in page and '**Not met**: none.' in verdicts.page(some, {})
  assert page.count('not run') >= 2  # the third, and the fourth that has no verdict
  assert verdicts.overall(some[0], {}) == verdicts.NOT_RUN
  with pytest.raises(ValueError, match="'nearly' is no verdict"):
    verdicts.Verdict(verdict='nearly', text='')


def test_a_claim_is_met_when_it_is_met_on_all_that_was_run():
  claim = next(c for c in CLAIMS if sum(not (j.missing or j.variant) for j in c.judges) >= 2)
  first, second = [j.data for j in claim.judges if not (j.missing or j.variant)][:2]
  met, not_met = (verdicts.Verdict(verdict=v, text='') for v in (verdicts.MET, verdicts.NOT_MET))
  assert verdicts.overall(claim, {first: met}) == verdicts.MET
  assert verdicts.overall(claim, {first: met, second: not_met}) == verdicts.NOT_MET


def test_a_variant_is_judged_and_shown_and_does_not_count():
  variants = [(claim, judge) for claim in CLAIMS for judge in claim.judges if judge.variant]
  assert {judge.recipe for _, judge in variants} == {
    'claims_feo2_noniid_minibatches', 'claims_ppsgd_mnist_by_writer_fixed'
  }  # fmt: skip
  for claim, judge in variants:
    assert [j for j in claim.judges if j.family == judge.family and not j.variant], claim.id
  claim, judge = variants[0]
  counting = claim.judges[0].data
  met, not_met = (verdicts.Verdict(verdict=v, text='1 of 2') for v in verdicts.VERDICTS[:2])
  stored = {counting: met, judge.data: not_met}
  assert verdicts.overall(claim, stored) == verdicts.MET
  assert verdicts.overall(claim, {judge.data: met}) == verdicts.NOT_RUN
  row = f'(a variant, which does not count: {judge.variant}) | **not met** | 1 of 2 |'
  assert row in verdicts.page([claim], {claim.id: stored})
  with pytest.raises(ValueError, match='needs a judge, or the reason why there is none'):
    dataclasses.replace(claim, judges=(judge,))


def test_a_variant_is_run_by_its_recipes_name_alone():
  claim, judge = next((c, j) for c in CLAIMS for j in c.judges if j.variant)
  assert judge not in [j for _, j in claims.selected(CLAIMS, [claim.id])]
  of_recipe = claims.selected(CLAIMS, [judge.recipe])
  assert (claim, judge) in of_recipe and all(j.variant for _, j in of_recipe)


def _theory(name):
  named = ((c, j) for c in CLAIMS for j in c.judges if j.theory == name and not j.dataset)
  return next(named)


def test_what_may_differ_on_a_stand_in_is_said_and_counts_all_the_same():
  """Where the list asks for nothing: stand-ins only, and their verdicts weigh as all others."""
  may = [(claim, judge) for claim in CLAIMS for judge in claim.judges if judge.may_differ]
  assert (len(may), len({claim.id for claim, _ in may})) == (60, 42)
  for claim, judge in may:
    assert judge.recipe and judge.data not in ('noniid_mnist', 'skewed_noniid_mnist'), claim.id
    assert judge.data.lower() not in {name.lower() for name in claim.data}, claim.id  # the paper's
  as_asked = {recipe.name for recipe in recipes.read_all() if not recipe.differs}
  claim, judge = next((c, j) for c, j in may if {*j.recipes} <= as_asked)
  verdict = verdicts.Verdict(verdict=verdicts.NOT_MET, text='1 of 9', seeds=3)
  stored = {claim.id: {judge.data: verdict}}
  row = f'| {judge.data} (may differ: {judge.may_differ}) | **not met** | 1 of 9 (3 seeds) |'
  assert row in verdicts.page([claim], stored)
  assert verdicts.overall(claim, stored[claim.id]) == verdicts.NOT_MET


def _rows(claim):
  return verdicts.table([(claim, judge) for judge in claim.judges], {})[2:]


def test_a_row_says_in_what_its_runs_are_other_ones_and_where_the_margin_does_not_count():
  said = {
    'epsilon 2.4 and not 0.6': {'claims_feo2_mnist_by_writer'},
    '150 rounds and not 500': {'claims_feo2_femnist_sample', 'claims_feo2_noise_femnist_sample'},
  }
  for claim in CLAIMS:
    for judge, row in zip(claim.judges, _rows(claim), strict=True):
      data = row.split(' | ')[2]
      for words, names in said.items():
        assert (words in data) == bool(names & {*judge.recipes}), claim.id
      assert ('in sign only' in data) == bool(judge.values.get('sign_only')), claim.id
  claim = next(c for c in CLAIMS if c.id == 'feo2-global-beats-dpfedavg-fmnist')
  assert "the margin of 4.6 is for the paper's data" in verdicts.page([claim], {})


def test_only_where_the_list_allows_it_a_stand_in_is_judged_in_sign():
  """As the frozen list says of transfer: these may have another margin, all others have theirs."""
  found = {c.id for c in CLAIMS for j in c.judges if j.values.get('sign_only')}
  assert found == {
    'feo2-global-beats-dpfedavg-fmnist', 'feo2-global-beats-dpfedavg-femnist',
    'feo2-local-beats-dpfedavg-realistic', 'feo2-interior-ratio-best',
    'feo2-nonprivate-is-upper-bound',
  }  # fmt: skip


def test_pairs_are_judged_by_the_claims_relation_or_their_own():
  claim, judge = _theory('optimal_lambda')  # equal to 1e-6
  good, bad = Pair(what='a', left=1.0, right=1.0), Pair(what='b', left=1.001, right=1.0)
  assert claims.judge_theory(claim, judge, [good]).met
  assert not claims.judge_theory(claim, judge, [good, bad]).met
  own = Pair(what='c', left=2.0, right=1.0, relation='>')
  assert claims.judge_theory(claim, judge, [own]).met
  assert claims.judge_theory(claim, judge, []).met is None
  claim, judge = _theory('tuning_against_fedavg')  # an existence claim
  assert judge.needed == 'any'
  more, less = Pair(what='a', left=2.0, right=1.0), Pair(what='b', left=0.5, right=1.0)
  assert claims.judge_theory(claim, judge, [more, less]).met
  assert not claims.judge_theory(claim, judge, [less]).met


def test_an_aside_is_said_and_judges_nothing():
  claim, judge = _theory('optimal_lambda')
  good, aside = Pair(what='a', left=1.0, right=1.0), Aside(text='Not judged: 7')
  found = claims.judge_theory(claim, judge, [aside, good])
  assert found.met and found.text == '1 of 1 comparisons hold. Not judged: 7'
  assert claims.judge_theory(claim, judge, [aside]).met is None


CHECKS = sorted({j.theory for c in CLAIMS for j in c.judges if j.theory and not j.dataset})
_LARGE = ('theorem_8_simulated',)  # programs that stay in memory


@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  [pytest.param(c, marks=pytest.mark.exhaustive if c in _LARGE else ()) for c in CHECKS],
)
def test_stored_verdicts_of_theory_are_what_the_checks_say(name):
  claim, judge = _theory(name)
  stored = verdicts.read_verdicts()[claim.id][judge.data]
  assert claims.judge_theory(claim, judge).met == (stored.verdict == verdicts.MET)


def _twin(monkeypatch, owner, name, change):
  original = getattr(owner, name)
  if isinstance(original, property):
    monkeypatch.setattr(owner, name, property(lambda self: change(original.fget(self))))
  else:
    monkeypatch.setattr(owner, name, lambda *args, **kw: change(original(*args, **kw)))


_SILOS = 'mean_estimation.HeterogeneousMeanEstimation'


@pytest.mark.slow
@pytest.mark.parametrize(
  ('check', 'owner', 'name', 'factor'),
  [
    ('lemma_1', 'point_estimation.PointEstimation', 'optimal_ratio', 1.001),
    ('lemma_2', 'point_estimation.PointEstimation', 'gap_to_fedavg', 1.001),
    ('lemma_10', 'point_estimation.PointEstimation', 'optimal_lambda', 1.001),
    ('theorem_8', 'regression.LinearRegression', 'ratio_weights', 1.001),
    pytest.param(
      'theorem_8', 'feo2_process', 'broken process', 0.999, marks=pytest.mark.exhaustive
    ),
    pytest.param(
      'theorem_8_simulated', 'point_estimation.PointEstimation', 'optimal_ratio', 1.001,
      marks=pytest.mark.exhaustive,
    ),
    pytest.param(
      'theorem_8_simulated', 'point_estimation.PointEstimation', 'optimal_lambda', 1.001,
      marks=pytest.mark.exhaustive,
    ),
    pytest.param(
      'theorem_8_simulated', 'feo2_process', 'broken process', 0.999,
      marks=pytest.mark.exhaustive,
    ),
    ('budgets', None, '_poisson_epsilon', 1.2),
    ('sampling_amplification', None, 'slope', 1.3),
    ('threshold', 'ppsgd_bounds', 'threshold_on_samples', 1.3),
    ('bound_of_averaged_iterates', None, 'broken step', 0.1),
    pytest.param(
      'bound_of_averaged_iterates', None, 'nothing personal', None, marks=pytest.mark.exhaustive
    ),
    ('sampling_shrinks_bias', None, 'broken sampling', None),
    ('optimal_lambda', 'mean_estimation.MeanEstimation', 'optimal_lambda', 1.001),
    ('gap_to_local', 'mean_estimation.MeanEstimation', 'gap_to_local', 1.001),
    ('gap_to_fedavg', 'mean_estimation.MeanEstimation', 'gap_to_fedavg', 1.001),
    ('error_of_lambda', 'mean_estimation.MeanEstimation', 'error', 1.001),
    ('private_gap', 'mean_estimation.MeanEstimation', 'privacy_cost', 1.001),
    ('estimator_and_posterior', 'mean_estimation', 'estimate', 1.001),
    ('advantage_peaks', 'mean_estimation.MeanEstimation', 'optimal_lambda', 1.001),
    ('lambda_per_silo', _SILOS, 'optimal_lambdas', 1.001),
    ('own_lambda_beats_common', _SILOS, 'optimal_lambdas', 3.0),
    ('lambda_interpolates', None, '_error', 1.1),
  ],
)  # fmt: skip
def test_a_broken_twin_is_not_met(monkeypatch, check, owner, name, factor):
  claim, judge = _theory(check)
  if name == 'broken step':
    monkeypatch.setattr(
      ppsgd._Additive, 'run', lambda self, *, step, **kw: _RUN(self, step=factor * step, **kw)
    )
  elif name == 'nothing personal':  # what is shared learns as the theorem has it, and nothing else

    def shared_alone(self, *, alpha, step, **values):
      return _RUN(self, alpha=math.inf, step=alpha * step, **values)

    monkeypatch.setattr(ppsgd._Additive, 'run', shared_alone)
  elif name == 'broken sampling':  # rounds of everybody, called sampled

    def everybody(self, *, rate, rounds, **values):
      return _RUN(self, rate=1.0, rounds=max(1, round(rounds * rate)), **values)

    monkeypatch.setattr(ppsgd._Additive, 'run', everybody)
  elif name == 'broken process':  # its step falls short of a client's estimate
    monkeypatch.setattr(
      feo2.feo2_process, 'run', lambda *data, **values: _FEO2(*data, **values, step=factor)
    )
  else:
    place = CHECKS_OF[claim.paper]
    for step in (owner or '').split('.'):
      place = getattr(place, step) if step else place
    _twin(monkeypatch, place, name, lambda value: factor * value)
  assert not claims.judge_theory(claim, judge).met


def _noise_that_grows(users, rate, rounds, epsilon, delta=1e-4):
  return 0.01 * rounds  # instead of as its root


def _wavy(problem, mtl_lambda):
  return math.sin(3 * math.log(mtl_lambda))


class _OneNoiseForAll(np.random.Generator):
  """Silos whose noise is the same."""

  def normal(self, *, size):
    return np.repeat(super().normal(size=(size[0], 1)), size[1], axis=1)


_NOISE = silo._noise
_VARIANCE, _ERRORS, _RUN = feo2._variance, silo._errors, ppsgd._Additive.run
_FEO2 = feo2.feo2_process.run
_VARIANCE_TERM = ppsgd.ppsgd_bounds.variance_term
_CURVE = silo.accounting.repeat_and_select_curve


def _all_share(self, *, alpha, step, **values):
  """Local learning moves what is shared, too, with the theorem's step for that."""
  step = step if alpha else min(1 / 8, step / math.sqrt(self.users))
  return _RUN(self, alpha=math.inf, step=step, **values)


def _noise_beyond_its_root(self, *, rounds, noise=0.0, **values):
  """It grows with n faster than it should, while the step is that of the right one."""
  return _RUN(self, rounds=rounds, noise=noise * (rounds / 300) ** 0.25, **values)


def _nobody_shares(self, *, alpha, step, **values):
  return _RUN(self, alpha=0.0, step=step * self.users if alpha else step, **values)


@pytest.mark.parametrize(
  ('check', 'name', 'twin'),
  [
    # r of no noise, whatever the noise.
    ('ratio_falls_with_noise', '_variance',
     lambda p, r: _VARIANCE(dataclasses.replace(p, privacy_variance=0.1), r)),
    pytest.param(
      'privacy_cost_free_of_n', 'noise_multiplier', _noise_that_grows, marks=pytest.mark.slow
    ),
    pytest.param(
      'privacy_cost_free_of_n', '_Additive.run', _noise_beyond_its_root,
      marks=[pytest.mark.slow, pytest.mark.exhaustive],
    ),
    ('more_samples', 'ppsgd_bounds.variance_term',
     lambda alphas, *, samples, **values: _VARIANCE_TERM(alphas, samples=1.0, **values)),
    # The sensitivity of the mean user, not of the largest one.
    ('unequal_samples', '_privacy_terms', lambda sizes: (1 / len(sizes), 1 / len(sizes))),
    ('local_rate_free_of_users', '_Additive.run', _all_share),
    ('local_rate_free_of_users', '_Additive.run', _nobody_shares),
    ('averaging_noise', 'generator', lambda: _OneNoiseForAll(np.random.PCG64(0))),
    ('error_rate_sensitivity', '_score', lambda wrong, n: wrong),  # a number of errors, no rate
    ('tuning_cost_by_eta', 'accounting.repeat_and_select_curve',
     lambda curve, mean, shape: _CURVE(curve, mean, 0.0)),
    ('quasi_concave', '_error', _wavy),
    # The strict silo and a loose one change places.
    ('outlier_direction', '_errors', lambda p, silo, x: _ERRORS(p, 1 - silo, x)),
    ('overhead', 'local_steps_per_round', lambda sizes, batch, passes: sizes // batch + 1),
    # The five methods are no longer the same.
    ('overhead', '_noise', lambda name, *values, **more: _NOISE(name, *values, **more) * (
      1 + 1e-9 * (name == 'mocha'))),
    ('tuning_against_fedavg', '_best_tuned', lambda *where: ([0.0] * 6, [1.0, 2.0, 0.0])),
    ('tuning_against_local', '_best_tuned', lambda *where: ([0.0] * 6, [2.0, 1.0, 0.0])),
    ('tuning_eats_gain', '_best_tuned', lambda *where: ([0.0] * 6, [2.0, 2.0, 1.0])),
  ],
)  # fmt: skip
def test_a_check_with_a_broken_part_is_not_met(monkeypatch, check, name, twin):
  claim, judge = _theory(check)
  assert verdicts.read_verdicts()[claim.id][judge.data].verdict == verdicts.MET
  owner, _, name = name.rpartition('.')
  place = CHECKS_OF[claim.paper]
  monkeypatch.setattr(getattr(place, owner) if owner else place, name, twin)
  assert not claims.judge_theory(claim, judge).met


def _gaussian_noise(users, rate, rounds, epsilon, delta=1e-4):
  return math.sqrt(rounds * math.log(1 / delta)) / epsilon


def _gamma_that_stays(function):
  return lambda *args, noise_kept, **values: function(*args, noise_kept='mean', **values)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('check', 'name', 'as_the_paper_says'),
  [
    ('noise_scale', 'noise_multiplier', _gaussian_noise),
    ('opting_out_order', 'point_estimation.incentive',
     _gamma_that_stays(feo2.point_estimation.incentive)),
    ('opting_out_percentages', 'point_estimation.search_incentive',
     _gamma_that_stays(feo2.point_estimation.search_incentive)),
  ],
)  # fmt: skip
def test_a_check_that_is_not_met_would_be_if_the_claim_were_true(
  monkeypatch, check, name, as_the_paper_says
):
  claim, judge = _theory(check)
  assert verdicts.read_verdicts()[claim.id][judge.data].verdict == verdicts.NOT_MET
  owner, _, name = name.rpartition('.')
  place = CHECKS_OF[claim.paper]
  monkeypatch.setattr(getattr(place, owner) if owner else place, name, as_the_paper_says)
  assert claims.judge_theory(claim, judge).met


def test_every_check_has_a_twin():
  """A broken one, or for a claim that is not met one of which it is true."""
  with_twin = {
    getattr(values, 'values', values)[0]  # of a pytest.param, or of a tuple
    for test in (
      test_a_broken_twin_is_not_met,
      test_a_check_with_a_broken_part_is_not_met,
      test_a_check_that_is_not_met_would_be_if_the_claim_were_true,
    )
    for mark in test.pytestmark
    if mark.name == 'parametrize'
    for values in mark.args[1]
  }
  assert with_twin == set(CHECKS)


def test_the_command_prints_the_page_and_refuses_what_it_does_not_know(capsys):
  assert claims.main(['claims']) == 0
  assert capsys.readouterr().out == verdicts.PAGE.read_text()
  assert claims.main(['claims', '--run=nothing-of-this-name']) == 2
  assert '--run=nothing-of-this-name is no claim' in capsys.readouterr().err
  assert claims.main(['claims', '--run=']) == 2
  assert '--run= names nothing; give ids of claims' in capsys.readouterr().err


def _judge_at_once(monkeypatch, tmp_path, *, seconds):
  """Two commands, each with a verdict of its own; what is stored after them.

  They read what is stored at the same time, if both can within so many seconds.
  """
  first, second = [c for c in CLAIMS if len(c.judges) == 1 and c.judges[0].theory][:2]
  monkeypatch.setattr(verdicts, 'STORE', tmp_path / 'verdicts.json')
  monkeypatch.setattr(verdicts, 'PAGE', tmp_path / 'claims.md')
  before = verdicts.Verdict(verdict=verdicts.NOT_RUN, text='earlier', remark='2026: a remark')
  verdicts.write_verdicts({first.id: {first.judges[0].data: before}})
  monkeypatch.setattr(
    claims, 'judge_theory', lambda *_, **__: claims.Finding(met=True, text='judged')
  )
  read, reading = verdicts.read_verdicts, threading.Barrier(2)

  def read_beside_the_other():
    stored = read()
    with contextlib.suppress(threading.BrokenBarrierError):  # locked out, it does not come
      reading.wait(timeout=seconds)
    return stored

  monkeypatch.setattr(verdicts, 'read_verdicts', read_beside_the_other)
  commands = [
    threading.Thread(target=claims.main, args=(['claims', f'--run={claim.id}'],))
    for claim in (first, second)
  ]
  for command in commands:
    command.start()
  for command in commands:
    command.join()
  stored = read()
  found = {
    claim.id: stored.get(claim.id, {}).get(claim.judges[0].data) for claim in (first, second)
  }
  return [verdict for verdict in found.values() if verdict and verdict.text == 'judged'], stored


def test_verdicts_of_two_commands_at_once_are_all_stored(monkeypatch, tmp_path):
  judged, stored = _judge_at_once(monkeypatch, tmp_path, seconds=0.3)
  assert len(judged) == 2
  assert [verdict.remark for verdict in judged] == ['2026: a remark', '']
  assert (tmp_path / 'claims.md').read_text() == verdicts.page(CLAIMS, stored)
  assert sorted(p.name for p in tmp_path.iterdir()) == ['claims.md', 'verdicts.json']


def test_without_the_lock_a_verdict_is_lost(monkeypatch, tmp_path):
  """The negative control: what the test above does not see by luck."""

  def write(path, content):  # temporary names are a process's, and these are threads of one
    temporary = path.with_name(f'{path.name}.{threading.get_ident()}')
    temporary.write_bytes(content)
    temporary.replace(path)

  monkeypatch.setattr(files, 'locked', lambda path: contextlib.nullcontext())
  monkeypatch.setattr(files, 'write_atomically', write)
  judged, _ = _judge_at_once(monkeypatch, tmp_path, seconds=60)
  assert len(judged) == 1


def test_own_messages_are_listed_with_their_date():
  """Messages of recipes that are no claims of a paper: after which run they were written."""
  listed = verdicts.read_own_messages()
  for recipe in recipes.read_all():
    said = {comparison.what for comparison in recipe.comparisons}
    assert said <= verdicts.read_messages_of(recipe.name).keys(), recipe.name
  for message in listed:
    assert message.written and message.when in ('before the run', 'after the run')


def test_what_was_expected_before_a_run_is_what_the_recipe_checks():
  expected = [m for m in verdicts.read_own_messages() if m.when == 'before the run']
  assert expected
  for message in expected:
    recipe = recipes.read(message.recipe)
    (checked,) = (c for c in recipe.comparisons if c.what == message.what)
    assert checked.margin == message.margin
    assert all(f'--seeds={message.seeds}' in flags for flags in recipe.parts.values())


def test_a_setting_that_a_part_has_fixed_is_one_of_its_runs():
  """A claim of runs that chose clusters in every round is not answered by others."""
  table = pd.DataFrame({'setting': ['target_epsilon=1'], 'target_epsilon': [1.0], 'value': [0.5]})
  swept = table.assign(selection_fraction=1.0)
  found = claims._by_part(recipes.read('claims_silo_school'), {'ifca': swept, 'ifca_mr_mtl': table})
  assert list(found['ifca']['selection_fraction']) == [1.0]
  assert list(found['ifca_mr_mtl']['selection_fraction']) == [0.1]
  assert list(found['ifca_mr_mtl']['num_clusters']) == [3]
  assert 'mtl_lambda' not in found['ifca_mr_mtl']


def test_a_stopped_claim_says_how_it_goes_on(monkeypatch, capsys):
  def stop(*arguments, **keywords):
    raise interruption.Interrupted(2)

  monkeypatch.setattr(claims, 'run', stop)
  assert claims.main(['claims', '--run=claims_silo_exam', '--output_dir=a b']) == 130
  said = capsys.readouterr().err
  assert said == "stopped; continue with ./fl claims --run=claims_silo_exam '--output_dir=a b'\n"
