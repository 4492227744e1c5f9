"""The published workloads have the sizes that are published."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import published


def test_sizes_of_cifar10():
  workload = published.WORKLOADS['cifar10']
  network = workload.network()
  params = network.init(tf.constant([0, 0]))
  assert sum(p.shape.num_elements() for p in params.values()) == pytest.approx(1.63e6, rel=0.005)
  # Two convolutions and two dense layers, by hand, of an image.
  by_hand = 2 * (900 * 27 * 32 + 784 * 288 * 64 + 12544 * 128 + 1280)
  assert published.products(network, tf.TensorSpec([3, 32, 32, 3], tf.uint8)) == 3 * by_hand
  assert workload.flop(50 * 50) == pytest.approx(253e9, rel=0.005)  # of a round, as published


def test_products_of_the_transformer():
  network = published.WORKLOADS['stackoverflow'].network()
  dense = 3 * (4 * 96 * 96 + 2 * 96 * 1536) + 96 * 10_000
  attention = 3 * 2 * 20 * 96
  found = published.products(network, tf.TensorSpec([2, 20], tf.int32))
  assert found == 2 * 2 * 20 * (dense + attention)


@pytest.mark.slow
@pytest.mark.exhaustive(but=['cifar10'])
@pytest.mark.parametrize('name', published.WORKLOADS)
def test_data_fit_the_method(name):
  workload = published.WORKLOADS[name]
  data = workload.data([1, 3], 4)
  built = workload.method(4)
  member = built.process.next.type_signature.parameter[2].member
  for leaf, type_ in (('x', member.x), ('y', member.y)):
    assert data[leaf].shape == (2, *type_.shape)
    assert data[leaf].dtype == type_.dtype
  scale = workload.cohort / workload.noise_cohort
  assert built.hyperparameters['noise_multiplier'] == pytest.approx(scale)


def test_sizes_are_heavy_tailed():
  sizes = published.heavy_tailed(400, 512)
  assert sizes.min() >= 1 and 256 < sizes.max() <= 512
  assert np.median(sizes) < 0.7 * sizes.mean() < 0.2 * 512
