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
# # Privacy and personalisation in cross-silo learning
#
# Liu, Hu, Wu and Smith (NeurIPS 2022), the main figure at a small size: test error against
# epsilon for local training, federated averaging and MR-MTL, which lies between them. In
# federated averaging the noise of the silos is averaged out; alone, a silo keeps its
# differences and all of its noise. Which is better depends on the budget, and MR-MTL can be as
# good as either.

# %% tags=["parameters"]
ROUNDS = 50
EPSILONS = '0.5,1,2,4,8'
LAMBDAS = '0.1,0.3,1,3'
SEEDS = '0-2'

# %% [markdown]
# Three programs: one for each method. lambda belongs to MR-MTL alone; the other methods come
# once.

# %%
folder = environment.experiment(
  '--dataset=exam',
  '--privacy=example',
  '--delta=1e-3',
  f'--rounds={ROUNDS}',
  '--eval_every=0',
  '--client_learning_rate=0.1',
  '--validation_fraction=0.1',
  '--sweep=method=local,fedavg,mr_mtl',
  f'--sweep=mtl_lambda={LAMBDAS}',
  f'--sweep=target_epsilon={EPSILONS}',
  f'--seeds={SEEDS}',
)

# %% [markdown]
# ## Error against epsilon
#
# MR-MTL with the lambda that is best on the validation examples of each budget. Bands are a
# deviation over the seeds, on both sides.

# %%
import pandas as pd
from matplotlib import pyplot as plt

best = pd.DataFrame(
  [
    {**entry['for'], **entry['setting'], **entry['test']}
    for entry in environment.read_json(folder, 'sweep')['selection']
  ]
)
names = {'fedavg': 'FedAvg', 'local': 'Local', 'mr_mtl': 'MR-MTL'}
figure, axes = plt.subplots()
for method, label in names.items():
  line = best[best['method'] == method].sort_values('target_epsilon')
  axes.plot(line['target_epsilon'], line['mean'], label=label)
  low, high = line['mean'] - line['std'], line['mean'] + line['std']
  axes.fill_between(line['target_epsilon'], low, high, alpha=0.18, linewidth=0)
environment.log_scale(axes, 'x')
axes.set_xticks(sorted(set(best['target_epsilon'])))
environment.log_scale(axes, 'y')
axes.set_xlabel('epsilon at delta 0.001 (log scale; less is more private)')
axes.set_ylabel('test mean squared error (target²)')
axes.legend()
plt.show()

# %%
best.rename(columns={'mean': 'test mse', 'std': 'deviation'})

# %% [markdown]
# The recipes named `silo_...` run the paper's own data sets and sizes: `make recipes` lists
# them.
