"""Arithmetic, memory traffic and runtime of one ATen op."""

import math
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.utils.flop_counter import flop_registry

from regal_jax.checks import whole
from regal_jax.importers.einsum import einsum_flops
from regal_jax.importers.fx_program import Call, is_view, tensor_bytes
from regal_jax.importers.roofline import DeviceProfile

__all__ = ["call_flops", "call_seconds", "call_traffic"]

_MOVES: Final = frozenset({
    "clone", "copy", "_to_copy", "to", "contiguous", "cat", "concat", "stack", "index", "index_select",
    "gather", "embedding", "take", "take_along_dim", "select_scatter", "slice_scatter", "diagonal_scatter",
    "as_strided_scatter", "select_backward", "slice_backward", "constant_pad_nd", "pad", "roll", "flip",
    "repeat", "repeat_interleave", "full", "full_like", "zeros", "zeros_like", "ones", "ones_like",
    "new_full", "new_zeros", "new_ones", "new_empty", "arange", "scalar_tensor", "fill", "tril", "triu",
    "eye", "im2col", "reflection_pad1d", "reflection_pad2d", "replication_pad2d", "pixel_shuffle",
    "pixel_unshuffle", "channel_shuffle", "split_copy", "view_copy", "lift_fresh_copy", "masked_select",
    "tile", "unfold_backward", "max_unpool2d", "upsample_nearest2d", "upsample_nearest1d", "meshgrid",
})  # fmt: skip
"""Ops that move data and compute nothing."""
_PICKS: Final = frozenset({"index", "index_select", "gather", "embedding", "take", "take_along_dim"})
"""Ops that read only the part of their first operand that they return."""
_HEAVY: Final = frozenset({
    "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "tanh", "sigmoid", "sin", "cos", "tan", "asin",
    "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh", "pow", "erf", "erfc", "erfinv",
    "lgamma", "digamma", "gelu", "gelu_backward", "silu", "silu_backward", "mish", "mish_backward", "elu",
    "elu_backward", "celu", "selu", "softplus", "softplus_backward", "log_sigmoid", "log_sigmoid_forward",
    "log_sigmoid_backward", "logit", "xlogy", "logaddexp", "special_erf", "special_expit",
})  # fmt: skip
_HEAVY_FLOPS: Final = 10
"""As for JAX: a transcendental function counts as 10 flops per element, any other elementwise op as 1."""
_RANDOM: Final = frozenset({
    "bernoulli", "rand", "rand_like", "randn", "randn_like", "randint", "uniform", "normal", "exponential",
    "native_dropout", "dropout", "alpha_dropout", "feature_dropout", "multinomial", "randperm",
})  # fmt: skip
_RANDOM_FLOPS: Final = 50
"""Flops for one random word: our estimate, as for JAX."""
_COMPOSED: Final = {
    # Largest, difference, exponential, sum, quotient; and backward product, sum, difference, product.
    "_softmax": 14, "softmax": 14, "_log_softmax": 14, "log_softmax": 14, "_safe_softmax": 14,
    "_softmax_backward_data": 4, "_log_softmax_backward_data": 13,
    # Mean, difference, square, its mean, product, scale, shift; backward about twice that.
    "layer_norm": 7, "native_layer_norm": 7, "group_norm": 7, "native_group_norm": 7, "batch_norm": 7,
    "native_batch_norm": 7, "_native_batch_norm_legit": 7, "_native_batch_norm_legit_functional": 7,
    "_batch_norm_with_update": 7, "_batch_norm_with_update_functional": 7, "instance_norm": 7,
    "rms_norm": 4, "_fused_rms_norm": 4, "_fused_rms_norm_backward": 8,
    # From stored statistics: difference, product, scale, shift.
    "_native_batch_norm_legit_no_training": 4, "_batch_norm_no_update": 4,
    "native_layer_norm_backward": 14, "native_group_norm_backward": 14, "native_batch_norm_backward": 14,
    "batch_norm_backward": 14,
    "var": 4, "std": 4, "var_mean": 4, "std_mean": 4,
    "addcmul": 3, "addcdiv": 3, "lerp": 3, "native_dropout_backward": 2,
}  # fmt: skip
"""Flops per element of the first operand, for composite ops."""
_REDUCTIONS: Final = frozenset({
    "sum", "mean", "prod", "amax", "amin", "aminmax", "max", "min", "argmax", "argmin", "all", "any", "norm",
    "linalg_vector_norm", "logsumexp", "nansum", "count_nonzero", "median", "cumsum", "cumprod",
    "logcumsumexp", "cummax", "cummin", "_adaptive_avg_pool2d", "adaptive_avg_pool2d", "adaptive_avg_pool1d",
    "_adaptive_avg_pool3d", "adaptive_max_pool2d", "embedding_dense_backward", "sum_to_size",
})  # fmt: skip
"""One flop per input element."""
_SCATTERS: Final = frozenset({"scatter_add", "index_add", "index_put", "_unsafe_index_put", "scatter_reduce"})
"""One flop per element of the last tensor operand."""
_LOSSES: Final = frozenset({"nll_loss_forward", "nll_loss", "mse_loss", "cross_entropy_loss"})
_RECURRENT: Final = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu", "mkldnn_rnn_layer"})
_FACTORISATIONS: Final = {
    "linalg_cholesky_ex": 1 / 3, "cholesky": 1 / 3, "linalg_lu_factor_ex": 2 / 3, "linalg_qr": 4 / 3,
    "linalg_inv_ex": 2.0, "linalg_solve_triangular": 1.0, "_linalg_eigh": 9.0, "_linalg_svd": 20.0,
}  # fmt: skip
"""Leading coefficient of the flops of a dense factorisation (Golub and Van Loan, Matrix Computations)."""
_MATRIX: Final = frozenset({
    "linear", "matmul", "mv", "dot", "vdot", "einsum", "bilinear", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_dot_product_attention_math", "addmv", "addbmm",
    "_scaled_dot_product_fused_attention_overrideable",
})  # fmt: skip


def _short(call: Call) -> str:
    return call.kind.rpartition(".")[2]


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _tensors(item)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))


def call_traffic(call: Call) -> int:
    """Bytes read and written: each operand and each output once; a gather reads only what it returns."""
    written = sum(map(tensor_bytes, call.outputs))
    if _short(call) in _PICKS:
        return 2 * written + sum(map(tensor_bytes, call.inputs[1:]))
    return written + sum(map(tensor_bytes, call.inputs))


def call_flops(call: Call) -> tuple[float, bool]:
    """Flops of one op without its bodies, and whether matrix units can do them.

    Matrix products, convolutions, attention and their gradients are exact, by the formulas of
    `torch.utils.flop_counter` where it has them: a multiply-add is two, and padding counts. Elementwise
    ops count 1 per output element, transcendental ones 10, random numbers 50; reductions, cumulative
    ops and the adds of a scatter 1 per input element; normalisations and softmax the ops they are
    made of; pools their window; a sort ``n log2 n``. An unknown op is treated as elementwise.

    Args:
      call: The op.
    """
    name = _short(call)
    packet = getattr(call.target, "overloadpacket", None)
    if packet in flop_registry:
        return float(flop_registry[packet](*call.args, **call.kwargs, out_val=call.result)), True
    tensors = list(_tensors(call.args))
    out = max((v.tensor.numel() for v in call.outputs), default=0)
    first = tensors[0].numel() if tensors else out
    if name in _MATRIX:
        return _matrix_flops(name, call, tensors, out), True
    if name in _RECURRENT or name == "mkldnn_rnn_layer_backward":
        return _recurrent_flops(name, tensors), True
    if name in _MOVES:
        return 0, False
    if name in _RANDOM:
        return _RANDOM_FLOPS * out, False
    if name in _COMPOSED:
        return _COMPOSED[name] * first, False
    if name in _REDUCTIONS or (name in _LOSSES and tensors):
        return first, False
    if name in _SCATTERS:
        return tensors[-1].numel() if tensors else out, False
    return _other_flops(name, call, tensors, first, out), False


def _other_flops(name: str, call: Call, tensors: list[torch.Tensor], first: int, out: int) -> float:
    if "pool" in name and not name.startswith(("_adaptive", "adaptive")) and not name.endswith("_backward"):
        window = call.args[1] if len(call.args) > 1 and isinstance(call.args[1], (list, tuple)) else [1]
        rank = int(name.partition("pool")[2][:1]) if name.partition("pool")[2][:1].isdigit() else 1
        area = math.prod(window) if len(window) == rank else window[0] ** rank
        return out * area
    if name in ("sort", "topk", "argsort", "kthvalue"):
        place = 2 if name == "topk" else 1
        axis = whole(call.args[place]) if len(call.args) > place else None
        shape = tensors[0].shape
        length = shape[-1 if axis is None else axis] if shape else 1
        return first * math.log2(max(2, length))
    if name.startswith(("_fft_", "fft_")):
        axes = call.args[1] if len(call.args) > 1 and isinstance(call.args[1], (list, tuple)) else [-1]
        points = math.prod(max(t.shape[a] for t in (tensors[0], call.outputs[0].tensor)) for a in axes)
        return 5 * max(first, out) * math.log2(max(2, points))
    if name in _FACTORISATIONS and tensors[0].ndim > 1:
        *batch, m, n = tensors[0].shape
        return _FACTORISATIONS[name] * math.prod(batch) * max(m, n) * min(m, n) ** 2
    return out * (_HEAVY_FLOPS if name in _HEAVY else 1)


def _matrix_flops(name: str, call: Call, tensors: list[torch.Tensor], out: int) -> float:
    shapes = [t.shape for t in tensors]
    if name.startswith("conv_transpose"):
        return 2.0 * tensors[0].numel() * math.prod(shapes[1][1:])
    if name.startswith("conv"):
        return 2.0 * out * math.prod(shapes[1][1:])
    if name == "linear":
        return 2.0 * out * shapes[1][-1]
    if name in ("matmul", "mv", "dot", "vdot"):
        return 2.0 * call.outputs[0].tensor.numel() * shapes[0][-1]
    if name in ("addmv", "addbmm"):
        return 2.0 * tensors[1].numel() * (1 if name == "addmv" else shapes[2][-1])
    if name == "einsum":
        return einsum_flops(str(call.args[0]), shapes)
    if name == "bilinear":
        return 2.0 * out * shapes[2][1] * shapes[2][2]
    # Forward: scores, and sums of values weighted by them. Backward: the scores again, and four gradients.
    backward = name.endswith("_backward")
    query, key, value = shapes[1:4] if backward else shapes[:3]
    pairs = math.prod(query[:-1]) * key[-2]
    scores, values = 2.0 * pairs * query[-1], 2.0 * pairs * value[-1]
    return 3 * scores + 2 * values if backward else scores + values


def _recurrent_flops(name: str, tensors: list[torch.Tensor]) -> float:
    """Each weight is used once at each step of each sequence, and twice in the backward pass."""
    steps = math.prod(tensors[0].shape[:-1])
    weights = tensors[1:3] if name.startswith("mkldnn") else [t for t in tensors[1:] if t.ndim == 2]
    return 2.0 * steps * sum(w.numel() for w in weights) * (2 if name.endswith("_backward") else 1)


def call_seconds(call: Call, profile: DeviceProfile) -> float:
    """Runtime of one op: its roofline; views take no time, ``cond`` as long as its slowest branch.

    Any other op with bodies takes as long as they do, once each: a trace does not show trip counts.

    Args:
      call: The op.
      profile: The device.
    """
    if call.bodies:
        times = [sum(call_seconds(c, profile) for c in body.calls) for body in call.bodies]
        return max(times) if call.kind == "cond" else sum(times)
    if is_view(call):
        return 0.0
    flops, matrix = call_flops(call)
    tensors = [*_tensors(call.args), *(v.tensor for v in call.outputs)]
    dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else "float32"
    # A complex product is four real ones and as many sums; the count of an FFT is in real ones already.
    factor = (
        4 if not _short(call).lstrip("_").startswith("fft") and any(t.is_complex() for t in tensors) else 1
    )
    return profile.seconds(factor * flops, call_traffic(call), dtype, matrix=matrix)
