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
# # Choosing lambda and epsilon
#
# MR-MTL holds each school's model close to the mean of all, by lambda. How close is best
# depends on how much noise the privacy budget asks for: noise is averaged out over the schools,
# differences are not. A small sweep shows it.

# %% tags=["parameters"]
ROUNDS = 50
LAMBDAS = '0,0.1,0.3,1,3,10'
EPSILONS = '0.5,2,8'
SEEDS = '0-2'

# %% [markdown]
# ## Sweep
#
# Continuous settings and seeds share one compiled program. A part of each school's training
# examples is held out (`--validation_fraction`), and the best lambda of each budget is chosen
# on them.

# %%
folder = environment.experiment(
  '--method=mr_mtl',
  '--dataset=exam',
  '--privacy=example',
  '--delta=1e-3',
  f'--rounds={ROUNDS}',
  '--client_learning_rate=0.1',
  '--validation_fraction=0.1',
  '--eval_every=0',
  f'--sweep=mtl_lambda={LAMBDAS}',
  f'--sweep=target_epsilon={EPSILONS}',
  f'--seeds={SEEDS}',
)

# %% [markdown]
# ## Error against lambda
#
# lambda = 0 is local training. Bands are a deviation over the seeds, on both sides.

# %%
from matplotlib import pyplot as plt

scores = environment.table(folder, 'test_mse')
figure, axes = plt.subplots()
for epsilon, budget in scores.groupby('target_epsilon'):
  by_lambda = budget.groupby('mtl_lambda')['value']
  mean, deviation = by_lambda.mean(), by_lambda.std(ddof=0)
  axes.plot(mean, label=f'epsilon {epsilon:g}, delta 0.001')
  low = (mean - deviation).clip(lower=mean / 2)  # a log scale has no room for more
  axes.fill_between(mean.index, low, mean + deviation, alpha=0.15)
axes.set_xscale('symlog', linthresh=0.1)
environment.log_scale(axes, 'y')
axes.set_xlabel('lambda')
axes.set_ylabel('mean squared error')
axes.legend()
plt.show()

# %% [markdown]
# ## The report
#
# The same and more is on one page: figures, the chosen settings, the privacy statements and the
# configurations side by side. `report.html` holds everything and needs no other file.

# %%
from IPython import display

report = environment.report(folder)
for picture in sorted(report.glob('*.png')):
  display.display(display.Image(picture))

# %% [markdown]
# ## What was chosen, and on what

# %%
import pandas as pd

chosen = environment.read_json(folder, 'sweep')['selection']
pd.DataFrame(
  [
    {
      'epsilon': best['for'].get('target_epsilon'),
      **best['setting'],
      'chosen on': best['selected_on'],
      'test mse': best['test']['mean'],
      'deviation': best['test']['std'],
    }
    for best in chosen
  ]
)

# %% [markdown]
# The choice itself looked at data. It is *not* part of the epsilon that the statement gives,
# which says so; a private choice runs a random number of settings and costs more.
