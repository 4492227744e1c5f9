"""The figures of the FeO2 paper: their shapes, and the numbers that its text reads off them."""

import numpy as np
import pytest

from analysis import feo2_figures


def test_figure_1_has_its_minimum_at_the_optimal_ratio():
  problem = feo2_figures.FIGURE_PROBLEM
  for panel in feo2_figures.server_variance_against_ratio(problem):
    assert len(panel) == 3
  ratios, variances = feo2_figures.server_variance_against_ratio(problem)[0]['γ² = 1']
  assert ratios[np.argmin(variances)] == pytest.approx(problem.optimal_ratio, abs=0.005)


def test_figure_2_gives_the_percentages_of_section_4_4():
  fedavg, feo2 = feo2_figures.personal_risk_against_lambda()
  least = {
    (name, label): y.min()
    for name, panel in (('fedavg', fedavg), ('feo2', feo2))
    for label, (_, y) in panel.items()
  }
  gain = 1 - least['feo2', 'private'] / least['fedavg', 'private']
  assert gain == pytest.approx(0.17, abs=0.005)
  for name, expected in (('fedavg', 0.024), ('feo2', 0.012)):
    gain = 1 - least[name, 'opted out'] / least[name, 'private']
    assert gain == pytest.approx(expected, abs=0.002)


def test_figure_4_meets_at_both_ends():
  fedavg, feo2 = feo2_figures.server_variance_against_opt_out().values()
  assert fedavg[1][0] == pytest.approx(feo2[1][0])
  assert fedavg[1][-1] == pytest.approx(feo2[1][-1])
  assert np.all(feo2[1][1:-1] < fedavg[1][1:-1])


def test_figures_are_drawn(tmp_path):
  paths = feo2_figures.draw(tmp_path / 'figures')
  assert [p.name for p in paths] == ['figure_1.png', 'figure_2_and_3.png', 'figure_4.png']
  assert all(p.stat().st_size > 10_000 for p in paths)
