"""The rules by which claims are judged: each with a case that holds and one that does not."""

import math

import numpy as np
import pandas as pd
import pytest

from experiments.recipes import impossible, measures, rules


def test_paired_errors():
  left, right = np.array([3.0, 4.0, 8.0]), np.array([1.0, 3.0, 5.0])
  gap = rules.difference(left, right)
  assert gap.mean == pytest.approx(2.0) and gap.seeds == 3
  # Student's t at 95 % with two degrees of freedom is 4.3027.
  assert gap.error == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5)
  six = rules.difference(np.arange(6.0))
  assert six.error == pytest.approx(2 * np.std(np.arange(6.0), ddof=1) / math.sqrt(6))
  # What both sides share does not count.
  shared = np.array([100.0, -50.0, 7.0])
  assert rules.difference(left + shared, right + shared).error == pytest.approx(gap.error)
  with pytest.raises(ValueError, match='2 seeds are fewer than 3'):
    rules.difference(np.arange(2.0))
  assert rules.difference(np.arange(2.0), exact=True).error == 0.0


SMALL, LARGE = np.array([0.0, 0.1, -0.1, 0.05]), np.array([1.0, 1.1, 0.9, 1.2])


@pytest.mark.parametrize(
  ('relation', 'left', 'right', 'margin', 'met'),
  [
    ('>', LARGE, SMALL, 0.0, True),
    ('>', LARGE, SMALL, 0.9, True),
    ('>', LARGE, SMALL, 1.2, False),  # more, but not by the margin
    ('>', SMALL, LARGE, 0.0, False),
    ('>', np.array([1.0, -0.9, 0.1]), 0.0, None, False),  # more, but not by two errors
    ('<', SMALL, LARGE, 0.5, True),
    ('<', LARGE, SMALL, 0.0, False),
    ('>=', SMALL, SMALL + 1e-6, 0.0, False),  # an exact shortfall is one
    ('>=', np.array([1.0, -0.9, 0.1]), 0.2, None, True),  # a shortfall inside two errors
    ('>=', SMALL, LARGE, 0.5, False),
    ('>=', SMALL, LARGE, 1.5, True),
    ('<=', LARGE, SMALL, 0.5, False),
    ('<=', SMALL, LARGE, 0.0, True),
    ('about', LARGE, 1.0, 0.1, True),
    ('about', LARGE, 1.0, 0.01, False),
    ('within', SMALL, 0.0, 0.02, True),
    ('within', LARGE, 0.0, 0.5, False),
    ('equals', LARGE, 1.05, 1e-6, True),
    ('equals', LARGE, 1.06, 1e-3, False),
    ('not below', LARGE, SMALL, 0.0, True),
    ('not below', SMALL, LARGE, 0.5, False),
    ('indifferent', np.array([1.0, -0.9, 0.1]), 0.0, None, True),
    ('indifferent', LARGE, SMALL, None, False),
  ],
)
def test_relations(relation, left, right, margin, met):
  assert rules.order(relation, left, right, margin).met is met


def test_infinite_optima_can_be_compared_but_nothing_is_near_to_them():
  above = rules.difference(math.inf, 3.0, exact=True)
  assert rules.holds('>', above, 0.0) and not rules.holds('<', above, 0.0)
  assert not rules.holds('about', above, 1e9)
  with pytest.raises(ValueError, match="'near' is no relation"):
    rules.holds('near', rules.difference(1.0, exact=True), 0.0)


def test_trends():
  noise = np.array([0.01, -0.01, 0.0])
  rising = [x + noise for x in (0.0, 1.0, 0.995, 2.0)]  # one step back, inside its error
  wobble = [0.0 * noise, 1.0 + noise, 0.99 + 3 * noise, 2.0 + noise]
  assert rules.trend(wobble, rises=True).met
  assert not rules.trend(wobble, rises=False).met
  assert not rules.trend([x + noise for x in (0.0, 2.0, 1.0, 3.0)], rises=True).met
  assert not rules.trend([noise, 5 * noise, noise], rises=True).met  # not strict at the ends
  assert not rules.trend(rising, rises=True).met  # an exact step back is one


def test_turns():
  noise = np.array([0.01, -0.01, 0.0])

  def count(values):
    return rules.turns([x + k * noise for k, x in enumerate(values)])

  assert count([0.0, 1.0, 2.0, 1.0, 0.0]) == 1  # a hump
  assert count([0.0, 1.0, 2.0, 3.0]) == 0
  assert count([0.0, 2.0, 0.0, 2.0]) == 2
  assert count([0.0, 1.0, 1.001, 1.0, 2.0]) == 0  # noise is no change of direction


def test_best_settings_and_their_bootstrap():
  settings = [0.1, 1.0, 10.0]
  assert rules.best_of(settings, np.array([0.0, 2.0, 1.0])) == 1.0
  smooth = rules.best_of(settings, np.array([0.0, 2.0, 1.0]), smooth=True)
  assert 1.0 < smooth < 10.0
  # A parabola in the logarithm: its own top.
  top = rules.best_of(settings, -((np.log(settings) - 0.7) ** 2), smooth=True)
  assert math.log(top) == pytest.approx(0.7)
  assert rules.best_of(settings, np.array([3.0, 2.0, 1.0]), smooth=True) == 0.1
  values = np.array([1.0, 2.0, 3.0, -1.0, 2.0])
  assert rules.bootstrap(lambda drawn: values[drawn].mean() > -2, 5) == 1.0
  share = rules.bootstrap(lambda drawn: bool(values[drawn].mean() > 1.4), 5)
  assert 0.2 < share < 0.8
  with pytest.raises(ValueError, match='2 seeds are fewer'):
    rules.bootstrap(lambda drawn: True, 2)


def test_crossings():
  assert rules.crossing([1, 2, 4], [-1.0, -0.5, 0.5]) == pytest.approx(3.0)
  assert rules.crossing([1, 2, 4], [-1.0, -0.5, -0.1]) == math.inf
  assert rules.crossing([1, 2, 4], [0.1, 0.5, 0.5]) == 1.0
  assert rules.crossing([1, 2, 4], [0.5, -0.5, 0.5]) == pytest.approx(3.0)  # for good
  assert rules.crossing([1, 2, math.inf], [-1.0, -0.5, 0.5]) == 2.0


CELLS = {
  'a': {'target': 90.0, 'tol': 1.0},
  'b': {'target': 0.4, 'factor': 2.0},
  'c': {'target_error': 0.02, 'error_factor': 3.0},
  'd': {'target': 50.0, 'tol': 2.0},
  'e': {'target': 10.0, 'tol': 1.0},
}
GOOD = {'a': 90.9, 'b': 0.7, 'c': 99.95, 'd': 50.0, 'e': 10.0}


def _seeds(values):
  return {name: np.full(3, value) for name, value in values.items()}


@pytest.mark.parametrize(
  ('changes', 'met'),
  [
    ({}, True),
    ({'a': 91.9}, True),  # one of five outside, inside twice its tolerance
    ({'a': 91.9, 'e': 11.5}, False),  # two of five
    ({'a': 92.1}, False),  # one, but beyond twice
    ({'b': 0.19}, True),
    ({'b': 1.7}, False),  # beyond the factor squared
    ({'c': 99.83}, True),  # an error of 0.17 is between 3 and 9 times 0.02
    ({'c': 99.8}, False),
    ({'c': 100.0}, False),  # no error at all is not three times less
  ],
)
def test_tables(changes, met):
  assert rules.table(_seeds({**GOOD, **changes}), CELLS).met is met


def test_tables_need_every_cell_and_three_seeds():
  with pytest.raises(ValueError, match='no value for e'):
    rules.table(_seeds({n: v for n, v in GOOD.items() if n != 'e'}), CELLS)
  with pytest.raises(ValueError, match='2 seeds'):
    rules.table({n: np.full(2, v) for n, v in GOOD.items()}, CELLS)


def test_findings_together():
  yes, no, open_ = (rules.Finding(met=m, text=str(m), seeds=3) for m in (True, False, None))
  assert rules.together([yes, yes]).met and not rules.together([yes, no]).met
  assert rules.together([yes, no], needed='half').met
  assert not rules.together([yes, no, no], needed='half').met
  assert rules.together([yes, no, no], needed='any').met
  assert not rules.together([no, no], needed='any').met
  assert rules.together([yes, open_], needed='any').met is None


# ------------------------------------------------------------ measures


def _table(values, *, metric='test_mse', **columns):
  """Rows of (settings, seeds): values [settings][seeds]; columns are lists over settings."""
  rows = []
  for i, by_seed in enumerate(values):
    settings = {name: column[i] for name, column in columns.items()}
    for seed, value in enumerate(by_seed):
      rows.append(
        {'setting': str(settings), **settings, 'seed': seed, 'group': 'all', 'metric': metric,
         'value': value}
      )  # fmt: skip
  return pd.DataFrame(rows)


RNG = np.random.default_rng(0)


def _noisy(mean, seeds=5, spread=0.01):
  return mean + spread * RNG.normal(size=seeds)


ENDS = _table([_noisy(2.0), _noisy(3.0)], method=['fedavg', 'local'], target_epsilon=[1.0, 1.0])
MR_MTL = _table(
  # The second looks best on judging seeds only, the third diverged once.
  [_noisy(1.0), np.array([9.0, 9.0, 0.0, 0.0, 0.0]), np.array([0.0, 0.0, 0.0, math.nan, 0.0])],
  mtl_lambda=[0.1, 1.0, 10.0],
  target_epsilon=[1.0, 1.0, 1.0],
)
TERMS = {
  'mr_mtl': {'part': 'mr_mtl', 'where': {'target_epsilon': '$epsilon'}, 'choose': True},
  'local': {'part': 'ends', 'where': {'method': 'local', 'target_epsilon': '$epsilon'}},
  'fedavg': {'part': 'ends', 'where': {'method': 'fedavg', 'target_epsilon': '$epsilon'}},
}


def _runs(**changes):
  values = dict(
    tables={'ends': ENDS, 'mr_mtl': MR_MTL}, terms=TERMS,
    values={'metric': 'test_mse', 'epsilon': 1.0}, tuning_seeds=2,
  )  # fmt: skip
  return measures.Runs(**{**values, **changes})


def _judge(measure, runs=None, relation='>', margin=None, **changes):
  runs = runs or _runs(**changes)
  return measures.judge(measure, runs, relation=relation, margin=margin)


def test_settings_are_chosen_on_seeds_that_do_not_judge():
  runs = _runs()
  chosen = runs.of('mr_mtl')
  assert len(chosen) == 3  # five seeds, two of which choose
  np.testing.assert_allclose(chosen, -1.0, atol=0.05)  # errors with their sign turned
  assert runs.tried == {'mr_mtl': 2}  # one did not train with every seed
  assert (
    'no tuning seeds'
    in _judge({'rule': 'order', 'left': 'mr_mtl', 'right': 'local'}, tuning_seeds=0).text
  )


def test_a_setting_may_be_chosen_by_another_metric_than_what_is_read_of_it():
  other = MR_MTL.assign(metric='cluster_accuracy', value=MR_MTL['mtl_lambda'] / 10)
  runs = _runs(tables={'mr_mtl': pd.concat([MR_MTL, other])})
  read = {'part': 'mr_mtl', 'metric': 'cluster_accuracy'}
  np.testing.assert_allclose(runs.of({**read, 'choose': 'test_mse'}), 1.0)  # percent, of 0.1
  np.testing.assert_allclose(runs.of({**read, 'choose': '$metric'}), 1.0)
  np.testing.assert_allclose(runs.of({**read, 'choose': True}), 100.0)
  without = _runs(tables={'mr_mtl': pd.concat([MR_MTL, other[other['mtl_lambda'] > 0.1]])})
  with pytest.raises(measures.Impossible, match='0 settings of part mr_mtl match'):
    without.of({**read, 'choose': 'test_mse'})


def test_the_better_of_a_methods_settings_was_chosen_from_all_of_them():
  """Of fixed settings as many as there are; of chosen ones those of each are counted together."""
  strengths = [
    {'part': 'mr_mtl', 'where': {'mtl_lambda': 0.1}}, {'part': 'mr_mtl', 'where': {'mtl_lambda': 1}}
  ]  # fmt: skip
  runs = _runs()
  runs.of({'better_of': strengths})
  assert runs.tried == {'mr_mtl (mtl_lambda 0.1, 1)': 2}
  runs = _runs()
  both = {'part': 'mr_mtl', 'choose': True}
  budgets = [{**both, 'where': {'target_epsilon': x}} for x in (1.0, 2.0)]
  twice = MR_MTL.assign(target_epsilon=2.0, setting=MR_MTL['setting'] + '-2')
  runs = _runs(tables={'mr_mtl': pd.concat([MR_MTL, twice])})
  runs.of({'better_of': budgets})
  assert runs.tried == {'mr_mtl': 2, 'mr_mtl (target_epsilon 1.0, 2.0)': 4}
  runs = _runs()
  runs.of({'better_of': ['local', 'fedavg']})  # two methods of one setting each
  assert runs.tried == {}


def test_what_is_said_beside_a_comparison_does_not_judge():
  order = {'rule': 'order', 'left': 'mr_mtl', 'right': 'local'}
  beside = [{'what': 'to FedAvg', 'of': {'minus': ['mr_mtl', 'fedavg']}}]
  plain, found = _judge(order), _judge({**order, 'beside': beside})
  gap = rules.difference(_runs().of('mr_mtl'), _runs().of('fedavg'))
  assert found.met == plain.met and found.text == f'{plain.text}; to FedAvg: {gap}'


def test_runs_that_are_not_there_are_missed_in_a_sentence():
  order = {'rule': 'order', 'left': 'mr_mtl', 'right': 'local'}
  found = _judge(order, values={'metric': 'test_mse', 'epsilon': 3.0})
  assert found.met is None
  assert found.text == 'part mr_mtl with target_epsilon 3.0 has no runs with test_mse'
  expected = impossible.Impossible(
    part='mr_mtl', where={'target_epsilon': 3.0}, because='spend', sentence='nothing is left'
  )
  found = _judge(order, values={'metric': 'test_mse', 'epsilon': 3.0}, cannot_be_had=(expected,))
  assert found.text == 'part mr_mtl with target_epsilon 3.0 cannot be run: nothing is left'
  found = _judge(order, values={'metric': 'test_mse', 'epsilon': 4.0}, cannot_be_had=(expected,))
  assert 'has no runs with test_mse' in found.text


def test_orders_of_utilities_and_of_raw_errors():
  both = {'rule': 'order', 'left': 'mr_mtl', 'right': ['local', 'fedavg']}
  assert _judge(both).met
  assert not _judge({**both, 'left': 'local'}).met
  assert not _judge(both, relation='<').met
  raw = {'rule': 'order', 'left': {**TERMS['mr_mtl'], 'raw': True},
         'right': {**TERMS['fedavg'], 'raw': True}}  # fmt: skip
  assert _judge(raw, relation='<').met and not _judge(raw, relation='>').met
  better = {**raw, 'relation': '<', 'right': {'better_of': ['local', 'fedavg'], 'raw': True}}
  assert _judge(better, margin=0.9).met and not _judge(better, margin=1.1).met
  worse = {**better, 'right': {'worse_of': ['local', 'fedavg'], 'raw': True}}
  assert _judge(worse, margin=1.9).met and not _judge(worse, margin=2.1).met


def test_the_better_one_of_raw_errors_is_chosen_by_utility_and_stays_raw():
  better = {'better_of': ['local', 'fedavg'], 'raw': True}
  np.testing.assert_allclose(_runs().of(better), 2.0, atol=0.05)  # FedAvg's error, positive
  # An error is not above every other one because that one's sign was turned.
  raw = {'rule': 'order', 'left': {**TERMS['mr_mtl'], 'raw': True}, 'right': better}
  assert _judge(raw, relation='<').met and not _judge(raw, relation='>').met


def test_a_margin_in_points_is_two_errors_for_an_error():
  near = {'rule': 'order', 'left': 'local', 'right': 'fedavg', 'relation': 'within'}
  assert not _judge(near, margin=5.0).met  # 3 and 2 are no points of accuracy
  assert _judge({**near, 'right': 'local'}, margin=5.0).met
  assert not _judge({**near, 'relation': '>='}, margin=5.0).met
  assert not _judge({**near, 'one_sided': True}, margin=5.0).met
  raw = {**near, 'left': {**TERMS['local'], 'raw': True}, 'right': 2.5}
  assert _judge(raw, margin=0.6).met and not _judge(raw, margin=0.4).met


def test_a_repeated_flag_is_found_among_the_others():
  options = ['num_clients=9 local_deviation=0', 'num_clients=9 local_deviation=0.1']
  table = _table([_noisy(1.0), _noisy(2.0)], dataset_option=options)
  for value, error in (('local_deviation=0', 1.0), ('local_deviation=0.1', 2.0)):
    term = {'part': 'ends', 'where': {'dataset_option': value}}
    np.testing.assert_allclose(_runs(tables={'ends': table}).of(term), -error, atol=0.05)


def test_accuracies_are_in_points():
  table = _table([np.full(5, 0.75)], metric='test_accuracy', method=['local'])
  runs = _runs(tables={'ends': table}, values={'metric': 'test_accuracy'})
  np.testing.assert_allclose(runs.of({'part': 'ends'}), 75.0)


@pytest.mark.parametrize(
  ('measure', 'why'),
  [
    ({'rule': 'order', 'left': 'nobody', 'right': 'local'}, "no term 'nobody'"),
    ({'rule': 'order', 'left': {'part': 'absent'}, 'right': 'local'}, 'absent was not run'),
    ({'rule': 'order', 'left': {'part': 'ends'}, 'right': 'local'}, '2 settings of part ends'),
    (
      {'rule': 'order', 'left': {'part': 'ends', 'which': 1}, 'right': 0},
      'a term of part has no which',
    ),
    (
      {'rule': 'order', 'left': {'minus': ['local', 'local'], 'raw': True}, 'right': 0},
      'a term of minus has no raw',
    ),
    (
      {'rule': 'order', 'left': {'better_of': [{'part': 'ends', 'raw': True}]}, 'right': 0},
      'raw as a whole',
    ),
    ({'rule': 'order', 'left': 'local', 'right': 'local', 'each': {'epsilon': [7.0]}}, 'no runs'),
    ({'rule': 'order', 'left': 'local', 'right': '$rivals'}, 'rivals has no value'),
  ],
)
def test_what_the_runs_do_not_hold_is_not_judged(measure, why):
  found = _judge(measure)
  assert found.met is None and why in found.text


def test_few_seeds_are_not_judged():
  found = _judge({'rule': 'order', 'left': 'local', 'right': 'fedavg'}, tuning_seeds=3)
  assert found.met is None and 'fewer than 3' in found.text


def test_premises_and_places_where_the_end_points_meet():
  order = {'rule': 'order', 'left': 'mr_mtl', 'right': 'local'}
  premise = {'rule': 'order', 'left': 'local', 'right': 'fedavg'}
  found = _judge({**order, 'needs': premise})
  assert found.met is None and 'premise' in found.text
  ends = pd.concat(
    [
      _table([_noisy(a), _noisy(b)], method=['fedavg', 'local'], target_epsilon=[x, x])
      for x, a, b in ((1.0, 2.0, 3.0), (2.0, 2.0, 2.05), (4.0, 2.0, 1.0))
    ]
  )
  runs = _runs(tables={'ends': ends}, values={'metric': 'test_mse', 'epsilons': [1.0, 2.0, 4.0]})
  measure = {
    'rule': 'order', 'left': 'fedavg', 'right': 'local', 'each': {'epsilon': ['$interest']},
    'nearest': {'name': 'interest', 'over': '$epsilons', 'of': {'minus': ['local', 'fedavg']}},
  }  # fmt: skip
  assert _judge(measure, runs).text.startswith('epsilon 2.0')
  crossing = {
    'rule': 'between', 'over': {'epsilon': '$epsilons'}, 'number': 2.0, 'cases': [{}],
    'of': {'minus': ['local', 'fedavg']},
  }  # fmt: skip
  assert _judge(crossing, runs, relation='about', margin=0.3).met
  assert not _judge({**crossing, 'number': 3.5}, runs, relation='about', margin=0.3).met
  rising = {'rule': 'trend', 'over': {'epsilon': '$epsilons'}, 'direction': 'rises',
            'of': {'minus': ['local', 'fedavg']}}  # fmt: skip
  assert _judge(rising, runs).met and not _judge({**rising, 'direction': 'falls'}, runs).met


def _curve(best, epsilon):
  lambdas = [0.1, 1.0, 10.0]
  return _table(
    [_noisy((math.log10(x) - best) ** 2) for x in lambdas],
    mtl_lambda=lambdas, target_epsilon=[epsilon] * 3,
  )  # fmt: skip


def test_best_settings_over_budgets_and_their_curves():
  table = pd.concat([_curve(1.0, 1.0), _curve(-1.0, 8.0)])
  runs = _runs(tables={'mr_mtl': table}, values={'metric': 'test_mse'})
  measure = {
    'rule': 'best setting', 'setting': 'mtl_lambda', 'of': 'mr_mtl', 'rank': True,
    'cases': [{'epsilon': 1.0}, {'epsilon': 8.0}],
  }  # fmt: skip
  assert _judge(measure, runs).met
  assert not _judge(measure, runs, relation='<').met
  alike = _runs(tables={'mr_mtl': pd.concat([_curve(0.0, 1.0), _curve(0.0, 8.0)])},
                values={'metric': 'test_mse'})  # fmt: skip
  assert not _judge(measure, alike).met
  equal = {name: value for name, value in measure.items() if name != 'rank'}
  assert _judge(equal, alike, relation='>=').met and not _judge(equal, alike).met
  turns = {'rule': 'turns', 'setting': 'mtl_lambda', 'of': 'mr_mtl', 'each': {'epsilon': [1.0]}}
  assert _judge(turns, runs, relation='<=', margin=0).met
  nearer = {'rule': 'nearer', 'setting': 'mtl_lambda', 'of': 'mr_mtl', 'to': 'goal',
            'each': {'epsilon': [1.0]}}  # fmt: skip
  goal = {**TERMS, 'goal': {'part': 'mr_mtl', 'where': {'target_epsilon': 1.0, 'mtl_lambda': 10.0}}}
  assert _judge(nearer, _runs(tables={'mr_mtl': table}, terms=goal)).met
  start = {**goal, 'goal': {'part': 'mr_mtl', 'where': {'target_epsilon': 1.0, 'mtl_lambda': 0.1}}}
  assert not _judge(nearer, _runs(tables={'mr_mtl': table}, terms=start)).met
  # u(8) - u(1) = -4 log10(lambda)
  falls = {'rule': 'trend in', 'setting': 'mtl_lambda', 'direction': 'falls',
           'of': [{'at': {'epsilon': x}, 'of': 'mr_mtl'} for x in (8.0, 1.0)]}  # fmt: skip
  assert _judge(falls, runs).met and not _judge({**falls, 'direction': 'rises'}, runs).met
  assert _judge({**falls, 'of': [{'minus': ['mr_mtl', 'mr_mtl']}] * 2}, runs).met is None


def test_tables_of_runs():
  rows = []
  for metric, group, value in (
    ('server_test_accuracy', 'all', 0.9), ('test_accuracy_mean', 'private', 0.5),
    ('test_accuracy_variance', 'private', 0.004),
  ):  # fmt: skip
    rows += [
      {'setting': 's', 'ditto_lambda': 0.005, 'seed': seed, 'group': group, 'metric': metric,
       'value': value}
      for seed in range(5)
    ]  # fmt: skip
  runs = _runs(tables={'feo2': pd.DataFrame(rows)}, values={})
  measure = {'rule': 'table', 'part': 'feo2', 'lambda': 'ditto_lambda', 'groups': {'p': 'private'}}
  cells = {
    'acc_g': {'target': 90.5, 'tol': 1.0},
    'acc_l_p@0.005': {'target': 50.0, 'tol': 1.0},
    'acc_l_p_var@0.005': {'target': 0.3, 'factor': 2.0},
  }
  good = measures.judge(measure, runs, relation='within', margin=None, cells=cells)
  assert good.met and good.seeds == 3
  cells['acc_g'] = {'target': 95.0, 'tol': 1.0}
  assert not measures.judge(measure, runs, relation='within', margin=None, cells=cells).met
