"""Figures 1 to 4 of the FeO2 paper, from its closed forms.

The paper does not print the figures' parameters. `FIGURE_PROBLEM` is chosen so that the
three statements of section 4.4 come out: FeO2 takes about 17 % off FedAvg's least
personal loss, opting out about 2.4 % with FedAvg and 1.2 % with FeO2 (17.1, 2.5 and 1.1
here, with the privacy noise of the mean unchanged when a client opts out).
"""

import dataclasses

import numpy as np

from analysis.federated_point_estimation import PointEstimation, opt_out
from analysis.figures import Figure, Panel

FIGURE_PROBLEM = PointEstimation(
  num_clients=10,
  num_private=9,
  sampling_variance=0.5,
  client_variance=0.25,
  privacy_variance=1.0,
)


def server_variance_against_ratio(problem: PointEstimation = FIGURE_PROBLEM) -> Figure:
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
  ratio = problem.optimal_ratio
  _, variances = noises[f'γ² = {problem.privacy_variance:g}']
  return Figure(
    panels=(
      Panel(title='noise of privacy', x_label='ratio r', curves=noises),
      Panel(title="spread of the clients' estimates", x_label='ratio r', curves=spreads),
    ),
    y_label='server variance',
    numbers={
      'ratio of least variance less r*': float(ratios[np.argmin(variances)]) - ratio,
      'server variance of FeO2': float(problem.server_variance(ratio)),
      'server variance of FedAvg': float(problem.server_variance(1.0)),
    },
  )


def personal_risk_against_lambda(problem: PointEstimation = FIGURE_PROBLEM) -> Figure:
  """Figures 2 and 3: the personal estimate's risk against lambda, per coordinate.

  With FedAvg (r = 1, left) and FeO2 (r = r*, right), for a client that stays private or
  opts out. Linear regression with F^T F = n_s I has the same curves in every coordinate.
  """
  lambdas = np.linspace(0.0, 10.0, 501)
  without = opt_out(problem)

  def panel(title, ratio, ratio_without):
    stays = problem.personal_risk(lambdas, private=True, ratio=ratio, own_noise=False)
    leaves = without.personal_risk(lambdas, private=False, ratio=ratio_without)
    return Panel(
      title=title, x_label='λ', curves={'private': (lambdas, stays), 'opted out': (lambdas, leaves)}
    )

  fedavg = panel('FedAvg', 1.0, 1.0)
  feo2 = panel('FeO2', problem.optimal_ratio, without.optimal_ratio)
  least = [{label: float(y.min()) for label, (_, y) in p.curves.items()} for p in (fedavg, feo2)]
  return Figure(
    panels=(fedavg, feo2),
    y_label='risk of the personal estimate',
    numbers={
      'FeO2 takes off': 1 - least[1]['private'] / least[0]['private'],
      'opting out takes off with FedAvg': 1 - least[0]['opted out'] / least[0]['private'],
      'opting out takes off with FeO2': 1 - least[1]['opted out'] / least[1]['private'],
    },
  )


def server_variance_against_opt_out(num_clients: int = 100) -> Figure:
  """Figure 4: sigma_s^2 against the fraction who opt out, for FedAvg and the best FeO2."""
  private = np.arange(num_clients, -1, -1)
  cases = [
    dataclasses.replace(FIGURE_PROBLEM, num_clients=num_clients, num_private=int(n))
    for n in private
  ]
  fractions = np.array([case.opt_out_fraction for case in cases])
  fedavg = np.array([case.fedavg_server_variance for case in cases])
  feo2 = np.array([case.optimal_server_variance for case in cases])
  curves = {'FedAvg (r = 1)': (fractions, fedavg), 'FeO2 (r = r*)': (fractions, feo2)}
  return Figure(
    panels=(Panel(x_label='fraction opted out', curves=curves),),
    y_label='server variance',
    numbers={
      'gap where nobody opts out': float(fedavg[0] - feo2[0]),
      'gap where all opt out': float(fedavg[-1] - feo2[-1]),
      'server variance of FedAvg, 5 % opted out': float(fedavg[num_clients // 20]),
      'server variance of FeO2, 5 % opted out': float(feo2[num_clients // 20]),
    },
  )
