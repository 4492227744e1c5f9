"""What is done to batches in clients' programs, op by op: x of rows [n, 2], y of n integers."""

import inspect

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime import learning

_UNARY = """
Abs Acos Acosh Asin Asinh Atan Atanh BesselI0e BesselI1e Ceil Cos Cosh Digamma Elu Erf
Erfinv Erfc Exp Expm1 Floor Inv Reciprocal Lgamma Log Log1p LogSoftmax Ndtri Neg Relu
Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Square
Tan Tanh ZerosLike OnesLike LeakyRelu IsNan IsInf IsFinite Identity StopGradient Snapshot
"""
_BINARY = """
Add AddV2 Sub Mul Div RealDiv Maximum Minimum Pow SquaredDifference FloorDiv FloorMod Mod
TruncateMod Atan2 Xdivy Xlogy Xlog1py DivNoNan MulNoNan Equal NotEqual Less LessEqual
Greater GreaterEqual ApproximateEqual
"""
_OF_OUTPUTS = ('SigmoidGrad', 'TanhGrad', 'SqrtGrad', 'RsqrtGrad', 'ReciprocalGrad')
_OF_FEATURES = dict(
  ReluGrad='features',
  EluGrad='outputs',
  SeluGrad='outputs',
  SoftplusGrad='features',
  SoftsignGrad='features',
  LeakyReluGrad='features',
  Relu6Grad='features',
)
_BITS = ('BitwiseAnd', 'BitwiseOr', 'BitwiseXor', 'LeftShift', 'RightShift')


def _pictures(x):
  return tf.reshape(tf.tile(x, [1, 8]), [-1, 4, 4, 1])


def _definite(x):
  return x[:, :, None] * x[:, None, :] + 2 * tf.eye(2)


def _quantisation_gradients(quantised, x, low, high):
  # A row of padding, zeros, would be below the range.
  return tf.gradients(tf.reduce_sum(quantised(x - 0.6, low, high) * (x + 2)), [x, low, high])


def _normalised(x, m=(), v=()):
  return tf.raw_ops.FusedBatchNormV3(
    x=_pictures(x),
    scale=[1.5],
    offset=[0.5],
    mean=tf.constant(m, tf.float32),
    variance=tf.constant(v, tf.float32),
    is_training=not m,
  )


def _elementwise():
  """Name -> function."""
  found = {}
  for name in _UNARY.split():
    op = getattr(tf.raw_ops, name)
    argument = next(k for k in inspect.signature(op).parameters if k != 'name')
    found[name] = lambda x, y, op=op, argument=argument: op(**{argument: x / 2})
  for name in _BINARY.split():
    op = getattr(tf.raw_ops, name)
    found[name] = lambda x, y, op=op: op(x=x, y=x + 1)
    if name != 'ApproximateEqual':  # It has no broadcasting.
      found[f'{name}, constant'] = lambda x, y, op=op: [
        op(x=x, y=tf.constant([2.0, 3.0])),
        op(x=tf.constant(2.0), y=x),
        op(x=x[:, None, :], y=x[None, :, :1]),
      ]
  for name in _OF_OUTPUTS:
    op = getattr(tf.raw_ops, name)
    found[name] = lambda x, y, op=op: op(y=x, dy=x + 1)
  for name, argument in _OF_FEATURES.items():
    op = getattr(tf.raw_ops, name)
    found[name] = lambda x, y, op=op, a=argument: op(**{'gradients': x + 1, a: x - 0.5})
  for name in ('LogicalAnd', 'LogicalOr'):
    op = getattr(tf.raw_ops, name)
    found[name] = lambda x, y, op=op: op(x=x > 0.3, y=x < 0.9)
  for name in _BITS:
    op = getattr(tf.raw_ops, name)
    found[name] = lambda x, y, op=op: op(x=y, y=y + 1)
  for name in ('Sum', 'Mean', 'Prod', 'Max', 'Min'):
    op = getattr(tf.raw_ops, name)
    found[name] = lambda x, y, op=op: [
      op(input=x, axis=[0]),
      op(input=x, axis=[1]),
      op(input=x, axis=[0], keep_dims=True),
    ]
  for name in ('All', 'Any'):
    op = getattr(tf.raw_ops, name)
    found[name] = lambda x, y, op=op: op(input=x > 0.3, axis=[0])
  for name in ('ArgMax', 'ArgMin'):
    op = getattr(tf.raw_ops, name)
    found[name] = lambda x, y, op=op: [
      op(input=x, dimension=0),
      op(input=-x, dimension=0),
      op(input=x, dimension=1),
    ]
  return found


# Right, and compiled.
OPS = dict(
  **_elementwise(),
  logicalnot=lambda x, y: tf.logical_not(x > 0.3),
  invert=lambda x, y: tf.raw_ops.Invert(x=y),
  l2loss=lambda x, y: tf.nn.l2_loss(x),
  select_s=lambda x, y: tf.raw_ops.Select(condition=True, x=x, y=2 * x),
  select=lambda x, y: tf.raw_ops.Select(condition=x > 0.5, x=x, y=2 * x),
  select_v=lambda x, y: tf.raw_ops.Select(condition=y > 0, x=x, y=2 * x),
  selectv2_s=lambda x, y: tf.where(True, x, 2 * x),
  selectv2_v=lambda x, y: tf.where([True, False], x, 2 * x),
  selectv2_c=lambda x, y: tf.where(x > 0.5, x, 0),
  selectv2_cc=lambda x, y: tf.where(x > 0.5, 1.0, 0),
  selectv2_x1=lambda x, y: tf.where(tf.constant([[True, False]]), x, 0),
  selectv2_01=lambda x, y: tf.where([True, False], 0.0, x[:, :1]),
  clipbyvalue=lambda x, y: tf.raw_ops.ClipByValue(t=x, clip_value_min=0.3, clip_value_max=0.9),
  addn=lambda x, y: tf.add_n([x, x, x]),
  biasadd=lambda x, y: tf.nn.bias_add(x, [1.0, 2.0]),
  biasaddgrad=lambda x, y: tf.raw_ops.BiasAddGrad(out_backprop=x),
  cast=lambda x, y: tf.cast(x * 3, tf.int32),
  bitcast=lambda x, y: tf.bitcast(x, tf.int32),
  matmul=lambda x, y: [
    tf.matmul(x, tf.ones([2, 3])),
    tf.matmul(x, x, transpose_a=True),
    tf.matmul(x, x, transpose_b=True),
    tf.matmul(tf.ones([3, 2]), x, transpose_b=True),
  ],
  batchmatmulv2=lambda x, y: [
    tf.matmul(x[:, None], x[:, :, None]),
    tf.matmul(x[:, None], tf.ones([1, 2, 3])),
    tf.matmul(x[None], tf.ones([3, 2, 2])),
    tf.matmul(x[None], x[None], transpose_a=True),
  ],
  einsum=lambda x, y: [
    tf.einsum('bi,bj->ij', x, x),
    tf.einsum('bi,cj->bcij', x, x),
    tf.einsum('bi,ij->bj', x, tf.ones([2, 3])),
    tf.einsum('bi,bi->b', x, x),
  ],
  transpose=lambda x, y: [tf.transpose(x), tf.transpose(x[:, None], [2, 1, 0])],
  reshape1=lambda x, y: [tf.reshape(x, [-1]), tf.reshape(x, [-1, 1, 2])],
  reshape2=lambda x, y: [
    tf.reshape(x, [tf.shape(x)[0] * 2]),
    tf.reshape(x, [tf.shape(x)[0], 2, 1]),
    tf.reshape(x, tf.shape(x)),
  ],
  reshape3=lambda x, y: [tf.reshape(tf.transpose(x), [-1]), tf.reshape(x, [2, -1])],
  expanddims=lambda x, y: [x[None], tf.expand_dims(x, 1), tf.expand_dims(x, -1)],
  concatv2=lambda x, y: [
    tf.concat([x, 2 * x], 0),
    tf.concat([x, 2 * x], 1),
    tf.concat([x, tf.ones([1, 2])], 0),
    tf.concat([tf.ones([1, 2]), x], 0),
  ],
  pack=lambda x, y: [tf.stack([x, 2 * x], 0), tf.stack([x, 2 * x], 1), tf.stack([x, 2 * x], 2)],
  unpack=lambda x, y: tf.unstack(x, axis=1),
  split=lambda x, y: tf.split(x, 2, 1),
  splitv=lambda x, y: tf.split(tf.concat([x, x], 1), [1, 3], 1),
  slice=lambda x, y: [tf.slice(x, [0, 1], [-1, 1]), tf.slice(x, [1, 0], [2, 2])],
  slice_then_divide=lambda x, y: (lambda s: s / (1.0 + s))(tf.slice(x, [1, 0], [2, 2])),
  slice_d=lambda x, y: tf.slice(x, [0, 0], [tf.shape(x)[0], 1]),
  slice_over=lambda x, y: x[:3],
  slice_col=lambda x, y: [x[:, 0], x[:, 1:], x[:, -1], x[..., None], x[:, ::-1], x[:, None]],
  slice_0=lambda x, y: [x[0], x[:1], x[1:], x[1:3], x[:2]],
  slice_last=lambda x, y: x[-1],
  slice_last2=lambda x, y: x[-2:],
  slice_butlast=lambda x, y: x[:-1],
  slice_dyn=lambda x, y: x[: tf.shape(x)[0] // 2],
  slice_stride=lambda x, y: x[::2],
  slice_rev=lambda x, y: x[::-1],
  slice_g=lambda x, y: tf.gradients(tf.reduce_sum(x[:, 0] ** 2) + tf.reduce_sum(x[:, 1:] ** 3), x)[
    0
  ],
  slice_g2=lambda x, y: tf.gradients(tf.reduce_sum(x[0] ** 2) + tf.reduce_sum(x[:1] ** 2), x)[0],
  slice_g3=lambda x, y: tf.gradients(tf.reduce_sum(x[1:] ** 2), x)[0],
  pad=lambda x, y: [
    tf.pad(x, [[1, 2], [0, 0]], constant_values=3.0),
    tf.pad(x, [[0, 0], [1, 1]]),
    tf.pad(x, [[1, 2], [0, 0]]),
  ],
  mirrorpad=lambda x, y: [
    tf.pad(x, [[0, 0], [1, 1]], 'REFLECT'),
    tf.gradients(tf.reduce_sum(tf.pad(x, [[0, 0], [1, 1]], 'REFLECT') ** 2), x)[0],
    tf.gradients(tf.reduce_sum(tf.pad(x, [[0, 0], [2, 1]], 'SYMMETRIC') ** 2), x)[0],
  ],
  tile=lambda x, y: [tf.tile(x, [2, 1]), tf.tile(x, [1, 3]), tf.tile(x[:, None], [1, 2, 1])],
  tile_d=lambda x, y: tf.tile([[1.0, 2.0]], [tf.shape(x)[0], 1]),
  tile_g=lambda x, y: tf.gradients(tf.reduce_sum(tf.tile(x, [1, 3]) ** 2), x)[0],
  tile_g0=lambda x, y: tf.gradients(tf.reduce_sum(tf.tile(x, [2, 1]) ** 2), x)[0],
  broadcastto=lambda x, y: [
    tf.broadcast_to(x[:1], tf.shape(x)),
    tf.broadcast_to(2.0, tf.shape(x)),
    tf.broadcast_to([1.0, 2.0], tf.shape(x)),
  ],
  broadcastto_x=lambda x, y: [
    tf.broadcast_to(x, tf.shape(x)),
    tf.broadcast_to(x, tf.concat([[3], tf.shape(x)], 0)),
  ],
  broadcastto_x1=lambda x, y: tf.broadcast_to(x[:, :1], tf.shape(x)),
  fill=lambda x, y: [
    tf.fill([tf.shape(x)[0], 2], 2.0),
    tf.zeros([tf.shape(x)[0]]),
    tf.ones(tf.shape(x)),
  ],
  range=lambda x, y: tf.range(tf.shape(x)[0]),
  range2=lambda x, y: tf.range(1, tf.shape(x)[0]),
  shape=lambda x, y: [tf.shape(x), tf.size(x), tf.rank(x)],
  gatherv2=lambda x, y: [
    tf.gather([1.0, 2.0, 4.0], y),
    tf.gather(x, [0, 1, 0]),
    tf.gather(x, [1, 0], axis=1),
    tf.gather(x, y % 2, batch_dims=1),
  ],
  gatherv2_d=lambda x, y: tf.gather(x, y),
  gatherv2_r=lambda x, y: tf.gather(x, tf.range(tf.shape(x)[0])),
  gather_g=lambda x, y: tf.gradients(tf.reduce_sum(tf.gather(x, y, axis=0) ** 2), x)[0],
  gathernd=lambda x, y: tf.gather_nd(x, tf.stack([tf.range(tf.shape(x)[0]), y % 2], 1)),
  # What varies is another axis than the one along which there is gathered.
  gather_before=lambda x, y: [
    tf.gather(tf.transpose(x), [0, 1, 0, 1, 1]),
    tf.gather(tf.transpose(x), 1),
    tf.gather(tf.transpose(x), [[0, 1], [1, 1], [1, 0]]),
    tf.gather(tf.transpose(x)[:, None], [0, 0, 0, 0, 0], axis=1),
    tf.gather(x[:, None] * x[:, :1], [1, 0, 1, 1, 0], axis=2),
    tf.gather(tf.stack([tf.transpose(x)] * 2), [[0, 1, 1, 1], [1, 0, 0, 0]], axis=1, batch_dims=1),
    tf.gather_nd(tf.transpose(x), [[0], [1], [0], [1], [1]]),
    tf.gather_nd(tf.stack([tf.transpose(x)] * 2), [[0, 1], [1, 1], [1, 0], [0, 0]]),
  ],
  gather_before_g=lambda x, y: tf.gradients(
    tf.reduce_sum(tf.math.unsorted_segment_sum(tf.transpose(x), [3, 0], 5) ** 2)
    + tf.reduce_sum(tf.gather(tf.transpose(x), [0, 1, 0, 1, 1]) ** 3),
    x,
  )[0],
  roll_before=lambda x, y: [
    tf.roll(tf.transpose(x), 1, 0),
    tf.roll(x[:, None] * x[:, :1], [1], [1]),
  ],
  reverse_two=lambda x, y: tf.reverse(x[:, None] * x[None], [0, 1]),
  select_before=lambda x, y: tf.raw_ops.Select(
    condition=[True, False], x=tf.transpose(x), y=2 * tf.transpose(x)
  ),
  cumsum_two=lambda x, y: [
    tf.cumsum(x[:, None] * x[None], 0),
    tf.math.cumprod(x[:, None] * x[None], 1, reverse=True, exclusive=True),
  ],
  prod_g=lambda x, y: tf.gradients(
    tf.reduce_prod(tf.transpose(tf.reshape(tf.tile(x, [1, 3]), [-1, 3, 2]), [1, 2, 0]), 0), x
  )[0],
  onehot=lambda x, y: [tf.one_hot(y, 3), tf.one_hot(y, 3, axis=0)],
  scatternd=lambda x, y: tf.scatter_nd(y[:, None], x, [3, 2]),
  scatternd_shape=lambda x, y: [
    tf.scatter_nd(tf.where(y > 0), tf.boolean_mask(x, y > 0), tf.shape(x, tf.int64)),
    tf.scatter_nd(tf.zeros_like(y)[:, None], x, tf.shape(x)),
  ],
  sizes_of_int64=lambda x, y: [
    tf.reshape(x, tf.shape(x, tf.int64)[:1] * 2),
    tf.reshape(x, tf.shape(tf.transpose(x), tf.int64)),
    tf.fill(tf.shape(x, tf.int64), 2.0),
    tf.broadcast_to(x[:, :1], tf.shape(x, tf.int64)),
    tf.slice(x, tf.constant([0, 1], tf.int64), tf.shape(x, tf.int64) - [0, 1]),
    tf.tile([[1.0, 2.0]], tf.stack([tf.shape(x, tf.int64)[0], 1])),
  ],
  densebincount=lambda x, y: [
    tf.raw_ops.DenseBincount(input=y, size=5, weights=tf.zeros([0]), binary_output=False),
    tf.raw_ops.DenseBincount(input=y, size=2, weights=x[:, 0], binary_output=False),
    tf.math.bincount(y, minlength=2, maxlength=2, axis=-1),
  ],
  densebincount2=lambda x, y: [
    tf.raw_ops.DenseBincount(input=tf.stack([y, y + 1], 1), size=3, weights=x, binary_output=binary)
    for binary in (False, True)
  ],
  tensorscatteradd=lambda x, y: tf.tensor_scatter_nd_add(tf.zeros([3, 2]), y[:, None], x),
  tensorscatterupdate_x=lambda x, y: tf.tensor_scatter_nd_update(x, [[0]], [[7.0, 8.0]]),
  unsortedsegmentsum=lambda x, y: tf.math.unsorted_segment_sum(x, y, 3),
  unsortedsegmentmax=lambda x, y: [
    tf.math.unsorted_segment_max(x, y, 3),
    tf.math.unsorted_segment_min(x, y, 3),
    tf.math.unsorted_segment_prod(x, y, 3),
  ],
  unsortedsegment_d=lambda x, y: tf.math.unsorted_segment_sum(x, y, tf.shape(x)[0]),
  cumsum0=lambda x, y: [
    tf.cumsum(x, 0),
    tf.cumsum(x, 0, exclusive=True, reverse=True),
    tf.cumsum(y, 0, reverse=True),
    tf.math.cumprod(x, 0, reverse=True),
    tf.math.cumprod(x, -2, exclusive=True),
    tf.cumsum(tf.transpose(x), 1, reverse=True),
  ],
  cumlse0=lambda x, y: [
    tf.math.cumulative_logsumexp(x, 0),
    tf.math.cumulative_logsumexp(x, 0, reverse=True),
  ],
  prod_gradient=lambda x, y: tf.gradients(tf.reduce_prod(x, 1), x)[0],
  invperm=lambda x, y: tf.math.invert_permutation(
    tf.roll(tf.reverse(tf.range(tf.shape(x)[0]), [0]), 1, 0)
  ),
  tensorscatter=lambda x, y: [
    tf.tensor_scatter_nd_max(tf.zeros([3, 2]), y[:, None], x - 0.5),
    tf.tensor_scatter_nd_min(tf.zeros([3, 2]), y[:, None], x - 0.5),
    tf.tensor_scatter_nd_sub(tf.zeros([3, 2]), y[:, None], x),
    tf.tensor_scatter_nd_max(x, [[0]], [[7.0, 0.0]]),
    tf.tensor_scatter_nd_sub(x, [[0]], [[7.0, 0.0]]),
  ],
  roll0=lambda x, y: [
    tf.roll(x, 1, 0),
    tf.roll(x, -2, 0),
    tf.roll(x, 9, 0),
    tf.roll(y, y[:1], [0]),
  ],
  rows_of_numbers=lambda x, y: [
    tf.math.igamma(x + 0.1, 0.5),
    tf.math.igammac(0.5, x + 0.1),
    tf.math.betainc(x + 0.1, x + 0.2, tf.nn.sigmoid(x)),
    tf.math.zeta(x + 1.5, 1.0),
    tf.math.polygamma(1.0, x + 0.1),
    tf.math.nextafter(x, 9.0),
    tf.gradients(tf.reduce_sum(tf.math.igamma(x + 0.1, tf.constant([0.5, 0.7]))), x)[0],
    tf.quantization.fake_quant_with_min_max_args(x, -1.0, 1.0),
    tf.raw_ops.PopulationCount(x=y),
    tf.truncatediv(y - 3, 2),
    tf.truncatediv(7, y + 1),
  ],
  quantised=lambda x, y: [
    tf.quantization.fake_quant_with_min_max_vars(x, -0.53, 0.71),
    *_quantisation_gradients(
      tf.quantization.fake_quant_with_min_max_vars, x, tf.constant(-0.53), tf.constant(0.71)
    ),
    tf.quantization.fake_quant_with_min_max_vars_per_channel(x, [-0.53, -0.13], [0.71, 0.31]),
    *_quantisation_gradients(
      tf.quantization.fake_quant_with_min_max_vars_per_channel,
      x,
      tf.constant([-0.53, -0.13]),
      tf.constant([0.71, 0.31]),
    ),
  ],
  rows_of_vectors=lambda x, y: [
    tf.linalg.diag(x),
    tf.linalg.cross(tf.pad(x, [[0, 0], [0, 1]]), tf.pad(x, [[0, 0], [1, 0]])),
    tf.abs(tf.signal.fft(tf.cast(tf.tile(x, [1, 2]), tf.complex64))),
    tf.math.imag(tf.signal.ifft(tf.complex(x, x + 1))),
    tf.math.real(tf.signal.rfft(tf.tile(x, [1, 3]), [4])),
    tf.signal.irfft(tf.math.conj(tf.complex(tf.tile(x, [1, 2]), 0.5))),
    tf.image.rgb_to_hsv(tf.pad(x, [[0, 0], [0, 1]])),
    tf.image.hsv_to_rgb(tf.nn.sigmoid(tf.pad(x, [[0, 0], [0, 1]]))),
  ],
  rows_of_matrices=lambda x, y: [
    tf.linalg.cholesky(_definite(x)),
    tf.linalg.inv(_definite(x)),
    tf.linalg.solve(_definite(x), x[:, :, None]),
    tf.linalg.triangular_solve(_definite(x), x[:, :, None]),
    tf.abs(tf.linalg.qr(_definite(x))[1]),
    tf.linalg.svd(_definite(x), compute_uv=False),
    tf.linalg.eigvalsh(_definite(x)),
    tf.linalg.diag_part(_definite(x)),
    tf.linalg.set_diag(_definite(x), x),
    tf.abs(tf.signal.fft2d(tf.cast(_definite(x), tf.complex64))),
    tf.gradients(tf.reduce_sum(tf.linalg.cholesky(_definite(x))), x)[0],
    tf.gradients(tf.reduce_sum(tf.linalg.inv(_definite(x))), x)[0],
  ],
  rows_of_pictures=lambda x, y: [
    tf.image.extract_patches(
      _pictures(x), [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], padding='SAME'
    ),
    tf.nn.lrn(tf.tile(_pictures(x), [1, 1, 1, 3])),
    tf.gradients(tf.reduce_sum(tf.nn.lrn(tf.tile(_pictures(x), [1, 1, 1, 3]))), x)[0],
    tf.image.adjust_contrast(tf.tile(_pictures(x), [1, 1, 1, 3]), 1.5),
    tf.image.adjust_saturation(tf.tile(tf.nn.sigmoid(_pictures(x)), [1, 1, 1, 3]), 1.5),
    tf.image.adjust_hue(tf.tile(tf.nn.sigmoid(_pictures(x)), [1, 1, 1, 3]), 0.1),
  ],
  cumsum1=lambda x, y: [tf.cumsum(x, 1), tf.math.cumprod(x, 1)],
  cumlse=lambda x, y: tf.math.cumulative_logsumexp(x, 1),
  reverse0=lambda x, y: tf.reverse(x, [0]),
  reverse1=lambda x, y: tf.reverse(x, [1]),
  reversesequence=lambda x, y: tf.reverse_sequence(x, y % 2 + 1, 1, 0),
  roll1=lambda x, y: tf.roll(x, 1, 1),
  sort=lambda x, y: [tf.sort(x, 0), tf.sort(x, 1), tf.sort(x, 0, 'DESCENDING')],
  argsort=lambda x, y: [tf.argsort(x, 0), tf.argsort(-x, 1)],
  topk=lambda x, y: [*tf.math.top_k(x, 1), *tf.math.top_k(tf.transpose(x), 2)],
  intopk=lambda x, y: tf.math.in_top_k(y % 2, x, 1),
  softmaxxent=lambda x, y: [*tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=x, labels=x / 3)],
  sparsexent=lambda x, y: [
    *tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=x, labels=y % 2)
  ],
  sigmoidxent=lambda x, y: tf.nn.sigmoid_cross_entropy_with_logits(x / 2, x),
  bandpart=lambda x, y: tf.linalg.band_part(tf.matmul(x, x, transpose_b=True), -1, 0),
  where1=lambda x, y: tf.where(y > 0),
  mask=lambda x, y: tf.boolean_mask(x, y > 0),
  bucketize=lambda x, y: tf.raw_ops.Bucketize(input=x, boundaries=[0.3, 0.9]),
  searchsorted=lambda x, y: tf.searchsorted([0.1, 0.5, 0.9], x[:, 0]),
  searchsorted2=lambda x, y: tf.searchsorted(x[:, 0], [0.1, 0.5, 0.9]),
  conv2d=lambda x, y: [
    tf.nn.conv2d(_pictures(x), tf.ones([3, 3, 1, 2]), 1, 'SAME'),
    tf.nn.conv2d(_pictures(x), tf.ones([2, 2, 1, 2]), 2, 'VALID'),
  ],
  conv2d_g=lambda x, y: (
    lambda w: tf.gradients(tf.reduce_sum(tf.nn.conv2d(_pictures(x), w, 1, 'SAME') ** 2), [w, x])
  )(tf.ones([3, 3, 1, 2])),
  conv2d_c=lambda x, y: (
    lambda w: tf.gradients(
      tf.reduce_sum(tf.nn.conv2d(tf.tile(_pictures(x), [1, 1, 1, 32]), w, 1, 'SAME') ** 2), [w, x]
    )
  )(tf.ones([3, 3, 32, 32]) / 99),
  depthwise=lambda x, y: (
    lambda w: [
      tf.nn.depthwise_conv2d(_pictures(x), w, [1, 1, 1, 1], 'SAME'),
      *tf.gradients(
        tf.reduce_sum(tf.nn.depthwise_conv2d(_pictures(x), w, [1, 1, 1, 1], 'SAME') ** 2), [w, x]
      ),
    ]
  )(tf.ones([3, 3, 1, 2])),
  conv2d_s=lambda x, y: (
    lambda w: [
      tf.nn.conv2d(_pictures(x), w, [1, 2, 1, 1] and 2, 'SAME', dilations=1),
      *tf.gradients(tf.reduce_sum(tf.nn.conv2d(_pictures(x), w, 2, 'SAME') ** 2), [w, x]),
    ]
  )(tf.ones([3, 3, 1, 2])),
  conv1d=lambda x, y: tf.nn.conv1d(
    tf.reshape(tf.tile(x, [1, 4]), [-1, 4, 2]), tf.ones([2, 2, 3]), 1, 'SAME'
  ),
  convt=lambda x, y: tf.nn.conv2d_transpose(
    _pictures(x), tf.ones([2, 2, 3, 1]), tf.stack([tf.shape(x)[0], 8, 8, 3]), 2
  ),
  conv3d=lambda x, y: (
    lambda w: [
      tf.nn.conv3d(tf.reshape(_pictures(x), [-1, 2, 2, 4, 1]), w, [1] * 5, 'SAME'),
      *tf.gradients(
        tf.reduce_sum(
          tf.nn.conv3d(tf.reshape(_pictures(x), [-1, 2, 2, 4, 1]), w, [1] * 5, 'SAME') ** 2
        ),
        [w, x],
      ),
    ]
  )(tf.ones([2, 2, 2, 1, 2])),
  maxpool=lambda x, y: [
    tf.nn.max_pool2d(_pictures(x), 2, 2, 'SAME'),
    tf.nn.max_pool2d(_pictures(x), 3, 1, 'SAME'),
  ],
  maxpool_g=lambda x, y: tf.gradients(
    tf.reduce_sum(tf.nn.max_pool2d(_pictures(x), 2, 2, 'SAME') ** 2), x
  )[0],
  maxpool_g3=lambda x, y: tf.gradients(
    tf.reduce_sum(tf.nn.max_pool2d(_pictures(x), 3, 1, 'SAME') ** 2), x
  )[0],
  avgpool=lambda x, y: [
    tf.nn.avg_pool2d(_pictures(x), 2, 2, 'SAME'),
    tf.nn.avg_pool2d(_pictures(x), 3, 1, 'SAME'),
  ],
  avgpool_g=lambda x, y: tf.gradients(
    tf.reduce_sum(tf.nn.avg_pool2d(_pictures(x), 2, 2, 'SAME') ** 2), x
  )[0],
  avgpool_g3=lambda x, y: tf.gradients(
    tf.reduce_sum(tf.nn.avg_pool2d(_pictures(x), 3, 1, 'SAME') ** 2), x
  )[0],
  maxpool3d=lambda x, y: [
    tf.nn.max_pool3d(tf.reshape(_pictures(x), [-1, 2, 2, 4, 1]), 2, 2, 'SAME'),
    tf.gradients(
      tf.reduce_sum(
        tf.nn.max_pool3d(tf.reshape(_pictures(x), [-1, 2, 2, 4, 1]), 2, 2, 'SAME') ** 2
      ),
      x,
    )[0],
  ],
  avgpool3d=lambda x, y: [
    tf.nn.avg_pool3d(tf.reshape(_pictures(x), [-1, 2, 2, 4, 1]), 2, 2, 'SAME'),
    tf.gradients(
      tf.reduce_sum(
        tf.nn.avg_pool3d(tf.reshape(_pictures(x), [-1, 2, 2, 4, 1]), 2, 2, 'SAME') ** 2
      ),
      x,
    )[0],
  ],
  fbn=lambda x, y: list(_normalised(x)[:3]),
  fbn_i=lambda x, y: list(_normalised(x, m=[0.1], v=[0.3])[:1]),
  fbn_gi=lambda x, y: tf.gradients(tf.reduce_sum(_normalised(x, m=[0.1], v=[0.3])[0] ** 3), x)[0],
  resizebilinear=lambda x, y: tf.image.resize(_pictures(x), [8, 8]),
  resizenearest=lambda x, y: tf.image.resize(_pictures(x), [8, 8], 'nearest'),
  resizebilinear_g=lambda x, y: tf.gradients(
    tf.reduce_sum(tf.image.resize(_pictures(x), [8, 8]) ** 2), x
  ),
  resizenearest_g=lambda x, y: tf.gradients(
    tf.reduce_sum(tf.image.resize(_pictures(x), [8, 8], 'nearest') ** 2), x
  ),
  spacetobatch=lambda x, y: tf.space_to_batch(_pictures(x), [2, 2], [[0, 0], [0, 0]]),
  batchtospace=lambda x, y: tf.batch_to_space(
    tf.space_to_batch(_pictures(x), [2, 2], [[0, 0], [0, 0]]) + 1, [2, 2], [[0, 1], [1, 0]]
  ),
  causal=lambda x, y: tf.gradients(
    tf.square(tf.pad(tf.reshape(tf.tile(x, [1, 4]), [-1, 4, 2]), [[0, 0], [2, 0], [0, 0]])), x
  )[0],
  spacetodepth=lambda x, y: [
    tf.nn.space_to_depth(_pictures(x), 2),
    tf.nn.depth_to_space(tf.tile(_pictures(x), [1, 1, 1, 4]), 2),
  ],
  vmap=lambda x, y: tf.vectorized_map(lambda r: tf.reduce_sum(r), x),
  vmap2=lambda x, y: tf.vectorized_map(lambda r: r * 2 + 1, x),
  vmap3=lambda x, y: tf.vectorized_map(lambda r: tf.tensordot(r, [1.0, 2.0], 1), x),
  vmap4=lambda x, y: tf.vectorized_map(lambda r: tf.where(r > 0.5, tf.zeros_like(r), r)[-1:], x),
  max_g=lambda x, y: tf.gradients(tf.reduce_max(x, 0), x)[0],
  min_g=lambda x, y: tf.gradients(tf.reduce_min(x, 1), x)[0],
  mean_g=lambda x, y: [tf.gradients(tf.reduce_mean(x**2, a), x)[0] for a in (0, 1)],
  mean_gg=lambda x, y: tf.gradients(tf.reduce_mean(x**2), x)[0],
  where_g=lambda x, y: tf.gradients(tf.where(x > 0.5, x**2, x**3), x)[0],
  where_gs=lambda x, y: tf.gradients(tf.where(True, x**2, x**3), x)[0],
  maximum_g=lambda x, y: tf.gradients(tf.maximum(x**2, 0.5) + tf.minimum(x, [0.3, 0.8]), x)[0],
  divnonan_g=lambda x, y: tf.gradients(
    tf.math.divide_no_nan(x**2, [0.5, 0.0]) + tf.math.multiply_no_nan(x, [0.3, 0.0]), x
  )[0],
  softmax_g=lambda x, y: [
    tf.gradients(tf.nn.softmax(x) ** 2, x)[0],
    tf.gradients(tf.nn.log_softmax(x) ** 2, x)[0],
    tf.gradients(tf.nn.softmax(x, 0) ** 2, x)[0],
  ],
  xent_g=lambda x, y: tf.gradients(
    tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y % 2, x)), x
  )[0],
  xent_g2=lambda x, y: tf.gradients(
    tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(tf.one_hot(y % 2, 2), x)), x
  )[0],
  lse_g=lambda x, y: tf.gradients(tf.reduce_logsumexp(x, 0), x)[0],
  std=lambda x, y: [tf.math.reduce_std(x, 0), tf.math.reduce_variance(x)],
  norm=lambda x, y: [tf.norm(x, axis=0), tf.nn.l2_normalize(x, 0), tf.nn.l2_normalize(x, 1)],
  clipnorm=lambda x, y: [tf.clip_by_norm(x, 0.5), tf.clip_by_value(x, 0.2, 0.8)],
  matmul_g=lambda x, y: tf.gradients(tf.matmul(x, x, transpose_b=True) ** 2, x)[0],
  repeat=lambda x, y: [tf.repeat(x, 2, axis=0), tf.repeat(x, 2, axis=1)],
  meshgrid=lambda x, y: tf.meshgrid(x[:, 0], x[:, 1]),
  seqmask=lambda x, y: tf.sequence_mask(y, 3),
  ensure=lambda x, y: tf.ensure_shape(x, [None, 2]),
  case=lambda x, y: tf.switch_case(
    tf.shape(x)[0] - 2, [lambda: x * 2, lambda: x, lambda: x * 3, lambda: x * 4]
  ),
  cond=lambda x, y: tf.cond(tf.shape(x)[0] < 4, lambda: x * 2, lambda: x),
  tensordot=lambda x, y: [tf.tensordot(x, tf.ones([2, 3]), 1), tf.tensordot(x, x, [[0], [0]])],
  srand=lambda x, y: tf.random.stateless_uniform(tf.shape(x), [1, 2]),
  srand_longer=lambda x, y: [
    tf.random.stateless_uniform([3 * tf.shape(x)[0] + 1], [1, 2]),
    tf.random.stateless_uniform(tf.shape(_pictures(x)), [1, 2]),
    tf.random.stateless_uniform([3, tf.shape(x)[0], 2], [1, 2]),
    tf.random.stateless_normal([5 * tf.shape(x)[0], 3], [1, 2]),
    tf.random.stateless_uniform([5 * tf.shape(x)[0]], [1, 2], 0, 1000, tf.int32),
    tf.random.stateless_uniform([5 * tf.shape(x)[0]], [1, 2], 0, 1000, tf.int64),
  ],
  confusion=lambda x, y: tf.math.confusion_matrix(y, y % 2, 3),
  slice_last3=lambda x, y: [x[-3:-1], x[-3:]],
  slice_rev2=lambda x, y: [
    x[::-2],
    x[2:0:-1],
    x[-1::-1],
    x[1::2],
    x[::-1, ::-1],
    x[-1, 0],
    x[-1:, None, 0],
    x[..., ::-1],
  ],
  ones_like_column=lambda x, y: tf.reduce_sum(tf.ones_like(x[:, 0])),
  reversed_flat=lambda x, y: tf.reduce_sum(tf.reshape(tf.reverse(x, [0]), [-1])),
  reverse_both=lambda x, y: tf.reverse(x, [0, 1]),
)

# Refused, and so interpreted.
REFUSED = dict(
  mirrorpad0=lambda x, y: tf.pad(x, [[1, 1], [0, 0]], 'REFLECT'),
  # Of two of these in one program, a gradient among them, XLA ended the process.
  mirrorpad_before=lambda x, y: tf.gradients(
    tf.reduce_sum(tf.pad(tf.transpose(x), [[1, 1], [0, 0]], 'REFLECT') ** 2), x
  )[0],
  # In another order, of another size, or with another count at the end: what varies is not the
  # first axis.
  where_before=lambda x, y: tf.where(tf.transpose(x) > 0.5),
  reversesequence_before=lambda x, y: tf.reverse_sequence(
    tf.transpose(x)[..., None], [1, 2], seq_axis=1, batch_axis=0
  ),
  avgpool_before=lambda x, y: tf.nn.avg_pool1d(tf.transpose(x)[..., None], 2, 1, 'SAME'),
  resize_before=lambda x, y: tf.image.resize(tf.transpose(x)[:, :, None, None], [4, 2], 'nearest'),
  diag=lambda x, y: [
    tf.linalg.diag(x[:, 0]),
    tf.linalg.diag_part(tf.matmul(x, x, transpose_b=True)),
  ],
  eye=lambda x, y: tf.eye(tf.shape(x)[0]),
)


def in_short(ops):
  """A data set's function: of each op's values, by name, their order, number, mean and sizes."""

  def numbers(op, batch):
    found = []
    for value in tf.nest.flatten(op(*batch)):
      value = tf.cast(value, tf.float32)
      flat = tf.reshape(value, [-1])
      places = tf.cast(tf.range(1, 1 + tf.size(flat)), tf.float32)
      found += [
        tf.reduce_sum(flat * places),
        tf.cast(tf.size(value), tf.float32),
        tf.reduce_mean(value),
        tf.reduce_sum(tf.cast(tf.shape(value), tf.float32)),
      ]
    return tf.stack(found)

  def of_batch(*batch):
    return {name: numbers(op, batch) for name, op in ops.items()}

  def step(before, *batch):
    return {name: before[name] * 2 + value for name, value in of_batch(*batch).items()}

  specs = (tf.TensorSpec([None, 2]), tf.TensorSpec([None], tf.int32))
  shapes = tf.function(of_batch).get_concrete_function(*specs).output_shapes
  zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
  return lambda batches: batches.reduce(zeros, lambda before, batch: step(before, *batch))


def compare(native, ops, data, **settings):
  """Compares ops with TensorFlow on partial batches; the explanation."""
  type_ = tff.SequenceType(tff.types.tensorflow_to_type(data[0].element_spec))
  expected, found, explanation = learning.both(native, in_short(ops), type_, data, **settings)
  for of_client, ours in zip(expected, found, strict=True):
    for name in ops:
      np.testing.assert_allclose(ours[name], of_client[name], 2e-4, 2e-5, err_msg=name)
  return explanation
