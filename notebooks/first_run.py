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
# # A first run and its figures
#
# 63 real schools learn to predict exam scores together, each with a model of its own (MR-MTL,
# Liu et al., NeurIPS 2022). Every pupil's record is protected, in what a school sends and in
# its own model.

# %% tags=["parameters"]
ROUNDS = 50

# %% [markdown]
# ## Train
#
# What the command line prints at the end is the result, and the privacy statement: what is
# protected, against what, and what is outside the guarantee.

# %%
folder = environment.experiment(
  '--flagfile=' + str(root / 'recipes' / 'quickstart.flags'), f'--rounds={ROUNDS}'
)

# %% [markdown]
# ## Look
#
# A run is a folder of ordinary files: `config.json`, `metrics.parquet`, `privacy.json`,
# `summary.json`, figures, checkpoints. The metrics are one long table.

# %%
rows = environment.metrics(folder)
rows.tail()

# %%
from matplotlib import pyplot as plt

figure, (error, epsilon) = plt.subplots(2, 1, sharex=True, figsize=(6.4, 5))
error.plot(environment.curve(folder, 'mse'), label="each school's own model")
error.plot(environment.curve(folder, 'global_mse'), label='the mean model')
error.set_ylabel('mean squared error')
error.legend()
epsilon.plot(environment.curve(folder, 'epsilon', split='round'), color='black')
epsilon.set_ylabel('epsilon at delta 0.001')
epsilon.set_xlabel('rounds')
plt.show()

# %% [markdown]
# ## Who gains, who loses
#
# After the last round every school's own error is in the table.

# %%
schools = rows[rows['client'].notna() & (rows['split'] == 'test')]
errors = schools[schools['metric'] == 'mse'].set_index('client')['value']
limit = 3 * errors.median()
figure, axes = plt.subplots()
axes.hist(errors.clip(upper=limit), bins=20)
axes.set_xlabel("a school's mean squared error")
axes.set_title(f'{(errors > limit).sum()} above {limit:.2f} are in the last bar', fontsize=10)
axes.set_ylabel('schools')
plt.show()

# %% [markdown]
# ## What was promised

# %%
print(environment.read_json(folder, 'privacy')['statement'])
