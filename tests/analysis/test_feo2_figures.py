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


def test_figure_2_gives_the_percentages_of_section_4_4():
  numbers = feo2_figures.personal_risk_against_lambda().numbers
  assert numbers['FeO2 takes off'] == pytest.approx(0.17, abs=0.005)
  assert numbers['opting out takes off with FedAvg'] == pytest.approx(0.024, abs=0.002)
  assert numbers['opting out takes off with FeO2'] == pytest.approx(0.012, abs=0.002)


def test_figure_4_meets_at_both_ends():
  (panel,) = feo2_figures.server_variance_against_opt_out().panels
  fedavg, feo2 = panel.curves.values()
  assert fedavg[1][0] == pytest.approx(feo2[1][0])
  assert fedavg[1][-1] == pytest.approx(feo2[1][-1])
  assert np.all(feo2[1][1:-1] < fedavg[1][1:-1])
