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
# # Opting out of privacy
#
# FeO2 (Aldaghri, Mahdavifar and Beirami, 2021): clients are private unless they opt out. How
# much should the server listen to the private ones, whose sum is noised? The ratio r is their
# weight beside the others: r = 1 treats all alike (as DP-FedAvg does), r = 0 learns from the
# opted-out alone. The paper's main tables at a small size: digits, 100 clients of one digit
# each.

# %% tags=["parameters"]
ROUNDS = 60
RATIOS = '0,0.01,0.1,0.3,1'
SEEDS = '0-2'

# %%
folder = environment.experiment(
  '--method=feo2',
  '--dataset=digits',
  '--privacy=client',
  '--opt_out_fraction=0.2',
  '--target_epsilon=4',
  '--delta=1e-3',
  '--cohort_sampling_rate=0.3',
  '--adaptive_clipping',
  '--clipping_norm=0.5',
  '--batch_size=10',
  '--client_learning_rate=0.1',
  '--ditto_lambda_private=0.05',
  '--ditto_lambda_non_private=0.05',
  f'--rounds={ROUNDS}',
  '--eval_every=0',
  f'--sweep=ratio={RATIOS}',
  f'--seeds={SEEDS}',
  '--select_on=nothing',
)

# %% [markdown]
# ## Accuracy against the ratio
#
# The global model on the server's test set, and the personal models of those who are private
# and of those who opted out, on their own test examples.

# %%
from matplotlib import pyplot as plt

curves = (
  ("global model, server's test set", 'server_test_accuracy', 'all'),
  ('personal models, private clients', 'test_accuracy', 'private'),
  ('personal models, opted-out clients', 'test_accuracy', 'opted out'),
)
figure, axes = plt.subplots()
for label, metric, group in curves:
  by_ratio = environment.table(folder, metric, group=group).groupby('ratio')['value']
  mean, deviation = by_ratio.mean(), by_ratio.std(ddof=0)
  axes.plot(mean, label=label)
  axes.fill_between(mean.index, mean - deviation, mean + deviation, alpha=0.15)
axes.set_xscale('symlog', linthresh=0.01)
axes.set_xlabel('ratio r')
axes.set_ylabel('accuracy')
axes.legend()
plt.show()

# %% [markdown]
# Personal models of clients with one digit are nearly perfect here for every r above 0; at r = 0
# those of private clients are no better than the global model, which shows what the noise costs.
# The recipes named `feo2_...` run the paper's own sizes: `make recipes` lists them.
