"""TFF computations as one XLA program; see `runtime` for the public face."""
