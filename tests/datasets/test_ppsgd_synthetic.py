import numpy as np
import pytest

import datasets
from datasets import ppsgd_synthetic


def _load(seed=0, **options):
  return datasets.load_dataset(
    'ppsgd_synthetic', seed=seed, **{'num_clients': 50, 'examples_per_client': 200, **options}
  )


def test_parameters_differ_in_the_last_coordinates_only():
  theta = _load(dimension=20, local_deviation=0.1).extras['theta_star']
  assert theta.shape == (50, 20)
  np.testing.assert_array_equal(theta[:, :15], np.tile(theta[0, :15], (50, 1)))
  assert np.std(theta[:, 15:], axis=0).mean() == pytest.approx(0.1, rel=0.2)
  assert np.std(_load(dimension=2000, num_clients=2).extras['theta_star'][0]) == pytest.approx(
    10, rel=0.05
  )


def test_spectrum_and_labels():
  dataset = _load(dimension=10, label_noise=0.5)
  x = dataset.train.x.reshape(-1, 10)
  np.testing.assert_allclose(x.var(axis=0), 1 / np.arange(1, 11), rtol=0.05)
  residual = dataset.train.y - np.einsum(
    'knd,kd->kn', dataset.train.x, dataset.extras['theta_star']
  )
  assert residual.std() == pytest.approx(0.5, rel=0.03)
  assert dataset.test.x.shape == (50, 10, 10)


def test_how_far_labels_are_from_their_mean_is_known():
  draws = [_load(seed=seed, num_clients=2, label_noise=9.0) for seed in range(60)]
  seen = np.sqrt(np.mean([dataset.train.y.var() for dataset in draws]))
  assert draws[0].task.label_deviation == pytest.approx(seen, rel=0.1)


def test_excess_risk():
  theta = np.array([[1.0, 2.0], [3.0, 4.0]])
  variances = np.array([1.0, 0.5])
  assert ppsgd_synthetic.excess_risk(theta, theta, variances) == 0
  # (1 + 4/2 + 9 + 16/2) / 2 users, and / 2 coordinates.
  assert ppsgd_synthetic.excess_risk(np.zeros(2), theta, variances) == 10
  assert ppsgd_synthetic.excess_risk(np.zeros(2), theta, variances, per_coordinate=True) == 5


def test_excess_risk_is_what_test_examples_show():
  dataset = _load(dimension=5, label_noise=0.0, examples_per_client=4000)
  error = np.einsum('knd,kd->kn', dataset.train.x, dataset.extras['theta_star'])
  expected = ppsgd_synthetic.excess_risk(
    np.zeros(5), dataset.extras['theta_star'], dataset.extras['feature_variances']
  )
  assert np.mean(error**2) == pytest.approx(expected, rel=0.02)


def test_seed_decides():
  first, again, other = (_load(seed=s, dimension=5) for s in (0, 0, 1))
  np.testing.assert_array_equal(first.train.x, again.train.x)
  assert not np.array_equal(first.train.y, other.train.y)


@pytest.mark.parametrize(
  'options', [{'dimension': 0}, {'local_coordinates': 101}, {'label_noise': -1}]
)
def test_impossible_options(options):
  with pytest.raises(ValueError, match=next(iter(options))):
    _load(**options)


def test_examples_are_fresh_in_every_round():
  stream = _load(dimension=5, examples_per_client=None, examples_per_round=400).train
  again = _load(dimension=5, examples_per_client=None, examples_per_round=400).train
  assert isinstance(stream, datasets.ClientStream)
  first, second = stream.draw(0), stream.draw(1)
  assert first.x.shape == (50, 400, 5)
  assert not np.any(first.x == second.x)
  np.testing.assert_array_equal(second.x, again.draw(1).x)
  np.testing.assert_array_equal(second.y, again.draw(1).y)
  np.testing.assert_allclose(second.x.reshape(-1, 5).var(axis=0), 1 / np.arange(1, 6), rtol=0.05)
  residual = second.y - np.einsum('knd,kd->kn', second.x, _load(dimension=5).extras['theta_star'])
  assert residual.std() == pytest.approx(0.01, rel=0.03)


@pytest.mark.parametrize('dimension', [1, 2, 7, 100])
def test_quadrature_has_the_moments_of_the_features(dimension):
  variances = np.linspace(0.5, 3.0, dimension)
  points = ppsgd_synthetic.quadrature(variances)
  assert points.shape == (dimension + 1, dimension)
  np.testing.assert_allclose(points.mean(axis=0), 0.0, atol=1e-12)
  np.testing.assert_allclose(points.T @ points / len(points), np.diag(variances), atol=1e-12)


def test_squared_error_on_the_points_is_the_excess_risk():
  """For any linear model, and with an intercept its square is added."""
  dataset = _load(dimension=6, local_deviation=1.0)
  theta, variances = dataset.extras['theta_star'], dataset.extras['feature_variances']
  rng = np.random.default_rng(0)
  own = theta + rng.normal(size=theta.shape)
  for intercept in (0.0, 1.5):
    predictions = np.einsum('knd,kd->kn', dataset.excess_risk.x, own) + intercept
    error = np.mean((predictions - dataset.excess_risk.y) ** 2)
    expected = ppsgd_synthetic.excess_risk(own, theta, variances) + intercept**2
    assert error == pytest.approx(expected, rel=1e-5)
