"""Computes discrete Fourier transforms of a fixed length, as products with constant matrices.

The last axis of a tensor holds the real and the imaginary part of a complex number, or only the
real part. A transform of at most `_LONGEST_TABLE` numbers is one product with a table of cosines
and sines. Longer transforms are composed of shorter transforms. All constants are computed in
double precision, and rounded once.

Sources: Cooley and Tukey, "An algorithm for the machine calculation of complex Fourier series"
(1965), for lengths with small factors; Bluestein, "A linear filtering approach to the computation
of discrete Fourier transform" (1970), for lengths with a large prime factor.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from ..lowering.static_shape import known_shape

_LONGEST_TABLE = 1024
"""The largest length of a transform that is computed as one product with a table.

Such a table has at most 2048 rows and 2048 columns, which take 16 MiB in float32.
"""

Complex = npt.NDArray[np.complex128]


def transformed(bb: relax.BlockBuilder, x: Any, length: int, inverse: bool, kept: int) -> Any:
    """Return the first `kept` numbers of the Fourier transform of each row.

    Parameters
    ----------
    x: rows of real or complex numbers, shape (rows, at most `length`, 1 or 2). A row that is
        shorter than `length` is padded with zeros.
    inverse: whether to compute the inverse transform, which divides by `length`.

    Returns
    -------
    result: complex numbers, shape (rows, `kept`, 2).
    """
    _, taken, parts = known_shape(x)
    if length <= _LONGEST_TABLE:
        turns = np.outer(np.arange(taken), np.arange(kept))
        factors = _roots(length, inverse)[turns % length] / (length if inverse else 1)
        table = np.stack([_in_parts(factors), _in_parts(1j * factors)], axis=1)[:, :parts]
        return _product(bb, x, table)
    first = _largest_divisor(length)
    if first == 1:
        return _as_convolution(bb, x, length, inverse, kept)
    if taken < length:
        widths = [0, 0, 0, length - taken, 0, 0]
        x = bb.emit(relax.op.nn.pad(x, widths, "constant", 0.0))
    whole = _by_factors(bb, x, (first, length // first), inverse)
    return whole if kept == length else bb.emit(relax.op.strided_slice(whole, [1], [0], [kept]))


def real_signal(bb: relax.BlockBuilder, x: Any, length: int) -> Any:
    """Return the real signals that have the given spectra. This inverts a one-sided transform.

    Parameters
    ----------
    x: the first `length // 2 + 1` numbers of each spectrum, or fewer, shape (rows, numbers, 1 or
        2). Numbers that are missing are taken to be 0. The second half of a spectrum is not given,
        because it mirrors the first half.

    Returns
    -------
    result: shape (rows, `length`, 1).
    """
    _, taken, parts = known_shape(x)
    places = np.arange(taken)
    # A number whose mirror image is in the other half of the spectrum is multiplied by 2.
    weights = np.where((places == 0) | (2 * places == length), 1.0, 2.0) / length
    if length <= _LONGEST_TABLE:
        turns = np.outer(places, np.arange(length))
        factors = _roots(length, inverse=True)[turns % length] * weights[:, None]
        table = np.stack([factors.real, -factors.imag], axis=1)[:, :parts, :, None]
        return _product(bb, x, table)
    scaled = bb.emit(relax.op.multiply(x, _constant(weights[:, None] * length, x)))
    # The spectrum of real numbers is symmetric. So with these weights, the real part of the sum
    # over the first half of a spectrum equals the sum over the whole spectrum.
    whole = transformed(bb, scaled, length, inverse=True, kept=length)
    return bb.emit(relax.op.strided_slice(whole, [2], [0], [1]))


def _product(bb: relax.BlockBuilder, x: Any, table: npt.NDArray[np.float64]) -> Any:
    """Return the product of the rows of `x` with a table.

    The table has four axes. The first two select a number of `x`, by its index, and its real or
    imaginary part. The last two select a number of the result and its real or imaginary part.
    """
    taken, parts, kept, parts_of_result = table.shape
    flat = bb.emit(relax.op.reshape(x, (-1, taken * parts)))
    matrix = _constant(table.reshape(taken * parts, kept * parts_of_result), x)
    result = bb.emit(relax.op.matmul(flat, matrix))
    return bb.emit(relax.op.reshape(result, (-1, kept, parts_of_result)))


def _by_factors(bb: relax.BlockBuilder, x: Any, factors: tuple[int, int], inverse: bool) -> Any:
    """Return the transform of rows whose length is the product of two factors.

    With factors p and q, a row is taken as a matrix of p rows and q columns. The columns of this
    matrix are transformed, each number is multiplied by a constant, and then its rows are
    transformed. The result is the matrix read column by column.
    """
    rows, _, parts = known_shape(x)
    p, q = factors
    matrix = bb.emit(relax.op.reshape(x, (rows, p, q, parts)))
    columns = bb.emit(relax.op.permute_dims(matrix, [0, 2, 1, 3]))
    columns = bb.emit(relax.op.reshape(columns, (rows * q, p, parts)))
    inner = bb.emit(relax.op.reshape(transformed(bb, columns, p, inverse, p), (rows, q, p, 2)))
    roots = _roots(p * q, inverse)
    turned = _times(bb, inner, roots[np.outer(np.arange(q), np.arange(p))])
    turned = bb.emit(relax.op.permute_dims(turned, [0, 2, 1, 3]))
    turned = bb.emit(relax.op.reshape(turned, (rows * p, q, 2)))
    outer = bb.emit(relax.op.reshape(transformed(bb, turned, q, inverse, q), (rows, p, q, 2)))
    by_columns = bb.emit(relax.op.permute_dims(outer, [0, 2, 1, 3]))
    return bb.emit(relax.op.reshape(by_columns, (rows, p * q, 2)))


def _as_convolution(bb: relax.BlockBuilder, x: Any, length: int, inverse: bool, kept: int) -> Any:
    """Return a transform of any length, computed by transforms whose length is a power of two.

    The product n * k of the indices of an input and an output equals (n**2 + k**2 - (k - n)**2) /
    2. So the transform can be written as a convolution with a constant signal. The convolution is
    computed as a product of spectra.
    """
    _, taken, _ = known_shape(x)
    places = np.arange(max(taken, kept), dtype=np.int64)
    chirp = _roots(2 * length, inverse)[places**2 % (2 * length)]
    wide = 1 << (taken + kept - 2).bit_length()
    signal = np.zeros(wide, np.complex128)
    signal[:kept] = chirp[:kept].conj()
    signal[wide - taken + 1 :] = chirp[1:taken][::-1].conj()
    spectrum = transformed(bb, _times(bb, x, chirp[:taken]), wide, inverse=False, kept=wide)
    product = _times(bb, spectrum, np.fft.fft(signal))
    result = transformed(bb, product, wide, inverse=True, kept=kept)
    return _times(bb, result, chirp[:kept] / (length if inverse else 1))


def _times(bb: relax.BlockBuilder, x: Any, factors: Complex) -> Any:
    """Return the numbers of `x`, each multiplied by a complex constant."""
    if known_shape(x)[-1] == 1:
        return bb.emit(relax.op.multiply(x, _constant(_in_parts(factors), x)))
    real = np.stack([factors.real, factors.real], axis=-1)
    imaginary = np.stack([-factors.imag, factors.imag], axis=-1)
    swapped = bb.emit(relax.op.flip(x, -1))
    straight = bb.emit(relax.op.multiply(x, _constant(real, x)))
    crossed = bb.emit(relax.op.multiply(swapped, _constant(imaginary, x)))
    return bb.emit(relax.op.add(straight, crossed))


def _roots(length: int, inverse: bool) -> Complex:
    """Return the complex roots of unity of order `length`, which are the powers of the first one.

    Real and imaginary parts that should be 0 are set to 0. Then the middle number of a real
    signal's spectrum has an imaginary part of exactly 0. With a rounding error in its place, the
    angle of this number would be pi or -pi by chance.
    """
    sign = 2j if inverse else -2j
    roots = np.exp(sign * np.pi * np.arange(length) / length)
    # Only parts that should be 0 are smaller than 1 / (length + 1). All other real and imaginary
    # parts have absolute values of at least 1 / length.
    exact = [np.where(np.abs(x) * (length + 1) < 1, 0, x) for x in (roots.real, roots.imag)]
    return np.asarray(exact[0] + 1j * exact[1])


def _largest_divisor(length: int) -> int:
    """Return the largest divisor of `length` that is at most the square root of `length`."""
    return next(n for n in range(isqrt(length), 0, -1) if length % n == 0)


def _in_parts(numbers: Complex) -> npt.NDArray[np.float64]:
    return np.stack([numbers.real, numbers.imag], axis=-1)


def _constant(values: npt.NDArray[np.float64], x: Any) -> relax.Expr:
    dtype = str(x.ty.dtype)
    return relax.const(values.astype(dtype), dtype)
