"""The papers' theory as checks that give numbers: for each claim, pairs that have to agree.

A check computes both sides of a claim independently: a printed formula against a numerical
minimum, matrix algebra, a simulation or the accountant, over random parameters from a fixed
seed. `recipes/claims.json` names the check of each claim, with its relation and margin; the
checks of a paper are the functions of the module of its name, and of NAME_on_data those that run
on a data set, which they are given. A number that is to be reported and
not judged stands between the pairs as an `Aside`.
"""
