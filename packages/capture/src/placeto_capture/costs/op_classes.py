"""The class of each type of op, which decides how well a device is used."""

from enum import StrEnum


class OpClass(StrEnum):
    """A class of ops that use a device about equally well (`op_class`)."""

    CONVOLUTION = "convolution"
    MATRIX_PRODUCT = "matrix_product"
    ATTENTION = "attention"
    NORMALISATION = "normalisation"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    COPY = "copy"


# Types that are no work: their tensors are there when the step begins, or they make none.
RESIDENT_TYPES = frozenset({"parameter", "buffer", "input", "placeto.barrier", "placeto.free"})

# FLOPs per byte, of float32, from which on an op of an unknown type counts as a product of
# matrices. Only an op whose FLOPs torch counts by a formula does so many.
DENSE_INTENSITY = 9.0

# Bytes of a number in relation to one of float32, by which that intensity grows or shrinks.
WIDTH_OF_DTYPE = {
    "float64": 2.0,
    "bfloat16": 0.5,
    "float16": 0.5,
    "float8_e4m3fn": 0.25,
    "float8_e5m2": 0.25,
    "float8_e4m3fnuz": 0.25,
    "float8_e5m2fnuz": 0.25,
    "float8_e8m0fnu": 0.25,
    "float4_e2m1fn_x2": 0.125,  # two numbers a byte
    "int64": 2.0,
    "int16": 0.5,
    "int8": 0.25,
    "uint8": 0.25,
}

NAMES_OF_CLASS = {
    OpClass.CONVOLUTION: """
        convolution _convolution conv1d conv2d conv3d conv_transpose2d convolution_overrideable
        convolution_backward_overrideable cudnn_convolution mkldnn_convolution _slow_conv2d_forward
        _slow_conv2d_backward _conv_depthwise2d
    """,
    OpClass.MATRIX_PRODUCT: """
        mm addmm bmm baddbmm addbmm mv addmv dot vdot ger outer addr matmul linear bilinear einsum
        _trilinear mkldnn_rnn_layer _cudnn_rnn _scaled_mm _scaled_mm_v2 _grouped_mm
        _scaled_grouped_mm _scaled_grouped_mm_v2 _int_mm _euclidean_dist
    """,
    OpClass.ATTENTION: """
        _scaled_dot_product_attention_math _scaled_dot_product_flash_attention
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention
        _scaled_dot_product_cudnn_attention _flash_attention_forward _flash_attention_backward
        _efficient_attention_forward _efficient_attention_backward
    """,
    OpClass.NORMALISATION: """
        native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training
        _native_batch_norm_legit_functional _batch_norm_with_update
        _batch_norm_with_update_functional _batch_norm_no_update batch_norm_backward
        cudnn_batch_norm native_layer_norm native_group_norm _fused_rms_norm _softmax _safe_softmax
        _softmax_backward_data _log_softmax _log_softmax_backward_data _weight_norm_interface
    """,
    OpClass.ELEMENTWISE: """
        add sub rsub mul div neg abs sign sgn reciprocal square sqrt rsqrt pow exp exp2 expm1 log
        log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh erf erfc
        erfinv lgamma digamma floor ceil round trunc frac fmod remainder floor_divide true_divide
        relu relu6 leaky_relu prelu _prelu_kernel rrelu_with_noise elu celu selu threshold hardtanh
        hardswish hardsigmoid sigmoid tanh gelu silu mish softplus logit log_sigmoid_forward
        log_sigmoid_backward softshrink hardshrink glu addcmul addcdiv lerp clamp clamp_min
        clamp_max maximum minimum fmax fmin where masked_fill masked_scatter native_dropout
        bernoulli rand rand_like randn randn_like randint randint_like randperm normal uniform
        exponential eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and
        bitwise_or bitwise_not bitwise_xor bitwise_left_shift bitwise_right_shift isnan isinf
        isfinite nan_to_num heaviside tril triu hypot copysign mse_loss smooth_l1_loss huber_loss
        binary_cross_entropy binary_cross_entropy_with_logits nll_loss_backward nll_loss2d_backward
        soft_margin_loss _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl
        _thnn_fused_gru_cell _fused_dropout _masked_scale _fused_adam _fused_adamw _fused_sgd
        complex polar angle
    """,
    OpClass.REDUCTION: """
        sum mean prod var std var_mean std_mean amax amin max min argmax argmin any all norm
        linalg_vector_norm cumsum cumprod logcumsumexp logsumexp nansum count_nonzero median mode
        topk sort kthvalue _unique2 histc bincount nll_loss nll_loss_forward nll_loss2d_forward
        cross_entropy_loss max_pool2d max_pool2d_with_indices max_pool3d_with_indices avg_pool2d
        avg_pool3d adaptive_max_pool2d _adaptive_avg_pool2d _adaptive_avg_pool3d embedding_bag
        _embedding_bag _embedding_bag_forward_only aminmax cummax cummin _cummax_helper
        _cummin_helper searchsorted bucketize isin multinomial _cdist_forward _cdist_backward
        _pdist_forward _pdist_backward _fft_r2c _fft_c2r _fft_c2c
    """,
    OpClass.COPY: """
        copy _to_copy clone contiguous cat stack repeat constant_pad_nd reflection_pad2d
        replication_pad2d roll flip rot90 slice_scatter select_scatter diagonal_scatter
        as_strided_scatter im2col col2im pixel_shuffle pixel_unshuffle channel_shuffle gather
        scatter scatter_add scatter_reduce index index_put _index_put_impl _unsafe_index
        _unsafe_index_put index_select index_add index_fill take nonzero masked_select embedding
        embedding_dense_backward _embedding_bag_backward _embedding_bag_dense_backward put
        embedding_renorm one_hot upsample_nearest2d upsample_bilinear2d fill full full_like zero
        zeros zeros_like ones ones_like new_zeros new_ones new_full empty empty_like new_empty
        empty_strided new_empty_strided scalar_tensor arange linspace logspace eye lift lift_fresh
        _local_scalar_dense tril_indices triu_indices diag_embed reflection_pad1d reflection_pad3d
        replication_pad1d replication_pad3d upsample_linear1d upsample_bicubic2d upsample_nearest1d
        upsample_nearest3d upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa
        grid_sampler_2d grid_sampler_3d alias as_strided detach diagonal expand permute select slice
        split split_with_sizes squeeze t transpose unbind unfold unsqueeze view view_as_complex
        view_as_real _reshape_alias _unsafe_view
    """,
}

CLASS_OF_TYPE: dict[str, OpClass] = {
    f"aten.{name}": op_class for op_class, names in NAMES_OF_CLASS.items() for name in names.split()
}
# Types that this project makes itself.
CLASS_OF_TYPE |= dict.fromkeys(
    ("placeto.update", "placeto.add_gradients", "placeto.sum_copies"), OpClass.ELEMENTWISE
)
CLASS_OF_TYPE |= dict.fromkeys(("placeto.bucket", "placeto.shard", "placeto.gather"), OpClass.COPY)


def class_of_type(op_type: str) -> OpClass | None:
    """Return the class of a type, or of what it is a gradient or copy of; None if unknown."""
    name = op_type.replace("aten._foreach_", "aten.").rstrip("_")
    for candidate in (name, name.removesuffix("_backward"), name.removesuffix("_copy")):
        if candidate in CLASS_OF_TYPE:
            return CLASS_OF_TYPE[candidate]
    return None


def op_class(op_type: str, flops: float, bytes_accessed: float, *, dtype: str = "") -> OpClass:
    """Return the class of an op, by what ``OpGraph`` says of it.

    A type in no class is a matrix product from `DENSE_INTENSITY` FLOPs per byte on, as if its
    numbers were float32, else elementwise.
    """
    type_class = class_of_type(op_type)
    if type_class is not None:
        return type_class
    dense = flops * WIDTH_OF_DTYPE.get(dtype, 1.0) >= DENSE_INTENSITY * bytes_accessed
    return OpClass.MATRIX_PRODUCT if dense and flops > 0 else OpClass.ELEMENTWISE
