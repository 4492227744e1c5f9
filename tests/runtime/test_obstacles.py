"""What XLA refuses in words that name no op goes to the host alone."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime

_MATRIX, _VECTOR = tff.TensorType(np.float32, [3, 4]), tff.TensorType(np.float32, [4])


@pytest.mark.parametrize('pivoting', [True, False])
def test_solving_with_pivots_leaves_the_other_ops_compiled(pivoting):
  @tff.tensorflow.computation(_MATRIX, _VECTOR)
  def solve(diagonals, right):
    return tf.linalg.tridiagonal_solve(diagonals, tf.sin(right), partial_pivoting=pivoting)

  @tff.tensorflow.computation(_VECTOR)
  def scale(x):
    return tf.exp(x) * 2.0

  @tff.federated_computation(
    tff.FederatedType(_MATRIX, tff.CLIENTS), tff.FederatedType(_VECTOR, tff.CLIENTS)
  )
  def program(diagonals, right):
    solved = tff.federated_map(solve, (diagonals, right))
    return tff.federated_sum(tff.federated_map(scale, solved)), tff.federated_max(right)

  diagonals = np.random.default_rng(5).uniform(1, 2, [2, 3, 4]).astype(np.float32)
  diagonals[:, 1] += 4.0
  clients = [*diagonals], [np.float32([1, 2, 3, 4])] * 2
  expected = runtime.XlaContext(compiled=False).invoke(program, clients)
  context = runtime.XlaContext()
  found = context.invoke(program, clients)
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5)
  explained = context.explain(program)
  assert explained.is_compiled != pivoting
  if pivoting:
    (on_host,) = [part for part in explained.parts if part.how != 'compiled']
    assert (on_host.how, on_host.place) == ('on the host', 'clients')
    assert 'TridiagonalSolve with partial_pivoting=True' in on_host.reasons[0]
    assert {part.place for part in explained.parts if part.how == 'compiled'} == {
      'clients',
      'aggregation',
    }


def test_a_cached_data_set_beside_strings_is_compiled():
  """A cache has a string, the name of a file, on which no number depends."""

  @tff.tensorflow.computation(tff.SequenceType(np.float32))
  def total(numbers):
    cached = numbers.map(lambda x: 2 * x).cache()
    return cached.repeat(2).reduce(tf.constant(0.0), lambda a, b: a + b)

  @tff.tensorflow.computation(np.float32)
  def in_words(number):
    return tf.strings.as_string(number, precision=1)

  @tff.federated_computation(tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS))
  def program(values):
    return tff.federated_map(in_words, tff.federated_sum(tff.federated_map(total, values)))

  context = runtime.XlaContext()
  with context:
    assert program([[1.0, 2.0], [], [4.5]]) == b'30.0'
  how = {part.place: part.how for part in context.explain(program).parts}
  assert how['clients'] == 'compiled'
  assert how['server'] == 'on the host'


@pytest.mark.parametrize('name', ['', 'file'])
def test_a_cache_in_a_file_is_read_by_whoever_comes_next(name, tmp_path):
  """As on TFF's own runtime; one without a name is the data set's own."""

  @tff.tensorflow.computation(tff.SequenceType(np.float32))
  def total(numbers):
    cached = numbers.cache(str(tmp_path / name) if name else '')
    return cached.reduce(tf.constant(0.0), lambda a, b: a + b)

  context = runtime.XlaContext()
  with context:
    assert [total([1.0, 2.0]), total([4.5])] == ([3.0, 3.0] if name else [3.0, 4.5])
  assert context.explain(total).is_compiled != any(tmp_path.iterdir())


def test_a_result_that_no_intrinsic_gives_is_named():
  @tff.tensorflow.computation(np.int32)
  def numbers(count):
    return tf.range(count)

  reasons = str(runtime.XlaContext().explain(numbers))
  assert "of a computation's result has the shape" in reasons and 'None' not in reasons.replace(
    '(None,)', ''
  )
