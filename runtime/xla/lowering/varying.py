"""Which ops are right on values whose sizes vary, as of a smaller last batch.

XLA keeps such a dynamic size through most ops, loses it in some, and ends the process at a few.
So an op is taken only if it is known to be right: `tests/runtime/test_partial_batches.py` compares
each with TensorFlow. `sized_ops` writes some anew. All others are refused, and the part of the
program that has them is interpreted.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from runtime.xla.lowering import datasets

KNOWN = frozenset(
  [
    'Abs',
    'Acos',
    'Acosh',
    'Add',
    'AddN',
    'AddV2',
    'All',
    'Any',
    'ApproximateEqual',
    'ArgMax',
    'ArgMin',
    'Asin',
    'Asinh',
    'Atan',
    'Atan2',
    'Atanh',
    'AvgPool',
    'AvgPool3D',
    'AvgPool3DGrad',
    'AvgPoolGrad',
    'BatchMatMulV2',
    'BatchToSpaceND',
    'BesselI0e',
    'BesselI1e',
    'BiasAdd',
    'BiasAddGrad',
    'Bitcast',
    'BitwiseAnd',
    'BitwiseOr',
    'BitwiseXor',
    'BroadcastTo',
    'Bucketize',
    'Cast',
    'Ceil',
    'ClipByValue',
    'ConcatV2',
    'Conv2D',
    'Conv2DBackpropFilter',
    'Conv2DBackpropInput',
    'Conv3D',
    'Conv3DBackpropFilterV2',
    'Conv3DBackpropInputV2',
    'Cos',
    'Cosh',
    'Cumprod',
    'Cumsum',
    'CumulativeLogsumexp',
    'DenseBincount',
    'DepthToSpace',
    'DepthwiseConv2dNative',
    'DepthwiseConv2dNativeBackpropFilter',
    'DepthwiseConv2dNativeBackpropInput',
    'Digamma',
    'Div',
    'DivNoNan',
    'Einsum',
    'Elu',
    'EluGrad',
    'EnsureShape',
    'Equal',
    'Erf',
    'Erfc',
    'Erfinv',
    'Exp',
    'ExpandDims',
    'Expm1',
    'FakeQuantWithMinMaxVarsGradient',
    'FakeQuantWithMinMaxVarsPerChannelGradient',
    'Floor',
    'FloorDiv',
    'FloorMod',
    'FusedBatchNormGradV3',
    'FusedBatchNormV3',
    'GatherNd',
    'GatherV2',
    'Greater',
    'GreaterEqual',
    'InTopKV2',
    'Inv',
    'Invert',
    'InvertPermutation',
    'IsFinite',
    'IsInf',
    'IsNan',
    'L2Loss',
    'LeakyRelu',
    'LeakyReluGrad',
    'LeftShift',
    'Less',
    'LessEqual',
    'Lgamma',
    'Log',
    'Log1p',
    'LogSoftmax',
    'LogicalAnd',
    'LogicalNot',
    'LogicalOr',
    'LowerBound',
    'MatMul',
    'MatrixBandPart',
    'Max',
    'MaxPool',
    'MaxPool3D',
    'MaxPool3DGrad',
    'MaxPoolGrad',
    'Maximum',
    'Mean',
    'Min',
    'Minimum',
    'Mod',
    'Mul',
    'MulNoNan',
    'Ndtri',
    'Neg',
    'NotEqual',
    'OneHot',
    'OnesLike',
    'Pack',
    'Pad',
    'PadV2',
    'Pow',
    'Prod',
    'RealDiv',
    'Reciprocal',
    'ReciprocalGrad',
    'Relu',
    'Relu6',
    'Relu6Grad',
    'ReluGrad',
    'Reshape',
    'ResizeBilinear',
    'ResizeBilinearGrad',
    'ResizeNearestNeighbor',
    'ResizeNearestNeighborGrad',
    'ReverseSequence',
    'ReverseV2',
    'RightShift',
    'Rint',
    'Roll',
    'Round',
    'Rsqrt',
    'RsqrtGrad',
    'ScatterNd',
    'Select',
    'SelectV2',
    'Selu',
    'SeluGrad',
    'Shape',
    'ShapeN',
    'Sigmoid',
    'SigmoidGrad',
    'Sign',
    'Sin',
    'Sinh',
    'Size',
    'Slice',
    'Softmax',
    'SoftmaxCrossEntropyWithLogits',
    'Softplus',
    'SoftplusGrad',
    'Softsign',
    'SoftsignGrad',
    'SpaceToBatchND',
    'SpaceToDepth',
    'SparseSoftmaxCrossEntropyWithLogits',
    'Split',
    'SplitV',
    'Sqrt',
    'SqrtGrad',
    'Square',
    'SquaredDifference',
    'Squeeze',
    'StridedSlice',
    'StridedSliceGrad',
    'Sub',
    'Sum',
    'Tan',
    'Tanh',
    'TanhGrad',
    'TensorScatterAdd',
    'TensorScatterMax',
    'TensorScatterMin',
    'TensorScatterSub',
    'TensorScatterUpdate',
    'Tile',
    'TopKV2',
    'Transpose',
    'TruncateDiv',
    'TruncateMod',
    'Unpack',
    'UnsortedSegmentMax',
    'UnsortedSegmentMin',
    'UnsortedSegmentProd',
    'UnsortedSegmentSum',
    'Where',
    'Xdivy',
    'XlaOptimizationBarrier',
    'Xlog1py',
    'Xlogy',
    'ZerosLike',
  ]
)
# They pass values on, or read none; whole models and loops are their tests.
CARRIED = frozenset(
  [
    'Case',
    'If',
    'OptionalFromValue',
    'Rank',
    'ResourceGather',
    'StatelessCase',
    'StatelessIf',
    'TensorListFromTensor',
    'TensorListGetItem',
    'TensorListLength',
    'TensorListPopBack',
    'TensorListPushBack',
    'TensorListSetItem',
    'TensorListStack',
  ]
)
# Right on each row of a batch by itself: how many axes of a row they take together (`row_ops`).
ROW_AXES: Mapping[str, int] = dict(
  Betainc=0,
  Complex=0,
  ComplexAbs=0,
  Conj=0,
  FakeQuantWithMinMaxArgs=0,
  FakeQuantWithMinMaxArgsGradient=0,
  FakeQuantWithMinMaxVars=0,
  Igamma=0,
  IgammaGradA=0,
  Igammac=0,
  Imag=0,
  NextAfter=0,
  Polygamma=0,
  PopulationCount=0,
  Real=0,
  Zeta=0,
  Cross=1,
  FakeQuantWithMinMaxVarsPerChannel=1,
  FFT=1,
  HSVToRGB=1,
  IFFT=1,
  IRFFT=1,
  MatrixDiag=1,
  MatrixDiagV2=1,
  MatrixDiagV3=1,
  RFFT=1,
  RGBToHSV=1,
  Cholesky=2,
  FFT2D=2,
  IFFT2D=2,
  IRFFT2D=2,
  MatrixDiagPart=2,
  MatrixDiagPartV2=2,
  MatrixDiagPartV3=2,
  MatrixInverse=2,
  MatrixSetDiag=2,
  MatrixSetDiagV2=2,
  MatrixSetDiagV3=2,
  MatrixSolve=2,
  MatrixTriangularSolve=2,
  Qr=2,
  RFFT2D=2,
  SelfAdjointEigV2=2,
  Svd=2,
  AdjustContrastv2=3,
  AdjustHue=3,
  AdjustSaturation=3,
  ExtractImagePatches=3,
  LRN=3,
  LRNGrad=3,
)
# Right where only axes before those at which they pad vary. Of others XLA may end the process.
_PADDING = ('MirrorPad', 'MirrorPadGrad')
# Right where no axis but the first varies: of others they count at wrong ends, or lose the size.
_ROWS = (
  'AvgPool',
  'AvgPool3D',
  'AvgPool3DGrad',
  'AvgPoolGrad',
  'ResizeBilinear',
  'ResizeBilinearGrad',
  'ResizeNearestNeighbor',
  'ResizeNearestNeighborGrad',
  'ReverseSequence',
  'Where',
)


def is_varying(value: Any) -> bool:
  """Whether a value may have a dynamic size, which TensorFlow does not know."""
  return (
    tf.is_tensor(value)
    and value.dtype not in (tf.variant, tf.resource)
    and not value.shape.is_fully_defined()
  )


def varies(value: tf.Tensor, axis: int) -> bool:
  """Whether one of its sizes may be dynamic."""
  return value.shape.rank is None or value.shape[axis] is None


def is_unsized(op: str, inputs: list[Any], unsized: Mapping[int, tf.Tensor]) -> bool:
  """Whether XLA takes an op's results to have their largest sizes.

  Beside values whose sizes it knows that does no harm, but such a size is not to be read.
  """
  sources = [i for i in inputs if is_varying(i)]
  of_a_list = op in ('TensorListPopBack', 'TensorListGetItem')
  return of_a_list or (bool(sources) and all(id(i) in unsized for i in sources))


def handing_on(inputs: list[Any], outputs: list[Any], cut: Mapping[int, Any]) -> list[Any]:
  """An op's results that hand on a size which is cut: what varies, shapes, and tensor lists.

  Args:
    inputs: of the op.
    outputs: its results.
    cut: what may have such sizes, by id.
  """
  if not any(id(i) in cut for i in inputs):
    return []
  carriers = (tf.int32, tf.int64, tf.variant)
  return [o for o in outputs if is_varying(o) or (tf.is_tensor(o) and o.dtype in carriers)]


def refusal(op: str) -> datasets.NotLowered:
  """Says what to change."""
  return datasets.NotLowered(
    f"the op {op} on a batch whose size varies: batch with drop_remainder in the clients' "
    'pipeline, mask padded rows instead of slicing them, or leave it to the interpreter'
  )


def check(node: Any, inputs: list[Any]) -> None:
  """Refuses an op of values whose sizes vary, unless it is known to be right.

  Raises:
    NotLowered: it is not.
  """
  if not any(map(is_varying, inputs)):
    return
  if node.op in _PADDING:
    paddings = tf.get_static_value(inputs[1])
    padded = None if paddings is None else [axis for axis, pair in enumerate(paddings) if any(pair)]
    if padded is None or (padded and None in inputs[0].shape[min(padded) :]):
      raise refusal(node.op)
  elif node.op in _ROWS:
    if any(None in value.shape[1:] for value in inputs if is_varying(value)):
      raise refusal(node.op)
  elif not any(node.op in known for known in (KNOWN, CARRIED, ROW_AXES)):
    raise refusal(node.op)
