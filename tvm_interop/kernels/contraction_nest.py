"""Builds the loops of convolutions and matrix products on a CPU, with tiles of sums in registers.

The loops first copy ("pack") each channel of the image with its padding into planes. With a stride
s, rows and columns with different remainders modulo s go to different planes, so that the stride
within a plane is one. All rows of a plane have the same width. A convolution then runs the same
vector instructions at each pixel: output pixel `q` reads its inputs at `q + offset` of a plane. The
offset depends only on the row and column in the window, not on where the image's rows end. Between
two rows of the output lie pixels that do not belong to it. The loops compute these pixels too, and
discard them. A 1x1 convolution of stride 1 without padding and a matrix product need no packing.

A tile holds the sums of some output channels at some vectors of pixels. It stays in registers while
all of its products are added up. The order of additions is the same as in the unscheduled loops: by
input channel, then by row and column of the window. So if LLVM compiles an addition in the same way
in the scheduled and the unscheduled loops, their sums are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from ..machine.cpu_features import Registers
from . import loops
from .contraction_pattern import Contraction, Epilogue
from .dot_nest import dot_nest

_LARGEST_UNROLLED = 160
"""A loop with at most this many vector multiply-adds is unrolled."""

_MOST_PLANES_WRITTEN_OUT = 16
"""Up to this number of planes, each plane of an image is packed (copied) by its own loops.

If an image has more planes, one loop packs all of them.
"""

_PARALLEL_PRODUCTS = 1 << 19
"""The least number of multiplications for which the loops are divided between threads.

One thread takes some ten microseconds for this number of multiplications.
"""

_PARALLEL_READS = 1 << 16
"""The loops are also divided between threads if one factor has at least this many elements.

This limit is for products in which the other factor has few rows, so that reading takes longer than
multiplying. One thread reads this number of elements from memory in ten to twenty microseconds.
"""

_TILES_TO_SHARE = 4
"""The least number of tiles, or of groups, that is enough work to divide between threads."""


def contraction_nest(
    op: Contraction, epilogue: Epilogue, registers: Registers
) -> tuple[tirx.Stmt, list[Any]]:
    """Loops that compute `op` and then `epilogue`.

    The function also returns the buffers to allocate around the loops.
    """
    nest = _Nest(op, epilogue, registers)
    dots = dot_nest(op, epilogue, nest.lanes, nest.kind)
    return nest.build() if dots is None else (dots, [])


class _Nest:
    def __init__(self, op: Contraction, epilogue: Epilogue, registers: Registers) -> None:
        self._op = op
        self._epilogue = epilogue
        self.lanes = registers.nbytes // (tvm.DataType(op.dtype).bits // 8)
        (kh, kw), (sh, sw), (dh, dw) = op.kernel, op.stride, op.dilation
        out_h, out_w = op.out_size
        # The width of a row in a packed plane, and the number of pixels that are computed,
        # including those between the output's rows.
        self._row = out_w + (kw - 1) * dw // sw
        self._pixels = (out_h - 1) * self._row + out_w
        # Whether rows have no extra pixels at their ends. Then pixels are numbered as in the
        # output.
        self._is_flat = self._row == out_w
        self._in_place = op.kernel == op.stride == (1, 1) and not op.has_padding
        vectors = -(-self._pixels // self.lanes)
        # A tile has more pixels than channels, because a tile writes each of its channels to a
        # different part of the output.
        self._tile_channels = min(4, op.out_channels)
        most = (16 if registers.count >= 32 else 8) // self._tile_channels
        self._tile_vectors = min(most, vectors, 4)
        self._used_planes = [
            (y, x) for y in _remainders(kh, dh, sh) for x in _remainders(kw, dw, sw)
        ]
        self._plane = vectors * self.lanes + (kh - 1) * dh // sh * self._row + (kw - 1) * dw // sw
        height, width = self._used_planes[-1]
        # The groups of a convolution share no input. If there are many groups, each group's input
        # is packed just before it is used. Then it is still in a cache.
        self._packs_by_group = op.groups >= _TILES_TO_SHARE
        images = (1, 1) if self._packs_by_group else (op.batch, op.groups)
        shape = (images[0], images[1] * op.in_channels, height + 1, width + 1, self._plane)
        self._packed = tirx.decl_buffer(shape, op.dtype, "packed")

    @property
    def kind(self) -> tirx.ForKind:
        """The kind of the outer loop: parallel or serial."""
        op = self._op
        products = op.batch * op.groups * op.out_channels * op.in_channels * self._pixels
        products *= op.kernel[0] * op.kernel[1]
        reads = op.batch * op.groups * op.in_channels * max(op.out_channels, self._pixels)
        divided = products >= _PARALLEL_PRODUCTS or reads >= _PARALLEL_READS
        return tirx.ForKind.PARALLEL if divided else tirx.ForKind.SERIAL

    def build(self) -> tuple[tirx.Stmt, list[Any]]:
        """The loops, and the buffers to allocate around the loops."""
        op, kind = self._op, self.kind
        # The outer loop goes over pixels or over channels. If it goes over pixels, the image is
        # read once, and the weight is read repeatedly from a cache. If it goes over channels, the
        # weight is read once and the image repeatedly. The larger of image and weight should be
        # read only once. If one tile has all pixels, both are read once. In any case, the outer
        # loop needs enough tiles for several threads.
        pixel_tiles, channel_tiles = (
            sum(part[1] for part in parts) for parts in (self._pixel_parts(), self._channel_parts())
        )
        planes = op.batch * op.groups
        enough = planes * pixel_tiles >= min(planes * channel_tiles, _TILES_TO_SHARE)
        larger = self._pixels > op.out_channels or pixel_tiles == 1
        pixels_first = self._is_flat and larger and enough
        if self._packs_by_group and not self._in_place:
            return self._by_groups(kind), []
        parts = self._by_pixels(kind) if pixels_first else self._by_channels(kind)
        if self._in_place:
            return loops.in_turn(parts), []
        return loops.in_turn([self._pack(), *parts]), [self._packed]

    def _pack(self) -> tirx.Stmt:
        """Copy the image into planes, with rows as wide as an output row needs."""
        op = self._op
        channels = op.groups * op.in_channels

        def channel(i: Any) -> tirx.Stmt:
            n, c = (loops.index(0), i) if op.batch == 1 else (i // channels, i % channels)
            return self._pack_channel(n, c, (n, c))

        # The loop over images is not divided between threads. If several shares compute parts of
        # the output, each share packs all images.
        return loops.loop(op.batch * channels, channel)

    def _by_groups(self, kind: tirx.ForKind) -> tirx.Stmt:
        """A loop over the convolution's groups, for all images.

        Each iteration of the loop packs the input of one group and computes the output of this
        group.
        """
        op, zero = self._op, loops.index(0)

        def group_of_image(plane: Any) -> tirx.Stmt:
            n, group = self._image_and_group(plane)
            return loops.in_turn([
                tirx.AllocBuffer(self._packed),
                loops.loop(
                    op.in_channels,
                    lambda c: self._pack_channel(n, group * op.in_channels + c, (zero, c)),
                ),
                *(
                    loops.loop(
                        tiles,
                        lambda i, first=first, channels=channels: self._channels_of_plane(  # type: ignore[misc]
                            n, group, i * channels + first, channels
                        ),
                    )
                    for first, tiles, channels in self._channel_parts()
                ),
            ])  # fmt: skip

        return loops.loop(op.batch * op.groups, group_of_image, kind)

    def _pack_channel(self, n: Any, c: Any, to: tuple[Any, Any]) -> tirx.Stmt:
        """Copy channel `c` of image `n` into the packed buffer.

        Parameters
        ----------
        to: the image index and the channel index at which the packed buffer is written.
        """
        if len(self._used_planes) <= _MOST_PLANES_WRITTEN_OUT:
            return loops.in_turn([self._pack_plane(n, c, to, y, x) for y, x in self._used_planes])
        # A large stride makes many planes. The patches of a vision transformer have such a stride.
        # LLVM would take minutes to compile separate loops for each plane.
        height, width = self._used_planes[-1]
        return loops.loop(
            height + 1,
            lambda y: loops.loop(width + 1, lambda x: self._pack_any_plane(n, c, to, y, x)),
        )

    def _pack_any_plane(
        self, n: Any, c: Any, to: tuple[Any, Any], plane_y: Any, plane_x: Any
    ) -> tirx.Stmt:
        """Copy a plane whose position is a loop variable; each element is checked for padding."""
        op, row = self._op, self._row

        def copy(y: Any, x: Any) -> tirx.Stmt:
            source_y = y * op.stride[0] + plane_y - op.padding[0]
            source_x = x * op.stride[1] + plane_x - op.padding[1]
            inside = tirx.all(
                source_y >= 0, source_y < op.in_size[0], source_x >= 0, source_x < op.in_size[1]
            )
            value = tirx.if_then_else(
                inside, op.data_at(n, c, source_y, source_x), op.padding_value
            )
            return tirx.BufferStore(self._packed, value, [*to, plane_y, plane_x, y * row + x])

        rows, rest = divmod(self._plane, row)
        return loops.in_turn([
            loops.loop(rows, lambda y: loops.loop(row, lambda x: copy(y, x))),
            loops.loop(rest, lambda x: copy(loops.index(rows), x)),
        ])  # fmt: skip

    def _pack_plane(
        self, n: Any, c: Any, to: tuple[Any, Any], plane_y: int, plane_x: int
    ) -> tirx.Stmt:
        op, row = self._op, self._row
        y_from, y_to = _inside(
            op.padding[0] - plane_y, op.in_size[0], op.stride[0], -(-self._plane // row)
        )
        x_from, x_to = _inside(op.padding[1] - plane_x, op.in_size[1], op.stride[1], row)
        y_to = max(min(y_to, (self._plane - x_to) // row + 1), y_from)

        def fill(q: Any) -> tirx.Stmt:
            return tirx.BufferStore(self._packed, op.padding_value, [*to, plane_y, plane_x, q])

        def copy(y: Any, x: Any) -> tirx.Stmt:
            y, x = y + y_from, x + x_from
            source_y = y * op.stride[0] + (plane_y - op.padding[0])
            source_x = x * op.stride[1] + (plane_x - op.padding[1])
            value = op.data_at(n, c, source_y, source_x)
            return tirx.BufferStore(self._packed, value, [*to, plane_y, plane_x, y * row + x])

        rows = loops.loop(y_to - y_from, lambda y: loops.loop(x_to - x_from, lambda x: copy(y, x)))
        return loops.in_turn([loops.loop(self._plane, fill), rows])

    def _channel_parts(self) -> list[tuple[int, int, int]]:
        """The output channels, divided into parts.

        Each part is a triple: its first channel, its number of tiles and the channels in each tile.
        """
        return loops.tiles(self._op.out_channels, self._tile_channels)

    def _pixel_parts(self) -> list[tuple[int, int, int]]:
        return loops.tiles(self._pixels, self._tile_vectors * self.lanes)

    def _by_channels(self, kind: tirx.ForKind) -> list[tirx.Stmt]:
        """Loops that compute all pixels of one tile of channels before the next channels."""

        def tile(part: tuple[int, int, int], plane: Any, index: Any) -> tirx.Stmt:
            first, _, channels = part
            n, group = self._image_and_group(plane)
            return self._channels_of_plane(n, group, index * channels + first, channels)

        return [self._outer(self._channel_parts(), tile, kind)]

    def _by_pixels(self, kind: tirx.ForKind) -> list[tirx.Stmt]:
        """Loops that compute all channels of one tile of pixels before the next pixels."""

        def tile(part: tuple[int, int, int], plane: Any, index: Any) -> tirx.Stmt:
            start, _, pixels = part
            n, group = self._image_and_group(plane)
            return loops.in_turn([
                loops.loop(
                    count,
                    lambda j, first=first, channels=channels: self._pixel_tile(  # type: ignore[misc]
                        _Tile(n, group, j * channels + first, channels,
                              index * pixels + start, pixels),
                    ),
                )
                for first, count, channels in self._channel_parts()
            ])  # fmt: skip

        return [self._outer(self._pixel_parts(), tile, kind)]

    def _outer(self, parts: list[tuple[int, int, int]], tile: Any, kind: tirx.ForKind) -> tirx.Stmt:
        """A single loop over the tiles of all groups of all images.

        The loop can be divided between threads, or between shares of the kernel. The last tile of
        each group may be smaller. The loop goes from group to group, so each thread or share gets
        about as many small tiles.
        """
        first, *rest = parts
        tiles = sum(part[1] for part in parts)

        def any_tile(i: Any) -> tirx.Stmt:
            plane, index = (i // tiles, i % tiles) if tiles > 1 else (i, loops.index(0))
            if not rest:
                return tile(first, plane, index)
            return tirx.IfThenElse(
                index < first[1], tile(first, plane, index), tile(rest[0], plane, loops.index(0))
            )

        return loops.loop(self._op.batch * self._op.groups * tiles, any_tile, kind)

    def _image_and_group(self, plane: Any) -> tuple[Any, Any]:
        op, zero = self._op, loops.index(0)
        if op.batch == 1:
            return zero, plane if op.groups > 1 else zero
        if op.groups == 1:
            return plane, zero
        return plane // op.groups, plane % op.groups

    def _channels_of_plane(self, n: Any, group: Any, channel: Any, channels: int) -> tirx.Stmt:
        width = -(-self._pixels // self.lanes) * self.lanes
        scratch = tirx.decl_buffer((channels, width), self._op.dtype, "sums")
        parts = [] if self._is_flat else [tirx.AllocBuffer(scratch)]
        for start, tiles, pixels in self._pixel_parts():

            def tile(i: Any, start: int = start, pixels: int = pixels) -> tirx.Stmt:
                where = _Tile(n, group, channel, channels, i * pixels + start, pixels)
                return self._pixel_tile(where, scratch)

            parts.append(loops.loop(tiles, tile))
        if not self._is_flat:
            parts.append(self._finish_rows(n, group, channel, channels, scratch))
        return loops.in_turn(parts)

    def _pixel_tile(self, tile: _Tile, scratch: Any = None) -> tirx.Stmt:
        """Compute one tile of sums and store it.

        Parameters
        ----------
        scratch: the buffer for the sums if pixels are not consecutive in the output.
        """
        op, lanes = self._op, self.lanes
        vectors = -(-tile.pixels // lanes)
        # Each channel has its own buffer. TVM keeps these small buffers on the stack, and LLVM then
        # keeps them in registers. Buffers of the scope "local" would be allocated anew for each
        # tile.
        sums = [
            tirx.decl_buffer((vectors * lanes,), op.dtype, f"sum{j}") for j in range(tile.channels)
        ]

        def each(body: Callable[[int, Any], tirx.Stmt]) -> tirx.Stmt:
            def vector(start: Any, count: int) -> tirx.Stmt:
                return loops.in_turn(
                    loops.vector(count, lambda lane, j=j: body(j, lane + start))  # type: ignore[misc]
                    for j in range(tile.channels)
                )

            # After its last pixel, a packed input has space for a whole vector. An input that is
            # not packed has no such space, so a shorter vector computes the last pixels.
            whole = tile.pixels // lanes if self._in_place else vectors
            parts = [loops.loop(whole, lambda v: vector(v * lanes, lanes), tirx.ForKind.UNROLLED)]
            if whole < vectors:
                parts.append(vector(loops.index(whole * lanes), tile.pixels - whole * lanes))
            return loops.in_turn(parts)

        def add(c: Any, y: Any, x: Any) -> tirx.Stmt:
            def product(j: int, at: Any) -> tirx.Stmt:
                weight = op.weight_at(tile.n, self._channel(tile, j), c, y, x)
                value = op.product(self._input(tile, c, y, x, tile.first + at), weight)
                return tirx.BufferStore(sums[j], tirx.BufferLoad(sums[j], [at]) + value, [at])

            return each(product)

        rows, columns = op.kernel
        work = vectors * tile.channels * columns
        kind_x, kind_y = _loop_kind(work), _loop_kind(work * rows)

        def row(c: Any, y: Any) -> tirx.Stmt:
            return loops.loop(columns, lambda x: add(c, y, x), kind_x)

        zero = tirx.const(0, op.dtype)
        return loops.in_turn([
            *(tirx.AllocBuffer(buffer) for buffer in sums),
            each(lambda j, at: tirx.BufferStore(sums[j], zero, [at])),
            loops.loop(
                op.in_channels,
                lambda c: loops.loop(rows, lambda y: row(c, y), kind_y),
            ),
            self._finish_tile(tile, sums, scratch),
        ])  # fmt: skip

    def _channel(self, tile: _Tile, j: int) -> Any:
        return tile.group * self._op.out_channels + tile.channel + j

    def _input(self, tile: _Tile, c: Any, y: Any, x: Any, pixel: Any) -> tirx.Expr:
        op = self._op
        channel = tile.group * op.in_channels + c
        if self._in_place:
            return op.data_at(tile.n, channel, *self._position(pixel))
        y, x = y * op.dilation[0], x * op.dilation[1]
        offset = y // op.stride[0] * self._row + x // op.stride[1]
        n, channel = (loops.index(0), c) if self._packs_by_group else (tile.n, channel)
        indices = [n, channel, y % op.stride[0], x % op.stride[1], pixel + offset]
        return tirx.BufferLoad(self._packed, indices)

    def _position(self, pixel: Any) -> tuple[Any, Any]:
        """The row and column of the pixel with a given number, if pixels are numbered as in the
        output.
        """
        if self._op.out_size[0] == 1:
            return loops.index(0), pixel
        return pixel // self._op.out_size[1], pixel % self._op.out_size[1]

    def _finish_tile(self, tile: _Tile, sums: list[Any], scratch: Any) -> tirx.Stmt:
        """Store a tile's sums.

        If the tile's pixels are consecutive in the output, the epilogue is computed, and its
        results go to the output. If not, the sums go to `scratch`, and the epilogue is computed
        later.
        """

        def store(j: int, at: Any) -> tirx.Stmt:
            value = tirx.BufferLoad(sums[j], [at])
            if not self._is_flat:
                return tirx.BufferStore(scratch, value, [j, tile.first + at])
            position = self._position(tile.first + at)
            return self._epilogue.store([tile.n, self._channel(tile, j), *position], value)

        return loops.in_turn([
            loops.vector(
                min(self.lanes, tile.pixels - start) if self._is_flat else self.lanes,
                lambda lane, j=j, start=start: store(j, lane + start),  # type: ignore[misc]
            )
            for j in range(len(sums)) for start in range(0, tile.pixels, self.lanes)
        ])  # fmt: skip

    def _finish_rows(
        self, n: Any, group: Any, channel: Any, channels: int, scratch: Any
    ) -> tirx.Stmt:
        out = group * self._op.out_channels + channel

        def pixel(j: Any, y: Any, x: Any) -> tirx.Stmt:
            value = tirx.BufferLoad(scratch, [j, y * self._row + x])
            return self._epilogue.store([n, out + j, y, x], value)

        def row(j: Any, y: Any) -> tirx.Stmt:
            return loops.in_turn([
                loops.loop(
                    tiles,
                    lambda i, start=start, lanes=lanes: loops.vector(  # type: ignore[misc]
                        lanes, lambda lane: pixel(j, y, i * lanes + start + lane)
                    ),
                )
                for start, tiles, lanes in loops.tiles(self._op.out_size[1], self.lanes)
            ])  # fmt: skip

        return loops.loop(channels, lambda j: loops.loop(self._op.out_size[0], lambda y: row(j, y)))


@dataclass(frozen=True)
class _Tile:
    """A tile: some output channels and some pixels of one group of an image.

    Attributes
    ----------
    n, group: the indices of the image and of the convolution's group.
    channel: the first output channel, counted within the group.
    channels: the number of output channels.
    first: the first pixel.
    pixels: the number of pixels.
    """

    n: Any
    group: Any
    channel: Any
    channels: int
    first: Any
    pixels: int


def _remainders(kernel: int, dilation: int, stride: int) -> list[int]:
    """The remainders modulo the stride of the weights' positions along one axis of the window."""
    return sorted({k * dilation % stride for k in range(kernel)})


def _inside(offset: int, size: int, stride: int, limit: int) -> tuple[int, int]:
    """The range of `i`, below `limit`, for which `i * stride - offset` is in `range(size)`."""
    first = min(max(-(-offset // stride), 0), limit)
    return first, max(min(-(-(size + offset) // stride), limit), first)


def _loop_kind(work: int) -> tirx.ForKind:
    """The kind of a loop with `work` vector multiply-adds: unrolled if the loop is short enough.

    TVM unrolls a loop of the kind "unrolled" at the end of its passes. If the statements were
    written out here instead, the passes would take several times as long.
    """
    return tirx.ForKind.UNROLLED if work <= _LARGEST_UNROLLED else tirx.ForKind.SERIAL
