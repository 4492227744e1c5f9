# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Personalisation improves privacy-accuracy trade-offs
#
# PPSGD (Bietti et al., ICML 2022): each user predicts with w + theta_i, where w is shared under
# client-level privacy and theta_i never leaves the user. a is the step size of the shared part
# over that of the personal part: a = 0 is local learning, a = infinity global learning. The
# more noise, the more personal is best. The paper's synthetic problem (figure 1 a) at a small
# size: every user has ten fresh examples in each round, and the excess risk is known in closed
# form. `make reproduce RECIPE=ppsgd_fig1a_synthetic` makes the figure itself.

# %% tags=["parameters"]
ROUNDS = 200
ALPHAS = '0,0.3,1,3,inf'
NOISES = '1,10,100'
USERS = 200

# %%
folder = environment.experiment(
  '--method=ppsgd',
  '--dataset=ppsgd_synthetic',
  f'--dataset_option=num_clients={USERS}',
  '--dataset_option=dimension=20',
  '--dataset_option=local_deviation=0.1',
  '--model=linear_regression',
  '--model_option=bias=false',
  '--privacy=client',
  '--delta=1e-4',
  '--clipping_norm=10',
  '--batch_size=10',
  '--client_learning_rate=0.1',
  '--personal_layers=all',
  f'--rounds={ROUNDS}',
  '--eval_every=20',
  f'--sweep=noise_multiplier={NOISES}',
  f'--sweep=personalization_alpha={ALPHAS}',
  '--select_on=nothing',
)

# %% [markdown]
# ## Excess risk round by round
#
# Epsilon grows with the rounds; the titles have its last value. a = 0 sends nothing, and costs
# nothing. All runs have one step size here; the paper takes the best one at each point.

# %%
from matplotlib import pyplot as plt

runs = [run.parent for run in sorted((folder / 'runs').glob('*/config.json'))]
configs = {run: environment.read_json(run, 'config')['config'] for run in runs}
noises = sorted({config['noise_multiplier'] for config in configs.values()})


def printed(epsilons):
  from privacy.rounding import rounded_up

  return [rounded_up(epsilon) for epsilon in epsilons]


spent = {run: environment.curve(run, 'epsilon', split='round').iloc[-1] for run in runs}
largest = [max(spent[run] for run in runs if configs[run]['noise_multiplier'] == z) for z in noises]
titles = environment.call(printed, epsilons=largest)
figure, panels = plt.subplots(
  1, len(noises), sharey=True, squeeze=False, figsize=(3.2 * len(noises), 3.4)
)
for axes, noise, epsilon in zip(panels[0], noises, titles):
  chosen = [run for run in runs if configs[run]['noise_multiplier'] == noise]
  alphas = {run: float(configs[run]['personalization_alpha']) for run in chosen}
  for run in sorted(chosen, key=lambda run: alphas[run]):
    axes.plot(environment.curve(run, 'excess_risk'), label=f'a = {alphas[run]:g}')
  axes.set_yscale('log')
  delta = configs[chosen[0]]['delta']
  axes.set_title(f'noise multiplier {noise:g},\nepsilon {epsilon} at delta {delta:g}')
  axes.set_xlabel('rounds')
panels[0, 0].set_ylabel('excess risk')
panels[0, -1].legend()
plt.show()
