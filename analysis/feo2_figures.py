"""Figures 1 to 4 of the FeO2 paper, from its closed forms.

The paper does not print the figures' parameters. `FIGURE_PROBLEM` is chosen so that the
three statements of section 4.4 come out: FeO2 takes about 17 % off FedAvg's least
personal loss, opting out about 2.4 % with FedAvg and 1.2 % with FeO2 (17.1, 2.5 and 1.1
here, with the privacy noise of the mean unchanged when a client opts out).
"""

import dataclasses
import pathlib
from collections.abc import Mapping

import numpy as np
from matplotlib import figure

from analysis.federated_point_estimation import PointEstimation, opt_out

FIGURE_PROBLEM = PointEstimation(
  num_clients=10,
  num_private=9,
  sampling_variance=0.5,
  client_variance=0.25,
  privacy_variance=1.0,
)

# Label -> (x, y).
Curves = Mapping[str, tuple[np.ndarray, np.ndarray]]


def server_variance_against_ratio(
  problem: PointEstimation = FIGURE_PROBLEM,
) -> tuple[Curves, Curves]:
  """Figure 1: sigma_s^2 against r, for three gamma^2 (left) and three sigma_c^2 (right)."""
  ratios = np.linspace(0.0, 1.0, 201)
  noises, spreads = {}, {}
  for factor in (0.5, 1.0, 2.0):
    gamma = factor * problem.privacy_variance
    case = dataclasses.replace(problem, privacy_variance=gamma)
    noises[f'γ² = {gamma:g}'] = ratios, case.server_variance(ratios)
    spread = dataclasses.replace(problem, client_variance=factor * problem.client_variance)
    label = f'σ_c² = {spread.estimate_variance:g}'
    spreads[label] = ratios, spread.server_variance(ratios)
  return noises, spreads


def personal_risk_against_lambda(
  problem: PointEstimation = FIGURE_PROBLEM,
) -> tuple[Curves, Curves]:
  """Figures 2 and 3: the personal estimate's risk against lambda, per coordinate.

  With FedAvg (r = 1, left) and FeO2 (r = r*, right), for a client that stays private or
  opts out. Linear regression with F^T F = n_s I has the same curves in every coordinate.
  """
  lambdas = np.linspace(0.0, 10.0, 501)
  without = opt_out(problem)

  def curves(ratio, ratio_without):
    stays = problem.personal_risk(lambdas, private=True, ratio=ratio, own_noise=False)
    leaves = without.personal_risk(lambdas, private=False, ratio=ratio_without)
    return {'private': (lambdas, stays), 'opted out': (lambdas, leaves)}

  return curves(1.0, 1.0), curves(problem.optimal_ratio, without.optimal_ratio)


def server_variance_against_opt_out(num_clients: int = 100) -> Curves:
  """Figure 4: sigma_s^2 against the fraction who opt out, for FedAvg and the best FeO2."""
  private = np.arange(num_clients, -1, -1)
  cases = [
    dataclasses.replace(FIGURE_PROBLEM, num_clients=num_clients, num_private=int(n))
    for n in private
  ]
  fractions = np.array([case.opt_out_fraction for case in cases])
  return {
    'FedAvg (r = 1)': (fractions, np.array([c.fedavg_server_variance for c in cases])),
    'FeO2 (r = r*)': (fractions, np.array([c.optimal_server_variance for c in cases])),
  }


def draw(folder: pathlib.Path) -> list[pathlib.Path]:
  """Draws the figures as PNG files and returns their paths."""
  folder.mkdir(parents=True, exist_ok=True)
  personal = personal_risk_against_lambda()
  pages = (
    ('figure_1', server_variance_against_ratio(), 'ratio r', 'server variance'),
    ('figure_2_and_3', personal, 'λ', 'risk of the personal estimate'),
    ('figure_4', (server_variance_against_opt_out(),), 'fraction opted out', 'server variance'),
  )
  paths = []
  for name, panels, x_label, y_label in pages:
    page = figure.Figure(figsize=(4.2 * len(panels), 3.4), layout='constrained')
    for axes, curves in zip(
      np.ravel(page.subplots(1, len(panels), sharey=True)), panels, strict=True
    ):
      for (label, (x, y)), style in zip(curves.items(), ('-', '--', ':'), strict=False):
        axes.plot(x, y, style, label=label)
      axes.set_xlabel(x_label)
      axes.legend()
    page.axes[0].set_ylabel(y_label)
    paths.append(folder / f'{name}.png')
    page.savefig(paths[-1], dpi=150)
  return paths
