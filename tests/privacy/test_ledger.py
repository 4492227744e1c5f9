"""The ledger: composition by another accountant, refusals, kills, many writers."""

import dataclasses
import fcntl
import json
import math
import multiprocessing
import threading
import time

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp

from privacy import accounting, ledger
from privacy import events as events_lib
from privacy.ledger import BudgetError, Claim, Ledger

GAUSSIAN = dp_accounting.GaussianDpEvent


def claim(run, *, rounds=10, rate=0.1, z=1.0, unit='client', delta=1e-5, **values):
  sampled = dp_accounting.PoissonSampledDpEvent(rate, GAUSSIAN(z))
  defaults = dict(
    data=('sha',), partition='p', events={'': dp_accounting.SelfComposedDpEvent(sampled, rounds)}
  )
  return Claim(
    run=run, unit=unit, relation='zero-out', delta=delta, rounds=rounds,
    **{**defaults, **values},
  )  # fmt: skip


def silos(run, noise, **values):
  events = {name: GAUSSIAN(z) for name, z in noise.items()}
  return claim(run, unit='example', events=events, **values)


def together(claims, delta):
  """The composition by dp-accounting's own accountant."""
  accountant = rdp.RdpAccountant(accounting.RDP_ORDERS)
  for one in claims:
    accountant.compose(one.events[''])
  return accountant.get_epsilon(delta)


def _same_steps(runs=1, rounds=10):
  """Epsilon of several runs of the default steps together, at half of delta."""
  step = claim('a').events[''].event
  return accounting.pld_epsilon(dp_accounting.SelfComposedDpEvent(step, runs * rounds), 5e-6)


@pytest.mark.slow
def test_runs_on_the_same_data_compose_and_others_do_not(tmp_path):
  book = Ledger(tmp_path / 'ledger')
  first, second = claim('a', rounds=50), claim('b', z=0.8, delta=1e-6)
  alone = book.reserve(first)
  assert alone.runs == 1 and alone.accountant == 'PLD'
  # One run has the epsilon of its own statement.
  assert alone.epsilon == accounting.pld_epsilon(first.events[''], 1e-5)
  both = book.reserve(second)
  assert both.runs == 2 and both.delta == 1e-6 and both.accountant == 'RDP'
  # Half of delta, as another theorem might have been leant on.
  assert both.epsilon == pytest.approx(together([first, second], 5e-7), rel=1e-6)
  settled = dp_accounting.ComposedDpEvent([first.events[''], second.events['']])
  assert both.epsilon_of_fixed == pytest.approx(accounting.pld_epsilon(settled, 1e-6))
  printed = [float(part.split()[0]) for part in str(both).replace('epsilon = ', '').split('; ')]
  assert printed[0] >= both.epsilon and printed[-1] >= both.epsilon_of_fixed
  assert alone.epsilon < both.epsilon_of_fixed < both.epsilon
  assert 'if none was set up after looking' in str(both)
  elsewhere = book.reserve(claim('c', data=('other',)))
  assert elsewhere.runs == 1
  # A run that looks at one file of both.
  assert book.reserve(claim('d', data=('other', 'sha'))).runs == 4


def test_runs_of_the_same_steps_compose_by_loss_distributions(tmp_path):
  """Only their number is open; likewise of Gaussian mechanisms, whatever their noise."""
  for pairs, whole in (
    ([claim('a', rounds=30), claim('b', rounds=70)], claim('c', rounds=100).events['']),
    ([claim(r, events={'': GAUSSIAN(z)}) for r, z in (('a', 3.0), ('b', 4.0))], GAUSSIAN(2.4)),
  ):
    book = Ledger(tmp_path / str(len(list(tmp_path.iterdir()))))
    book.reserve(pairs[0])
    found = book.reserve(pairs[1])
    assert found.accountant == 'PLD'
    assert found.epsilon == pytest.approx(accounting.pld_epsilon(whole, 5e-6), rel=1e-3)
    assert found.epsilon < together(pairs, 1e-5)


def test_a_mechanism_that_may_fail_spends_delta(tmp_path):
  book = Ledger(tmp_path / 'ledger')
  events = {'': events_lib.FailingDpEvent(1e-5, GAUSSIAN(5.0))}
  assert math.isfinite(book.reserve(claim('a', events=events, delta=5e-5)).epsilon)
  with pytest.raises(BudgetError, match='epsilon = inf'):
    book.reserve(claim('b', events=events, delta=2e-5), epsilon=100.0)


def test_the_run_that_would_pass_the_budget_is_refused_and_not_written(tmp_path):
  book = Ledger(tmp_path / 'ledger')
  budget = _same_steps(2) * 1.001
  for run in 'ab':
    book.reserve(claim(run), epsilon=budget)
  before = (tmp_path / 'ledger').read_bytes()
  with pytest.raises(BudgetError, match='would be passed: with this run it is epsilon') as refused:
    book.reserve(claim('c', rounds=1), epsilon=budget)
  assert '\n' not in str(refused.value)
  assert (tmp_path / 'ledger').read_bytes() == before
  # The same run again is no further run; and one that ended early has left something.
  book.reserve(claim('b'), epsilon=budget)
  book.record(claim('b', rounds=2), ended=True)
  book.reserve(claim('c', rounds=1), epsilon=budget)


def test_a_run_that_is_refused_begins_no_ledger(tmp_path):
  (tmp_path / 'mine').symlink_to(tmp_path / 'ours')
  for name in ('ledger', 'mine'):
    with pytest.raises(BudgetError):
      Ledger(tmp_path / name).reserve(claim('a'), epsilon=1e-9)
  assert [path.name for path in tmp_path.iterdir()] == ['mine']
  # The link stays: what is spent by it counts where others have their ledger.
  Ledger(tmp_path / 'mine').reserve(claim('a'))
  assert Ledger(tmp_path / 'ours').composition(claim('b')).runs == 2
  (tmp_path / 'given').touch()  # somebody's own, which may have its rights
  with pytest.raises(BudgetError):
    Ledger(tmp_path / 'given').reserve(claim('a'), epsilon=1e-9)
  assert (tmp_path / 'given').exists()


def test_a_ledger_that_is_removed_while_it_is_waited_for_is_begun_anew(tmp_path):
  book = Ledger(tmp_path / 'ledger')
  with open(book.path, 'a') as held:
    fcntl.flock(held, fcntl.LOCK_EX)
    waiting = threading.Thread(target=book.reserve, args=[claim('b')])
    waiting.start()
    time.sleep(0.3)  # for it to have opened the file
    book.path.unlink()
  waiting.join(60)
  assert book.composition(claim('b')).runs == 1 and '"b"' in book.path.read_text()


def test_a_running_run_counts_whole_and_a_killed_one_what_it_recorded(tmp_path):
  running = {'folder'}
  book = Ledger(tmp_path / 'ledger', is_running=lambda claim: claim.folder in running)
  book.reserve(claim('a', rounds=100, folder='folder'))
  book.record(claim('a', rounds=30, folder='folder'))
  asked = claim('b', rounds=1)
  assert book.composition(asked).epsilon == pytest.approx(_same_steps(rounds=101), rel=1e-6)
  running.clear()  # it was killed
  assert book.composition(asked).epsilon == pytest.approx(_same_steps(rounds=31), rel=1e-6)
  # It is continued from an earlier checkpoint: what was recorded stays spent.
  book.reserve(claim('a', rounds=100, folder='folder'))
  book.record(claim('a', rounds=20, folder='folder'))
  assert book.composition(asked).epsilon == pytest.approx(_same_steps(rounds=31), rel=1e-6)


def test_a_run_takes_back_its_own_last_reservation_and_no_other_line(tmp_path):
  book = Ledger(tmp_path / 'ledger')
  for run in 'ab':
    book.reserve(claim(run))
  before = (tmp_path / 'ledger').read_bytes()
  book.withdraw(claim('a'))  # another run has written since
  assert (tmp_path / 'ledger').read_bytes() == before
  assert book.composition(claim('c')).runs == 3
  book.withdraw(claim('b'))
  assert book.composition(claim('c')).runs == 2
  book.record(claim('a', rounds=1))
  book.withdraw(claim('a'))  # of what was spent nothing is taken back
  assert len((tmp_path / 'ledger').read_text().splitlines()) == 2


def test_a_run_that_ended_and_is_continued_counts_whole_again(tmp_path):
  book = Ledger(tmp_path / 'ledger')
  book.reserve(claim('a', rounds=100))
  book.record(claim('a', rounds=30), ended=True)
  asked = claim('b', rounds=1)
  assert book.composition(asked).epsilon == pytest.approx(_same_steps(rounds=31), rel=1e-6)
  book.reserve(claim('a', rounds=100))
  assert book.composition(asked).epsilon == pytest.approx(_same_steps(rounds=101), rel=1e-6)


@pytest.mark.parametrize('deltas', [(1e-5, 1e-6), (1e-6, 1e-5)])
def test_the_smallest_delta_counts_whichever_run_has_it(deltas):
  found = ledger.compose([claim(run, delta=delta) for run, delta in zip('ab', deltas, strict=True)])
  assert found.delta == 1e-6
  both = claim('a', rounds=20).events['']
  assert found.epsilon == pytest.approx(accounting.pld_epsilon(both, 5e-7), rel=1e-6)


def test_a_key_that_another_run_had_is_refused(tmp_path):
  """With its noise the two would not compose: it cancels in their difference."""
  book = Ledger(tmp_path / 'ledger')
  first = claim('key', settings='one', folder='a')
  book.reserve(first)
  book.record(first, ended=True)
  before = (tmp_path / 'ledger').read_bytes()
  for other in (
    claim('key', settings='two', folder='b'),
    claim('key', settings='one', folder='b', data=('other',)),
  ):
    with pytest.raises(
      ValueError, match=r'holds another run with this noise key.*\(in a\)'
    ) as refused:
      book.reserve(other)
    assert '\n' not in str(refused.value)
  assert (tmp_path / 'ledger').read_bytes() == before
  # The same run again, in any folder, is no other; nor is one of which less is known.
  assert book.reserve(dataclasses.replace(first, folder='b')).runs == 1
  assert book.reserve(dataclasses.replace(first, settings='')).runs == 1


def test_what_no_setting_tells_is_looked_at_wherever_a_line_has_it(tmp_path):
  book = Ledger(tmp_path / 'ledger')
  book.reserve(claim('key', settings='one'))  # of an earlier version
  book.reserve(claim('key', settings='one+x'))
  for other in ('one+y', 'two+x'):
    with pytest.raises(ValueError, match='holds another run with this noise key'):
      book.reserve(claim('key', settings=other))
  book.reserve(claim('key', settings='one+x+code'))
  with pytest.raises(ValueError, match='holds another run with this noise key'):
    book.reserve(claim('key', settings='one+x+other'))
  with pytest.raises(ValueError, match='holds another run with this noise key'):
    Ledger(tmp_path / 'ledger').reserve(claim('key', settings='two'))


def test_a_run_of_an_earlier_version_that_read_fewer_checksums_goes_on(tmp_path):
  book = Ledger(tmp_path / 'ledger')
  book.reserve(claim('key', settings='one+x'))  # of an earlier version
  both = claim('key', settings='one+x+code', data=('more', 'sha'))
  with pytest.raises(ValueError, match='another run with this noise key'):
    book.reserve(dataclasses.replace(both, data=('more', 'other')))
  assert book.reserve(both).runs == 1
  for data in (('sha',), ('more', 'others', 'sha')):
    with pytest.raises(ValueError, match='another run with this noise key'):
      book.reserve(dataclasses.replace(both, data=data))


def test_lines_of_earlier_versions_are_read():
  line = claim('a').to_json()
  for name in ('host', 'settings', 'replaced', 'unprotected'):
    del line[name]
  assert Claim.from_json(line) == claim('a')


def test_silos_compose_by_themselves(tmp_path):
  """Their data are disjoint: the largest sum over the runs, never a sum over silos."""
  book = Ledger(tmp_path / 'ledger')
  book.reserve(silos('a', {'x': 1.0, 'y': 8.0}))
  second = silos('b', {'y': 1.0, 'x': 8.0})
  found = book.reserve(second).epsilon
  both = dp_accounting.ComposedDpEvent([GAUSSIAN(1.0), GAUSSIAN(8.0)])
  assert found == pytest.approx(accounting.pld_epsilon(both, 5e-6))
  # With other silos, which cut the same data anew, any of the first may hold an example; also
  # where they have the same names.
  curve = 2 * accounting.rdp_curve(GAUSSIAN(1.0)) + accounting.rdp_curve(GAUSSIAN(2.0))
  for other in (silos('c', {'z': 2.0}), silos('c', {'x': 2.0, 'y': 2.0}, partition='other')):
    found = book.composition(other).epsilon
    assert found == pytest.approx(float(accounting.epsilon_of_curves(curve, 5e-6)[0]))


def test_units_of_privacy(tmp_path):
  """What protects a client protects its examples; the other way round nothing is protected.

  An example that is zeroed *replaces* its client's update, which moves a sum by two clips.
  """
  book, first = Ledger(tmp_path / 'ledger'), claim('a', rate=1.0, replaced=GAUSSIAN(0.25))
  book.reserve(first)
  found = book.reserve(silos('b', {'x': 1.0}))
  both = dp_accounting.ComposedDpEvent([GAUSSIAN(0.25), GAUSSIAN(1.0)])
  assert found.epsilon == pytest.approx(accounting.pld_epsilon(both, 5e-6))
  assert found.epsilon > accounting.pld_epsilon(first.events[''], 5e-6) + 1
  assert book.composition(claim('c')).epsilon == math.inf
  with pytest.raises(BudgetError, match='epsilon = inf'):
    book.reserve(claim('c'), epsilon=100.0)


def test_the_order_of_runs_does_not_decide_what_the_budget_allows(tmp_path):
  """A run that protects examples ends the guarantee of the clients of an earlier one."""
  of_clients = claim('a', rate=1.0, z=4.0, replaced=GAUSSIAN(2.0))
  of_examples = silos('b', {'x': 4.0})
  opted_out = claim('c', unprotected='half')
  for first, second in (
    (of_clients, of_examples), (of_examples, of_clients),
    (of_clients, opted_out), (opted_out, of_clients),
  ):  # fmt: skip
    book = Ledger(tmp_path / f'{first.run}{second.run}')
    book.reserve(first, epsilon=1000.0)
    with pytest.raises(BudgetError, match='would be passed: with this run it is epsilon'):
      book.reserve(second, epsilon=1000.0)
    found = book.reserve(second)
    assert found.largest_epsilon == math.inf
    if second is not of_clients:
      assert found.epsilon < 1000
      assert '; inf for those whom another of the runs protects' in str(found)
  # Of silos, the most affected ones of either cut.
  book = Ledger(tmp_path / 'silos')
  book.reserve(silos('a', {'x': 0.5}, partition='own'))
  found = book.reserve(silos('b', {'x': 8.0, 'y': 0.5}))
  assert math.isfinite(found.largest_epsilon) and found.largest_epsilon >= found.epsilon


def test_many_silos_are_composed_one_by_one_only_where_it_matters(tmp_path, monkeypatch):
  """Not to write down what was spent, nor for other cuts of which no silo is worse off."""
  composed, compose = [], ledger.compose
  monkeypatch.setattr(ledger, 'compose', lambda claims: composed.append(claims) or compose(claims))
  book, noise = Ledger(tmp_path / 'ledger'), {'x': 1.0, 'y': 2.0}
  for seed in 'abc':
    book.reserve(silos(seed, noise, partition=seed))
  assert [len(claims[0].events) for claims in composed] == [2, 2, 1, 2, 1, 1]
  composed.clear()
  book.record(silos('c', noise, partition='c'), ended=True)
  assert not composed
  worse = book.composition(silos('d', {'x': 4.0}, partition='d'))
  assert worse.largest_epsilon == worse.epsilon
  assert [len(claims[0].events) for claims in composed] == [1, 1, 1, 1]


def test_runs_on_other_data_are_none_of_each_other(tmp_path):
  """A run on the data of two others, whose clients have nothing in common, is beside both."""
  book = Ledger(tmp_path / 'ledger')
  book.reserve(claim('a', data=('one',), partition='one', replaced=GAUSSIAN(1.0)))
  book.reserve(claim('b', data=('two',), partition='two', replaced=GAUSSIAN(1.0)))
  found = book.reserve(silos('c', {'x': 1.0}, data=('one', 'two')))
  assert math.isfinite(found.epsilon) and found.largest_epsilon == math.inf


def test_the_worst_of_all_whom_other_runs_protect_counts(tmp_path):
  """Whichever of them stands first; and of the examples of another cut, in silos of equal names."""
  of_clients = claim('a', rate=1.0, z=4.0, replaced=GAUSSIAN(2.0))
  elsewhere = silos('d', {'y': 8.0}, partition='own')
  for order in ((of_clients, elsewhere), (elsewhere, of_clients)):
    book = Ledger(tmp_path / order[0].run)
    for other in order:
      book.reserve(other)
    found = book.composition(silos('b', {'x': 4.0}))
    assert found.epsilon < found.largest_epsilon == math.inf
  # An example of the other cut may have been in the worst silo of both runs.
  book, first = Ledger(tmp_path / 'cuts'), silos('a', {'x': 1.0, 'y': 8.0})
  book.reserve(silos('b', {'x': 8.0, 'y': 1.0}))
  other = silos('c', {'x': 4.0, 'y': 4.0}, partition='other')
  book.reserve(other)
  found = book.reserve(first)
  assert found.epsilon < found.largest_epsilon == book.composition(other).epsilon


def test_an_example_beside_runs_whose_replacement_is_not_known():
  """As of lines of earlier versions, and of clients who opted out."""
  example = silos('b', {'x': 1.0})
  assert ledger.compose([example, claim('a')]).epsilon == math.inf
  known = claim('a', replaced=GAUSSIAN(1.0))
  assert ledger.compose([example, known]).epsilon < 20
  some = dataclasses.replace(known, unprotected='half')
  assert ledger.compose([example, some]).epsilon == math.inf


@pytest.mark.parametrize('q', [0.01, 0.1, 0.5])
@pytest.mark.parametrize('z', [0.5, 1.0, 3.0])
def test_what_is_replaced_in_a_poisson_sample(q, z):
  """Renyi's curve, of known participants, is above the tight loss distribution's guarantee."""
  sampled = dp_accounting.PoissonSampledDpEvent(q, GAUSSIAN(z / 2))
  replaced = events_lib.ReplacedDpEvent(dp_accounting.SelfComposedDpEvent(sampled, 20))
  tight = accounting.pld_epsilon(replaced, 1e-5)
  assert tight == accounting.pld_epsilon(replaced.event, 1e-5, events_lib.Adjacency.REPLACE_ONE)
  zeroed = dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(q, GAUSSIAN(z)), 20
  )
  assert accounting.pld_epsilon(zeroed, 1e-5) < tight
  assert tight <= accounting.rdp_loss(replaced, 1e-5).epsilon


def test_clients_who_opted_out_of_one_run_are_not_protected_by_all(tmp_path):
  some = claim('a', unprotected='half')
  assert math.isfinite(ledger.compose([some, claim('b')]).epsilon)
  assert math.isfinite(ledger.compose([some, claim('b', unprotected='half')]).epsilon)
  assert ledger.compose([claim('b'), some]).epsilon == math.inf
  assert ledger.compose([some, claim('b', unprotected='others')]).epsilon == math.inf


def test_clients_of_another_partition_are_other_clients(tmp_path):
  book = Ledger(tmp_path / 'ledger')
  book.reserve(claim('a'))
  with pytest.raises(ValueError, match='cut the same data into other clients'):
    book.reserve(claim('b', partition='other'))


def test_relations_do_not_mix(tmp_path):
  book = Ledger(tmp_path / 'ledger')
  book.reserve(claim('a'))
  fixed = dp_accounting.SampledWithoutReplacementDpEvent(100, 10, GAUSSIAN(1.0))
  other = dataclasses.replace(claim('b', events={'': fixed}), relation='replace-one')
  with pytest.raises(ValueError, match='have no common epsilon'):
    book.reserve(other)


EVENTS = [
  dp_accounting.NoOpDpEvent(),
  dp_accounting.NonPrivateDpEvent(),
  dp_accounting.ComposedDpEvent([
    dp_accounting.SelfComposedDpEvent(GAUSSIAN(0.1 + 0.2), 3),
    dp_accounting.PoissonSampledDpEvent(1 / 3, GAUSSIAN(2.0)),
  ]),
  dp_accounting.dp_event.RepeatAndSelectDpEvent(event=GAUSSIAN(4.0), mean=2.0, shape=0.0),
  dp_accounting.SampledWithoutReplacementDpEvent(10, 2, GAUSSIAN(1.0)),
  events_lib.FailingDpEvent(1e-9, GAUSSIAN(1.0)),
  events_lib.BallsInBinsDpEvent(3, GAUSSIAN(1.0)),
  events_lib.ReplacedDpEvent(GAUSSIAN(1.0)),
]  # fmt: skip


@pytest.mark.parametrize('event', EVENTS, ids=lambda e: type(e).__name__)
def test_events_survive_the_file_exactly(event):
  one = claim('a', events={'x': event, 'y': event, 'z': GAUSSIAN(1.0)})
  line = json.loads(json.dumps(one.to_json()))
  assert Claim.from_json(line) == one
  assert len(line['events']) == 2


def test_an_event_without_a_form_is_refused():
  with pytest.raises(ValueError, match='no form for the event UnsupportedDpEvent'):
    claim('a', events={'': dp_accounting.UnsupportedDpEvent()}).to_json()
  with pytest.raises(ValueError, match='float32'):
    claim('a', events={'': GAUSSIAN(np.float32(1.0))})


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path):
  path = tmp_path / 'ledger'
  book = Ledger(path)
  book.reserve(claim('a'))
  book.reserve(claim('b'))
  whole = path.read_bytes()
  for cut in (2, 20, len(whole) // 3):
    path.write_bytes(whole[:-cut])
    assert book.composition(claim('c')).runs == 2
    assert book.reserve(claim('c')).runs == 2
  path.write_bytes(whole.replace(b'"rounds"', b'"rounds', 1))
  with pytest.raises(ValueError, match='line 1 cannot be read'):
    book.reserve(claim('d'))


def test_a_last_line_that_lacks_its_end_alone_counts(tmp_path):
  """As some editors leave it."""
  path = tmp_path / 'ledger'
  book = Ledger(path)
  book.record(claim('a'))
  book.record(claim('b'), ended=True)
  whole = path.read_bytes()
  path.write_bytes(whole[:-1])
  assert book.composition(claim('c')).runs == 3
  assert book.reserve(claim('c')).runs == 3
  assert path.read_bytes().startswith(whole)
  assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize('content', ['{"config": {}}', 'a,b', '\x00\x00', '# notes\nmore'])
def test_a_file_that_is_no_ledger_is_left_as_it_is(tmp_path, content):
  """Also where it is one line without an end, as `json.dump` writes."""
  path = tmp_path / 'notes'
  path.write_text(content)
  for write in (Ledger(path).reserve, Ledger(path).record):
    with pytest.raises(ValueError, match=f'--ledger={path}'):
      write(claim('a'))
  assert path.read_text() == content


def _reserve(path, run, budget):
  try:
    Ledger(path).reserve(claim(run), epsilon=budget)
    return True
  except BudgetError:
    return False


@pytest.mark.slow
def test_many_writers_do_not_pass_the_budget_together(tmp_path):
  budget = _same_steps(5) * 1.0001
  with multiprocessing.get_context('fork').Pool(4) as pool:
    arguments = [(tmp_path / 'ledger', str(i), budget) for i in range(12)]
    taken = pool.starmap(_reserve, arguments)
  assert sum(taken) == 5
  assert len((tmp_path / 'ledger').read_text().splitlines()) == 5


def test_claims_are_checked():
  with pytest.raises(ValueError, match='clients or examples'):
    claim('a', unit='none')
  with pytest.raises(ValueError, match='checksums'):
    claim('a', data=())
  with pytest.raises(ValueError, match='delta'):
    claim('a', delta=0.0)
  assert ledger.RESERVED != ledger.SPENT
