"""The figures of the FeO2 paper: their shapes, and the numbers that its text reads off them."""

import numpy as np
import pytest

from analysis import feo2_figures


def test_figure_1_has_its_minimum_at_the_optimal_ratio():
  problem = feo2_figures.FIGURE_PROBLEM
  figure = feo2_figures.server_variance_against_ratio(problem)
  assert [len(panel.curves) for panel in figure.panels] == [3, 3]
  ratios, variances = figure.panels[0].curves['γ² = 1']
  assert ratios[np.argmin(variances)] == pytest.approx(problem.optimal_ratio, abs=0.005)


def test_figure_2_gives_the_percentages_only_with_a_noise_of_the_mean_that_stays():
  numbers = feo2_figures.personal_risk_against_lambda().numbers
  assert numbers['FeO2 takes off'] == pytest.approx(0.17, abs=0.005)
  kept = 'opting out takes off with {}, noise of the {} kept'
  assert numbers[kept.format('FedAvg', 'mean')] == pytest.approx(0.024, abs=0.002)
  assert numbers[kept.format('FeO2', 'mean')] == pytest.approx(0.012, abs=0.002)
  assert numbers['nearest to the three percentages, in margins, noise of the mean kept'] < 0.1
  # Section 4.1's noise: opting out costs, in the paper's formula for private clients.
  assert numbers[kept.format('FedAvg', 'sum')] == pytest.approx(-0.0248, abs=1e-4)
  assert numbers[kept.format('FeO2', 'sum')] == pytest.approx(-0.0108, abs=1e-4)
  assert numbers['nearest to the three percentages, in margins, noise of the sum kept'] > 7.9
  # ... and is worth next to nothing in the algorithm.
  run = 'opting out takes off with {}, as run, noise of the sum kept'
  assert numbers[run.format('FedAvg')] == pytest.approx(0.0, abs=1e-12)
  assert numbers[run.format('FeO2')] == pytest.approx(0.00075, abs=1e-5)


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
  assert figure.numbers['FeO2 takes off, orthogonal features'] == pytest.approx(0.171, abs=0.001)


def test_figure_4_meets_at_both_ends():
  (panel,) = feo2_figures.server_variance_against_opt_out().panels
  fedavg, feo2 = panel.curves.values()
  assert fedavg[1][0] == pytest.approx(feo2[1][0])
  assert fedavg[1][-1] == pytest.approx(feo2[1][-1])
  assert np.all(feo2[1][1:-1] < fedavg[1][1:-1])
