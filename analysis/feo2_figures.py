"""Figures 1 to 4 of the FeO2 paper, from its closed forms.

The paper does not print the figures' parameters. It says that FeO2 takes about 17 % off
FedAvg's least personal loss, and that opting out takes off about 2.4 % with FedAvg and 1.2 %
with FeO2. No parameters give these three with section 4.1's noise, which stays in the sum
over private clients when one of them leaves: with FedAvg the noise in theta is then the
same, and opting out gains nothing. With a gamma^2 that stays they come out, and
`FIGURE_PROBLEM` is chosen so (17.1, 2.5 and 1.1); both are drawn. A client's own noise may be
in theta, as the algorithm runs, or not, as in equation 39: numbers are given for all four
readings.
"""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from analysis.federated_linear_regression import (
  LinearRegression,
  like_point_estimation,
  orthogonal_features,
)
from analysis.federated_point_estimation import (
  KEPT_NOISES,
  PointEstimation,
  incentive,
  opt_out,
  search_incentive,
)
from analysis.figures import Figure, Panel

FIGURE_PROBLEM = PointEstimation(
  num_clients=10,
  num_private=9,
  sampling_variance=0.5,
  client_variance=0.25,
  privacy_variance=1.0,
)
_SECTION_4_4, _APPENDIX_A_5 = (0.17, 0.024, 0.012), (0.18, 0.025, 0.012)
_OPTED_OUT = {
  'sum': 'opted out, noise of the sum kept',
  'mean': 'opted out, noise of the mean kept',
}
_BY_RATIO, _BY_OPTING_OUT = 'FeO2 takes off', 'opting out takes off with {}'


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
      Panel(title='noise of privacy', x_label='ratio r (no unit)', curves=noises),
      Panel(title="spread of the clients' estimates", x_label='ratio r (no unit)', curves=spreads),
    ),
    y_label='server variance (squared unit of the data)',
    numbers={
      'ratio of least variance less r*': float(ratios[np.argmin(variances)]) - ratio,
      'server variance of FeO2': float(problem.server_variance(ratio)),
      'server variance of FedAvg': float(problem.server_variance(1.0)),
    },
  )


def personal_risk_against_lambda(problem: PointEstimation = FIGURE_PROBLEM) -> Figure:
  """Figure 2: the personal estimate's risk against lambda.

  With FedAvg (r = 1) and FeO2 (r = r*), for a client that stays private or opts out; once
  with section 4.1's noise, which stays in the sum, and once with a gamma^2 that stays.
  """
  lambdas = np.linspace(0.0, 10.0, 501)

  def curves(ratio_of):
    named = {
      'private': problem.personal_risk(
        lambdas, private=True, ratio=ratio_of(problem), own_noise=False
      )
    }
    for kept, label in _OPTED_OUT.items():
      case = opt_out(problem, noise_kept=kept)
      named[label] = case.personal_risk(lambdas, private=False, ratio=ratio_of(case))
    return {label: (lambdas, risk) for label, risk in named.items()}

  cases = {}
  for reading, kept, own_noise in readings():
    found = incentive(problem, noise_kept=kept, own_noise=own_noise)
    cases[reading] = {
      _BY_RATIO: found.by_ratio,
      _BY_OPTING_OUT.format('FedAvg'): found.by_opting_out_fedavg,
      _BY_OPTING_OUT.format('FeO2'): found.by_opting_out_feo2,
      **_nearest(_SECTION_4_4, kept, own_noise),
    }
  return Figure(
    panels=(
      Panel(title='FedAvg', x_label='λ (no unit)', curves=curves(lambda case: 1.0)),
      Panel(title='FeO2', x_label='λ (no unit)', curves=curves(lambda case: case.optimal_ratio)),
    ),
    y_label='personal risk (squared unit of the data)',
    cases=cases,
  )


def readings() -> Iterator[tuple[str, str, bool]]:
  """(name, which noise is kept, whether a client's own noise is in theta): what may be meant."""
  for kept, own_noise in itertools.product(KEPT_NOISES, (False, True)):
    own = 'own noise in theta, as run' if own_noise else 'own noise not in theta'
    yield f'noise of the {kept} kept, {own}', kept, own_noise


def _nearest(target: tuple[float, float, float], kept: str, own_noise: bool) -> dict[str, float]:
  """How near any parameters come to all three percentages, in the claim's margins, and which."""
  nearest, found = search_incentive(target, noise_kept=kept, own_noise=own_noise)
  return {
    'nearest of all parameters, in margins': found.distance(*target),
    'its N': nearest.num_clients,
    'of which private': nearest.num_private,
    'its tau^2 / alpha^2': nearest.client_variance / nearest.sampling_variance,
    'its gamma^2 / alpha^2': nearest.privacy_variance / nearest.sampling_variance,
  }


def regression_problems(
  problem: PointEstimation = FIGURE_PROBLEM, *, rows: int = 10, dimension: int = 4, seed: int = 0
) -> dict[str, LinearRegression]:
  """Figure 3's problems: like Figure 2's, with features of each client's own.

  Orthogonal ones, F^T F = n_s I as the paper assumes, and Gaussian ones.
  """
  generator = np.random.default_rng(seed)
  shape = dict(num_clients=problem.num_clients, rows=rows, dimension=dimension)
  orthogonal = orthogonal_features(generator, **shape, scale=float(rows))
  gaussian = generator.normal(size=(problem.num_clients, rows, dimension))
  return {
    'orthogonal features': like_point_estimation(problem, orthogonal),
    'Gaussian features': like_point_estimation(problem, gaussian),
  }


def regression_risk_against_lambda() -> Figure:
  """Figure 3: linear regression, mean risk per coordinate over the private clients.

  Each of them stays private, or opts out while the others stay; both noises as in Figure 2.
  """
  lambdas = np.linspace(0.0, 10.0, 501)

  def mean_risk(of_clients, ratio_of, own_noise=False):
    # The risk is a parabola in 1 / (1 + lambda), which three points tell.
    points = np.array([0.0, 1.0, 9.0])
    risks = [
      [case.personal_risk(client, x, ratio=ratio_of(case), own_noise=own_noise) for x in points]
      for case, client in of_clients
    ]
    parabola = np.polyfit(1 / (1 + points), np.mean(risks, axis=0), 2)
    return np.polyval(parabola, 1 / (1 + lambdas))

  cases: dict[str, dict[str, float]] = {}
  panels = []
  ratios = {'FedAvg': lambda case: 1.0, 'FeO2': lambda case: case.best_ratio}
  for kind, problem in regression_problems().items():
    clients = range(problem.num_private)
    private = [(problem, j) for j in clients]
    after = {
      kept: [(problem.opted_out(j, noise_kept=kept), problem.num_clients - 1) for j in clients]
      for kept in KEPT_NOISES
    }
    for title, ratio_of in ratios.items():
      curves = {'private': private, **{_OPTED_OUT[kept]: after[kept] for kept in KEPT_NOISES}}
      panels.append(
        Panel(
          title=f'{title}, {kind}', x_label='λ (no unit)',
          curves={label: (lambdas, mean_risk(who, ratio_of)) for label, who in curves.items()},
        )
      )  # fmt: skip
    for reading, kept, own_noise in readings():
      least = {t: mean_risk(private, ratio, own_noise).min() for t, ratio in ratios.items()}
      later = {t: mean_risk(after[kept], ratio, own_noise).min() for t, ratio in ratios.items()}
      # What takes off nothing is a rounding error of the parabola.
      cases[f'{kind}, {reading}'] = {
        _BY_RATIO: float(1 - least['FeO2'] / least['FedAvg']),
        **{_BY_OPTING_OUT.format(t): round(float(1 - later[t] / least[t]), 12) for t in ratios},
        # Orthogonal features are point estimation in every coordinate.
        **(_nearest(_APPENDIX_A_5, kept, own_noise) if 'orthogonal' in kind else {}),
      }
  return Figure(
    panels=tuple(panels), y_label='personal risk per coordinate (squared unit)', cases=cases
  )


def server_variance_against_opt_out(num_clients: int = 100) -> Figure:
  """Figure 4: sigma_s^2 against the fraction who opt out, for FedAvg and the best FeO2.

  Lemma 2 has the two meet where all opt out, which takes a gamma^2 that stays; with section
  4.1's noise FedAvg's variance stays as it is for as long as one client is private.
  """
  private = np.arange(num_clients, -1, -1)
  cases = [
    dataclasses.replace(FIGURE_PROBLEM, num_clients=num_clients, num_private=int(n))
    for n in private
  ]
  fractions = np.array([case.opt_out_fraction for case in cases])
  # Section 4.1's gamma^2 grows as 1 / N_p^2; with nobody private there is none.
  kept = [
    dataclasses.replace(
      case, privacy_variance=FIGURE_PROBLEM.privacy_variance * (num_clients / case.num_private) ** 2
    )
    for case in cases[:-1]
  ]
  panels, of_panel = [], {'γ² stays': cases, 'noise of the sum kept (section 4.1)': kept}
  for title, drawn in of_panel.items():
    curves = {
      'FedAvg (r = 1)': np.array([case.fedavg_server_variance for case in drawn]),
      'FeO2 (r = r*)': np.array([case.optimal_server_variance for case in drawn]),
    }
    panels.append(
      Panel(
        title=title,
        x_label='opted out (fraction of the clients)',
        curves={label: (fractions[: len(drawn)], y) for label, y in curves.items()},
      )
    )
  fedavg, feo2 = (y for _, y in panels[0].curves.values())
  return Figure(
    panels=tuple(panels),
    y_label='server variance (squared unit of the data)',
    numbers={
      'gap where nobody opts out': float(fedavg[0] - feo2[0]),
      'gap where all opt out': float(fedavg[-1] - feo2[-1]),
      'server variance of FedAvg, 5 % opted out': float(fedavg[num_clients // 20]),
      'server variance of FeO2, 5 % opted out': float(feo2[num_clients // 20]),
    },
  )
