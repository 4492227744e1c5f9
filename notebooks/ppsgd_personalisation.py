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
# size.

# %%
# An environment for the command line beside this kernel, whatever Python the kernel itself has.
import pathlib
import subprocess
import sys

REPOSITORY = ''  # Where this notebook is on its own, as on Colab: what to `git clone`.

places = [pathlib.Path.cwd(), *pathlib.Path.cwd().parents, pathlib.Path('project').absolute()]
root = next((place for place in places if (place / 'run_experiment.py').exists()), None)
if root is None:
  root = places[-1]
  subprocess.run(['git', 'clone', '--depth=1', REPOSITORY, str(root)], check=True)
sys.path.insert(0, str(root / 'notebooks'))

import environment

environment.prepare()

# %% tags=["parameters"]
ROUNDS = 200
ALPHAS = '0.1,1,10,100'
NOISES = '1,10,50'
USERS = 200

# %%
folder = environment.experiment(
  '--method=ppsgd',
  '--dataset=ppsgd_synthetic',
  f'--dataset_option=num_clients={USERS}',
  '--dataset_option=dimension=20',
  '--dataset_option=local_deviation=0.1',
  '--dataset_option=examples_per_client=500',
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
# ## Error against epsilon
#
# Every point is the same run a little later: epsilon grows with the rounds. All runs have one
# step size here; the paper takes the best one of each a.

# %%
from matplotlib import pyplot as plt

runs = [run.parent for run in sorted((folder / 'runs').glob('*/config.json'))]
configs = {run: environment.read_json(run, 'config')['config'] for run in runs}
noises = sorted({config['noise_multiplier'] for config in configs.values()})
figure, panels = plt.subplots(
  1, len(noises), sharey=True, squeeze=False, figsize=(3.2 * len(noises), 3.4)
)
for axes, noise in zip(panels[0], noises):
  chosen = [run for run in runs if configs[run]['noise_multiplier'] == noise]
  for run in sorted(chosen, key=lambda run: configs[run]['personalization_alpha']):
    error = environment.curve(run, 'mse')
    epsilon = environment.curve(run, 'epsilon', split='round')
    axes.plot(epsilon[error.index], error, label=f'a = {configs[run]["personalization_alpha"]:g}')
  axes.set_yscale('log')
  axes.set_title(f'noise multiplier {noise:g}')
  axes.set_xlabel('epsilon')
panels[0, 0].set_ylabel('mean squared error')
panels[0, -1].legend()
plt.show()
