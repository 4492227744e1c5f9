"""Products in forms that are faster have the same numbers."""

import collections
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import runtime
from runtime.xla import products

Tree = collections.OrderedDict
ROWS, FEATURES = 33, 17


def _products(x, w, u):
  """Each way in which a vector can stand in a product, and the gradients of one."""
  w, u = w[:, tf.newaxis], u[:, tf.newaxis]
  with tf.GradientTape() as tape:
    tape.watch([x, w])
    loss = tf.reduce_sum(tf.square(tf.matmul(x, w) - u))

  def again(v):
    return tf.matmul(x, tf.matmul(x, v, transpose_a=True)) / 99

  of_x, of_w = tape.gradient(loss, [x, w])
  return Tree(
    right=tf.matmul(x, w),
    right_transposed=tf.matmul(x, u, transpose_a=True),
    row=tf.matmul(w, x, transpose_a=True, transpose_b=True),
    row_down=tf.matmul(u, x, transpose_a=True),
    vector_transposed=tf.matmul(x, tf.transpose(w), transpose_b=True),
    inner=tf.matmul(w, w, transpose_a=True),
    outer=tf.matmul(w, u, transpose_b=True),
    of_x=of_x,
    of_w=of_w,
    looped=tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, again(v)), (0, u))[1],
  )  # fmt: skip


@pytest.mark.parametrize('block', [1, 2])
def test_the_numbers_are_those_of_the_products(block):
  shapes = [ROWS, FEATURES], [FEATURES], [ROWS]
  types = [tff.TensorType(np.float32, shape) for shape in shapes]
  work = tff.tensorflow.computation(_products, types)

  @tff.federated_computation(tff.FederatedType(tff.StructType(types), tff.CLIENTS))
  def program(values):
    return tff.federated_map(work, values)

  rng = np.random.default_rng(0)
  clients = [tuple(rng.normal(size=s).astype(np.float32) for s in shapes) for _ in range(3)]
  found = runtime.XlaContext(clients_per_block=block).invoke(program, clients)
  for client, own in zip(clients, found, strict=True):
    exact = _products(*(tf.constant(v.astype(np.float64)) for v in client))
    for name, value in exact.items():
      np.testing.assert_allclose(own[name], value, rtol=1e-4, atol=1e-4, err_msg=name)
      assert own[name].dtype == np.float32


@pytest.mark.parametrize(
  ('a', 'b', 'transpose_a', 'transpose_b', 'is_taken'),
  [
    ([33, 17], [17, 1], False, False, True),
    ([33, 17], [1, 17], False, True, True),
    ([1, 17], [33, 17], False, True, True),
    ([33, 17], [33, 1], True, False, True),
    ([33, 784], [33, 1], True, False, False),  # long columns
    ([33, 17], [17, 2], False, False, False),  # no vector
    ([8, 64], [512, 64], False, True, True),
    ([8, 64], [64, 512], False, False, False),  # nothing to be brought into another order
    ([64, 8], [512, 64], True, True, False),
    ([300, 64], [512, 64], False, True, False),  # many rows
    ([8, 64], [500, 64], False, True, False),  # a small matrix
    ([33, 3], [3, 1], False, False, False),  # few terms
    ([None, 17], [17, 1], False, False, False),  # a size that depends on data
    ([20, 784], [20, 10], True, False, True),
    ([None, 784], [None, 10], True, False, True),  # a batch of any size
    ([20, 784], [10, 20], True, True, False),
    ([784, 20], [20, 10], False, False, False),  # nothing to be turned round
    ([20, 64], [20, 17], True, False, False),  # not much longer than wide
    ([20, 63], [20, 10], True, False, False),  # few rows
    ([49, 784], [49, 62], True, False, False),  # few terms for so many columns
    ([50, 784], [50, 62], True, False, True),
    ([None, 784], [None, 62], True, False, False),
    ([50, 784], [50, 65], True, False, False),  # wide
  ],
)
def test_which_are_taken(a, b, transpose_a, transpose_b, is_taken):
  with tf.Graph().as_default():
    inputs = [tf.compat.v1.placeholder(tf.float32, shape) for shape in (a, b)]
    found = products.taken(inputs, transpose_a=transpose_a, transpose_b=transpose_b)
  assert (found is not None) == is_taken


def test_double_precision_is_left_as_it_is():
  inputs = [tf.zeros([33, 17], tf.float64), tf.zeros([17, 1], tf.float64)]
  assert products.taken(inputs, transpose_a=False, transpose_b=False) is None


def test_xla_gets_no_product_of_them():
  """The rewriting reaches the program: none of its dots is left."""
  x_type = tff.TensorType(np.float32, [ROWS, FEATURES])
  w_type = tff.TensorType(np.float32, [FEATURES])

  @tff.tensorflow.computation(x_type, w_type)
  def product(x, w):
    return tf.linalg.matvec(x, w)

  from runtime.xla import graph_import

  proto = type(product).get_proto(product)

  @tf.function(jit_compile=True, autograph=False)
  def run(x, w):
    return graph_import.run(proto, (x, w))

  text = run.experimental_get_compiler_ir(tf.zeros([ROWS, FEATURES]), tf.zeros([FEATURES]))(
    'optimized_hlo'
  )
  assert 'reduce(' in text and 'dot(' not in text


@pytest.mark.cpu
@pytest.mark.parametrize('is_ours', [True, False])
@pytest.mark.parametrize('name', ['by the input', 'by the weights'])
def test_xla_does_not_turn_a_product_back(name, is_ours):
  shapes, transposed, ours, turned = {
    'by the input': (([8, 64], [512, 64]), dict(transpose_b=True), '512,8', '8,512'),
    'by the weights': (([20, 784], [20, 10]), dict(transpose_a=True), '10,784', '784,10'),
  }[name]
  a, b = (tf.random.normal(shape, seed=0) for shape in shapes)

  def product(a, b):
    if is_ours:
      return products.taken([a, b], **dict(transpose_a=False, transpose_b=False) | transposed)
    return tf.transpose(tf.matmul(b, a, **transposed))

  compiled = tf.function(product, jit_compile=True)
  np.testing.assert_allclose(compiled(a, b), tf.matmul(a, b, **transposed), rtol=1e-4, atol=1e-4)
  text = compiled.experimental_get_compiler_ir(a, b)(stage='optimized_hlo')
  (shape,) = re.findall(r'f32\[(\d+,\d+)\]\{[01,]+\} dot\(', text)
  assert shape == (ours if is_ours else turned)
