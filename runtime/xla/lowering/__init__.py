"""Lowering: graphs with data sets, variables and random ops as graphs that XLA compiles.

The programs of TFF's users hold what XLA has no kernels for: `tf.data` sequences with
their iterators, variables (Keras models, metrics and optimizers), stateful random ops,
and the time. All of it is known while a program is traced, so it can be taken away:

*   `sequences`: a client's data set is read once, on the host, and becomes arrays
    padded to a few sizes, with the true sizes beside them.
*   `interpreter`: a graph is built anew op by op. Data sets, iterators, optionals and
    variables are Python objects meanwhile; what they hold is threaded through loops and
    branches as ordinary tensors. `data_ops`, `variable_ops`, `random_ops` say how each op
    is written, `datasets` what a data set is.
*   `scope`: what one execution of a program gives to its graphs: fresh random bits, the
    time, and how many clients are worked on at once.
*   `support`: what of a program cannot be lowered, and why, before anything is traced.

What cannot be lowered raises `NotLowered`, whose message says what it was.
"""
