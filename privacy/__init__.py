"""Privacy plans: who is protected, by which mechanism, at which cost.

One frozen plan (`privacy.plan`) gives the sampler its rate, the process its
mechanism and the accountant its event, so that they cannot disagree.

  sampling     how the cohort of a round is drawn, and the event it costs
  queries      clipping and noise, as TF-Privacy queries with reproducible noise
  accounting   from events to epsilon (Renyi DP, with PLD beside it)
  plan         NoPrivacy, and the names of the two others:
  client_level   ClientLevelPrivacy: clipped updates, a noised sum
  example_level  ExampleLevelPrivacy: DP-SGD in every silo
  hypothetical   HypotheticalDeployment: the noise of larger cohorts than are simulated
  calibration  from a target epsilon to a noise multiplier
  selection    private selection of one of several candidates (IFCA)
  tuning       private choice of hyper-parameters by a random number of runs
  number_of_runs  how many those are: the truncated negative binomial
  rounding     how epsilons are printed
  statement    what a run guarantees, in words and as JSON
"""
