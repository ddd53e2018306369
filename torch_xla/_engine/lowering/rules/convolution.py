"""Lowering rules of convolutions with one to three spatial dimensions; gradients are transposes of the forward pass."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._engine.lowering import cpu_kernel_call
from torch_xla._engine.lowering.nn_common import per_dim, widen
from torch_xla._engine.lowering.registry import LoweringRuleContext, lower
from torch_xla._engine.lowering.rules.matmul import precision_for

_LAYOUTS = {1: ("NCH", "OIH", "NCH"), 2: ("NCHW", "OIHW", "NCHW"), 3: ("NCDHW", "OIDHW", "NCDHW")}
Ints = Sequence[int]

#: Maxima for _weight_gradient_by_patches: channels of the image, elements of the kernel, bytes of all patches.
_FEW_CHANNELS, _MOST_TAPS, _MOST_PATCHES = 4, 64, 64 << 20

#: Multiplications in a convolution, and in a grouped one, from which ATen's CPU kernel is worth a call
#: (docs/project/cpu_kernels.md).
_LEAST_PRODUCTS, _LEAST_OF_GROUPS = 1 << 21, 1 << 16


@dataclass(frozen=True, slots=True)
class _Geometry:
    """The static arguments of a convolution, one value per spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @staticmethod
    def of(
        n: int, stride: Ints, padding: Ints, dilation: Ints, transposed: bool, extra: Ints, groups: int
    ) -> _Geometry:
        stride, padding, dilation = per_dim(stride, n), per_dim(padding, n), per_dim(dilation, n)
        return _Geometry(stride, padding, dilation, transposed, per_dim(extra, n), groups)

    def is_profitable(self, image: Ints, weight: jax.Array, *operands: jax.Array) -> bool:
        """Return whether to call ATen's CPU kernel, for operands of one dtype.

        ``image``: the shape of the result, or of the operand if the convolution is transposed.
        """
        products = image[0] * math.prod(image[2:]) * math.prod(weight.shape)
        return cpu_kernel_call.is_profitable(products, _LEAST_PRODUCTS if self.groups == 1 else _LEAST_OF_GROUPS) and (
            cpu_kernel_call.all_float32(*operands) or cpu_kernel_call.all_bfloat16(*operands)
        )

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of ATen's CPU kernel."""
        return {
            "stride": self.stride, "padding": self.padding, "dilation": self.dilation, "transposed": self.transposed,
            "output_padding": self.output_padding, "groups": self.groups,
        }  # fmt: skip

    def apply(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        return self._transposed(x, weight) if self.transposed else self._plain(x, weight)

    def _plain(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x,
            weight,
            self.stride,
            [(p, p) for p in self.padding],
            rhs_dilation=self.dilation,
            feature_group_count=self.groups,
            dimension_numbers=_LAYOUTS[x.ndim - 2],
            precision=precision_for(x.dtype, convolution=True),
        )

    def _transposed(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        """Transpose _plain in its input: a convolution of the dilated x with the mirrored kernel."""
        kernel = weight.shape[2:]
        reach = [d * (k - 1) - p for d, k, p in zip(self.dilation, kernel, self.padding, strict=True)]
        # torch stores the kernel as (in, out / groups, ...), XLA expects (out, in / groups, ...)
        grouped = weight.reshape(self.groups, weight.shape[0] // self.groups, *weight.shape[1:]).swapaxes(1, 2)
        mirrored = lax.rev(grouped.reshape(-1, grouped.shape[2], *kernel), range(2, weight.ndim))
        return lax.conv_general_dilated(
            x,
            mirrored,
            (1,) * len(kernel),
            [(r, r + o) for r, o in zip(reach, self.output_padding, strict=True)],
            lhs_dilation=self.stride,
            rhs_dilation=self.dilation,
            feature_group_count=self.groups,
            dimension_numbers=_LAYOUTS[x.ndim - 2],
            precision=precision_for(x.dtype, convolution=True),
        )

    def input_gradient(self, grad: jax.Array, x: jax.Array, weight: jax.Array) -> jax.Array:
        (result,) = jax.linear_transpose(lambda x: self.apply(x, weight), x)(grad)
        return result

    def weight_gradient(self, grad: jax.Array, x: jax.Array, weight: jax.Array) -> jax.Array:
        def transpose(grad: jax.Array, x: jax.Array) -> jax.Array:
            (result,) = jax.linear_transpose(lambda w: self.apply(x, w), weight)(grad)
            return result

        # The transpose of a grouped convolution uses batch groups. XLA's CPU backend has no fast code for them (100
        # times slower) except for depthwise ones; its GPU backend matches them as a cuDNN weight gradient.
        if not self.transposed and self.groups == 1 and self._few_patches(grad, x, weight):
            patches = lambda grad, x: self._weight_gradient_by_patches(grad, x, weight.shape)
            return lax.platform_dependent(grad, x, tpu=patches, default=transpose)
        if self.transposed or self.groups in (1, x.shape[1]):
            return transpose(grad, x)
        fast = lambda grad, x: self._grouped_weight_gradient(grad, x, weight.shape)
        return lax.platform_dependent(grad, x, cpu=fast, default=transpose)

    @staticmethod
    def _few_patches(grad: jax.Array, x: jax.Array, weight: jax.Array) -> bool:
        """Return whether the image has few channels, and its patches take little memory."""
        size = grad.shape[0] * math.prod(weight.shape[1:]) * math.prod(grad.shape[2:]) * x.dtype.itemsize
        taps = math.prod(weight.shape[2:])
        return x.shape[1] <= _FEW_CHANNELS and taps <= _MOST_TAPS and size <= _MOST_PATCHES

    def _weight_gradient_by_patches(self, grad: jax.Array, x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Compute the weight gradient as a matrix multiplication of grad with all patches of x.

        For TPUs: libtpu (of jax 0.10.2) takes minutes to compile a convolution with few channels whose kernel is as
        large as grad: 57 s for the first layer of a LeNet, and 3.3 s for this formulation. The patches are slices,
        because lax.conv_general_dilated_patches multiplies with zeros and ones.
        """
        precision = precision_for(x.dtype, convolution=True)
        padded = jnp.pad(x, [(0, 0), (0, 0), *((p, p) for p in self.padding)])
        steps, out = (1, 1, *self.stride), grad.shape[2:]

        def under(tap: tuple[int, ...]) -> jax.Array:  # the elements of x that this kernel element multiplies
            start = [d * t for d, t in zip(self.dilation, tap, strict=True)]
            end = [at + s * (n - 1) + 1 for at, s, n in zip(start, self.stride, out, strict=True)]
            return lax.slice(padded, (0, 0, *start), (*x.shape[:2], *end), steps)

        taps = itertools.product(*(range(size) for size in shape[2:]))
        patches = jnp.stack([under(tap) for tap in taps], 2).reshape(x.shape[0], -1, *out)
        axes = [0, *range(2, x.ndim)]
        product = jnp.tensordot(grad, patches, (axes, axes), precision=precision)
        return product.reshape(shape)

    def _grouped_weight_gradient(self, grad: jax.Array, x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Convolve x with grad, with the batch as the input feature: feature groups instead of batch groups."""
        n, space = x.shape[0], x.shape[2:]
        by_group = x.reshape(n, self.groups, -1, *space)
        image = jnp.moveaxis(by_group, 2, 0).swapaxes(1, 2).reshape(-1, self.groups * n, *space)
        window = zip(shape[2:], self.dilation, grad.shape[2:], self.stride, space, self.padding, strict=True)
        high = [(k - 1) * d + (g - 1) * s + 1 - size - p for k, d, g, s, size, p in window]
        result = lax.conv_general_dilated(
            image,
            grad.swapaxes(0, 1),
            self.dilation,
            list(zip(self.padding, high, strict=True)),
            rhs_dilation=self.stride,
            feature_group_count=self.groups,
            dimension_numbers=_LAYOUTS[x.ndim - 2],
            precision=precision_for(x.dtype, convolution=True),
        )
        return result.swapaxes(0, 1)


@lower("aten::convolution", "aten::convolution_overrideable", "aten::_convolution", ctx=True)
def _convolution(
    ctx: LoweringRuleContext,
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    *_backend_flags: bool,
) -> jax.Array:
    n = x.ndim - 2
    if 0 in ctx.shape:  # without input channels torch returns no output channels
        return jnp.zeros(ctx.shape, ctx.dtype)
    geometry = _Geometry.of(n, stride, padding, dilation, transposed, output_padding, groups)

    def xla_lowering(x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> list[jax.Array]:
        result = geometry.apply(x, weight)
        return [result if bias is None else result + bias.reshape(-1, *(1,) * n)]

    operands = [x, weight] if bias is None else [x, weight, bias]
    out = jax.ShapeDtypeStruct(ctx.shape, x.dtype)
    if geometry.is_profitable(x.shape if transposed else ctx.shape, weight, *operands):
        return cpu_kernel_call.cpu_kernel_call("convolution", xla_lowering, operands, [out], **geometry.attributes())[0]
    return xla_lowering(*operands)[0]


@lower("aten::convolution_backward", ctx=True)
def _convolution_backward(
    ctx: LoweringRuleContext,
    grad: jax.Array,
    x: jax.Array,
    weight: jax.Array,
    bias_sizes: Ints | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    mask: Sequence[bool],
) -> tuple[jax.Array | None, ...]:
    n = x.ndim - 2
    if 0 in grad.shape or 0 in x.shape:
        shapes = [shape if wanted else None for (shape, _), wanted in zip(ctx.out_specs, mask, strict=True)]
        return tuple(None if shape is None else jnp.zeros(shape, grad.dtype) for shape in shapes)
    geometry = _Geometry.of(n, stride, padding, dilation, transposed, output_padding, groups)

    def xla_lowering(grad: jax.Array, x: jax.Array, weight: jax.Array) -> list[jax.Array]:
        found = [geometry.input_gradient(grad, x, weight)] if mask[0] else []
        if mask[1]:
            found.append(geometry.weight_gradient(grad, x, weight))
        if mask[2]:
            found.append(widen(grad).sum((0, *range(2, x.ndim))).astype(grad.dtype))
        return found

    operands = [grad, x, weight]
    if (mask[0] or mask[1]) and geometry.is_profitable((x if transposed else grad).shape, weight, *operands):
        full = (x.shape, weight.shape, (weight.shape[1] * groups if transposed else weight.shape[0],))
        outs = [jax.ShapeDtypeStruct(shape, grad.dtype) for shape, wanted in zip(full, mask, strict=True) if wanted]
        found = cpu_kernel_call.cpu_kernel_call(
            "convolution_backward", xla_lowering, operands, outs, mask=mask, **geometry.attributes()
        )
    else:
        found = xla_lowering(*operands)
    made = iter(found)
    return tuple(next(made) if wanted else None for wanted in mask)


@lower("aten::convolution_backward_overrideable", ctx=True)
def _convolution_backward_overrideable(
    ctx: LoweringRuleContext, grad: jax.Array, x: jax.Array, weight: jax.Array, *geometry_and_mask: object
) -> tuple[jax.Array | None, ...]:
    result: tuple[jax.Array | None, ...] = _convolution_backward(ctx, grad, x, weight, None, *geometry_and_mask)
    return result
