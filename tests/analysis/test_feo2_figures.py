"""The figures of the FeO2 paper: their shapes, and the numbers that its text reads off them."""

import numpy as np
import pytest

from analysis import feo2_figures
from analysis.federated_point_estimation import PointEstimation, incentive
from experiments.recipes import recipes


def test_figure_1_has_its_minimum_at_the_optimal_ratio():
  problem = feo2_figures.FIGURE_PROBLEM
  figure = feo2_figures.server_variance_against_ratio(problem)
  assert [len(panel.curves) for panel in figure.panels] == [3, 3]
  ratios, variances = figure.panels[0].curves['γ² = 1']
  assert ratios[np.argmin(variances)] == pytest.approx(problem.optimal_ratio, abs=0.005)


_FEDAVG, _FEO2 = 'opting out takes off with FedAvg', 'opting out takes off with FeO2'
_NEAREST = 'nearest of all parameters, in margins'


def test_figure_2_gives_the_percentages_only_with_a_noise_of_the_mean_that_stays():
  cases = feo2_figures.personal_risk_against_lambda().cases
  found = {(kept, own): cases[name] for name, kept, own in feo2_figures.readings()}
  assert len(found) == len(cases) == 4  # every reading of the noise, and of theta
  assert found['mean', False]['FeO2 takes off'] == pytest.approx(0.17, abs=0.005)
  assert found['mean', False][_FEDAVG] == pytest.approx(0.024, abs=0.002)
  assert found['mean', False][_FEO2] == pytest.approx(0.012, abs=0.002)
  assert found['mean', False][_NEAREST] < 0.1 and found['mean', True][_NEAREST] < 0.3
  # Section 4.1's noise: opting out costs, in the paper's formula for private clients.
  assert found['sum', False][_FEDAVG] == pytest.approx(-0.0248, abs=1e-4)
  assert found['sum', False][_FEO2] == pytest.approx(-0.0108, abs=1e-4)
  assert min(found['sum', own][_NEAREST] for own in (False, True)) > 7.9
  # ... and is worth next to nothing in the algorithm.
  assert found['sum', True][_FEDAVG] == pytest.approx(0.0, abs=1e-12)
  assert found['sum', True][_FEO2] == pytest.approx(0.00075, abs=1e-5)


def test_the_nearest_parameters_give_what_is_said_of_them():
  target = feo2_figures._SECTION_4_4
  cases = feo2_figures.personal_risk_against_lambda().cases
  for name, kept, own_noise in feo2_figures.readings():
    numbers = cases[name]
    there = PointEstimation(
      num_clients=int(numbers['its N']), num_private=int(numbers['of which private']),
      sampling_variance=1.0, client_variance=numbers['its tau^2 / alpha^2'],
      privacy_variance=numbers['its gamma^2 / alpha^2'],
    )  # fmt: skip
    found = incentive(there, noise_kept=kept, own_noise=own_noise)
    assert found.distance(*target) == pytest.approx(numbers[_NEAREST])


def test_the_pages_name_the_parameters_that_are_drawn():
  drawn = feo2_figures.FIGURE_PROBLEM
  said = (
    f'N = {drawn.num_clients}, N_p = {drawn.num_private}, alpha^2 = {drawn.sampling_variance:g}, '
    f'tau^2 = {drawn.client_variance:g} and gamma^2 = {drawn.privacy_variance:g}'
  )
  for name in ('feo2_fig2', 'feo2_fig3'):
    assert said in recipes.read(name).notes[0]


@pytest.mark.slow
def test_figure_3_is_linear_regression():
  figure = feo2_figures.regression_risk_against_lambda()
  like_figure_2 = feo2_figures.personal_risk_against_lambda()
  assert len(figure.panels) == 4
  by_title = {panel.title: panel.curves for panel in figure.panels}
  for panel in like_figure_2.panels:
    for label, (lambdas, risk) in panel.curves.items():
      # Orthogonal features of each client's own: point estimation in every coordinate.
      x, y = by_title[f'{panel.title}, orthogonal features'][label]
      np.testing.assert_allclose(y, np.interp(x, lambdas, risk), rtol=1e-9)
    # Other features: equation 16's covariances differ, and so does the figure.
    x, orthogonal = by_title[f'{panel.title}, orthogonal features']['private']
    _, gaussian = by_title[f'{panel.title}, Gaussian features']['private']
    assert np.max(np.abs(gaussian / orthogonal - 1)) > 0.01
  for name, _, own_noise in feo2_figures.readings():
    alike, other = (figure.cases[f'{kind} features, {name}'] for kind in ('orthogonal', 'Gaussian'))
    for number in ('FeO2 takes off', _FEDAVG, _FEO2):
      # The least of a grid of lambdas.
      assert alike[number] == pytest.approx(like_figure_2.cases[name][number], abs=1e-4)
    assert alike['FeO2 takes off'] == pytest.approx(0.182 if own_noise else 0.171, abs=0.001)
    assert abs(other['FeO2 takes off'] - alike['FeO2 takes off']) > 0.01


def test_figure_4_meets_at_both_ends():
  stays, kept = feo2_figures.server_variance_against_opt_out().panels
  fedavg, feo2 = stays.curves.values()
  assert fedavg[1][0] == pytest.approx(feo2[1][0])
  assert fedavg[1][-1] == pytest.approx(feo2[1][-1])
  assert np.all(feo2[1][1:-1] < fedavg[1][1:-1])
  # Noise that stays in the sum, be there one private client or all: (sigma_c^2 / N + gamma^2).
  fedavg, feo2 = kept.curves.values()
  np.testing.assert_allclose(fedavg[1], 0.75 / 100 + 1.0)
  assert np.all(np.diff(feo2[1]) < 0) and feo2[1][-1] < 0.01
  assert fedavg[0][-1] == 0.99
