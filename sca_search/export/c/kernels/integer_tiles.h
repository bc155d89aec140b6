#pragma once
#include "integer_lanes.h"

/*
 * A convolution goes through its output in tiles of CELLS columns and up to sixteen rows. The last tile of a row or
 * column begins earlier instead of extending over the edge, so that some cells are computed twice. For each tile, what a
 * block of input channels gives to it is first laid out in planes of 16-bit cells: column x of the kernel becomes a
 * plane that holds the cells which it is multiplied with, row after row, CELLS cells each. Rows are grouped by stride:
 * those with equal y mod stride are a phase and contiguous. A weight is then multiplied with the contiguous rows of the
 * tile, from a precomputed offset.
 *
 * Where columns are combined, the planes of up to three are replaced by all their sums. Three weights w0, w1, w2 are the
 * digits of a number v = w0 + 3 w1 + 9 w2 from -13 to 13, and plane |v| - 1 holds the sum that v stands for: a whole row
 * of a kernel is then one addition, or one subtraction where v is below zero. Of kernels one column wide, three channels
 * are combined as if they were columns.
 */
struct integer_convolution {
    size_t in_height, in_width, out_height, out_width;
    size_t stride_y, stride_x, dilation_x, pad_top, pad_left;
    size_t kernel_y, kernel_x;
    const uint16_t *kernel_rows; /* the cell of a plane at which each begins */
    size_t tile_rows, phases, phase_rows, plane_cells;
    size_t groups, group_inputs, group_outputs;
    size_t block;                       /* channels at a time */
    size_t unit;                        /* columns that are combined; 1: none */
    const uint16_t *channels, *outputs; /* which ones there are, if not all */
    const struct requantize *finish;    /* of each output */
    struct integer_limits limits;
};

/* A block of channels of a group, and the group's outputs. */
struct channel_block {
    size_t channel, channels, output;
    int first, last;
};

/* Where a tile's first cell lies. */
struct place {
    size_t row, column;
};

INLINE size_t smaller_of(size_t left, size_t right)
{
    return left < right ? left : right;
}

static struct channel_block first_channels(const struct integer_convolution *layer)
{
    struct channel_block block;
    block.channel = 0;
    block.channels = smaller_of(layer->block, layer->group_inputs);
    block.output = 0;
    block.first = 1;
    block.last = block.channels == layer->group_inputs;
    return block;
}

/* Advances to the next block; 0 after the last. */
static int next_channels(const struct integer_convolution *layer, struct channel_block *block)
{
    size_t left;
    block->channel += block->channels;
    block->first = block->last;
    if (block->last) {
        block->output += layer->group_outputs;
    }
    left = layer->group_inputs - block->channel % layer->group_inputs;
    block->channels = smaller_of(layer->block, left);
    block->last = block->channels == left;
    return block->channel < layer->groups * layer->group_inputs;
}

static int next_place(const struct integer_convolution *layer, struct place *tile)
{
    const size_t last_row = layer->out_height - layer->tile_rows;
    const size_t last_column = layer->out_width > CELLS ? layer->out_width - CELLS : 0;
    if (tile->column < last_column) {
        tile->column = smaller_of(tile->column + CELLS, last_column);
        return 1;
    }
    tile->column = 0;
    if (tile->row < last_row) {
        tile->row = smaller_of(tile->row + layer->tile_rows, last_row);
        return 1;
    }
    return 0;
}

INLINE size_t combined_planes(size_t columns)
{
    return columns == 0 ? 0 : columns == 1 ? 1 : columns == 2 ? 4 : 13;
}

/* Rows that are laid out at a time, and the vectors that they fill. */
#define STRIP_ROWS (INTEGER_LANES == 16 ? 2 : 1)
#define STRIP_PARTS (STRIP_ROWS * CELLS / INTEGER_LANES)

/* Eight cells along a row of the map, of which the first lies at `first`; beyond the map are zeros. Where they lie side
 * by side, eight are read at `from` in any case, and those beyond the map shifted out: the first is the lowest byte. With
 * AVX2, `bytes` are read at once of each of two rows, where they hold all eight cells, and these picked out of them. */
struct reading {
    ptrdiff_t first, from;
    unsigned left, right;
    int plain, none;
#if INTEGER_LANES == 16
    ptrdiff_t bytes, bytes_from;
    __m128i picked; /* of 16 bytes of one row, or of eight of each of two */
#endif
};

#if INTEGER_LANES == 16
static void pick_bytes(const struct integer_convolution *layer, struct reading *reading)
{
    const ptrdiff_t width = (ptrdiff_t)layer->in_width, stride = (ptrdiff_t)layer->stride_x, first = reading->first;
    const ptrdiff_t bytes = stride > 1 && width >= 16 ? 16 : width >= 8 ? 8 : width >= 4 ? 4 : 0, last = width - bytes;
    const ptrdiff_t from = first < 0 ? 0 : first > last ? last : first;
    uint8_t picked[16];
    ptrdiff_t lane;
    reading->bytes = bytes;
    reading->bytes_from = from;
    for (lane = 0; lane < CELLS; lane++) {
        const ptrdiff_t at = first + lane * stride, inside = at >= 0 && at < width;
        if (inside && at - from >= bytes) {
            reading->bytes = 0;
        }
        picked[lane] = (uint8_t)(inside ? at - from : 128);
        picked[CELLS + lane] = (uint8_t)(inside ? at - from + 8 : 128);
    }
    reading->picked = _mm_loadu_si128((const __m128i *)(const void *)picked);
}

/* What is left of two rows of which none, the first or the second lies in the map. */
static const sums16 row_masks[3] = {
    {0},
    {0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF},
    {0, 0, 0, 0, 0, 0, 0, 0, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF},
};

/* Two rows. */
INLINE sums16 picked_cells(const int8_t *upper, const int8_t *lower, __m128i picked, ptrdiff_t bytes)
{
    const void *const from = upper, *const other = lower;
    __m128i cells;
    if (bytes == 16) {
        cells = _mm_unpacklo_epi64(_mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)from), picked),
                                   _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)other), picked));
    } else if (bytes == 8) {
        cells = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)from), _mm_loadl_epi64((const __m128i *)other));
        cells = _mm_shuffle_epi8(cells, picked);
    } else {
        int32_t left, right;
        memcpy(&left, from, sizeof left);
        memcpy(&right, other, sizeof right);
        cells = _mm_shuffle_epi8(_mm_set_epi32(0, right, 0, left), picked);
    }
    return (sums16)_mm256_cvtepi8_epi16(cells);
}
#endif

static struct reading reading_at(const struct integer_convolution *layer, size_t tile_column, size_t column)
{
    const ptrdiff_t last = (ptrdiff_t)layer->in_width - CELLS;
    struct reading reading;
    ptrdiff_t beyond;
    reading.first =
        (ptrdiff_t)(tile_column * layer->stride_x + column * layer->dilation_x) - (ptrdiff_t)layer->pad_left;
    reading.from = reading.first < 0 ? 0 : reading.first > last ? last : reading.first;
    beyond = reading.first - reading.from;
    reading.plain = INTEGER_LANES > 1 && layer->stride_x == 1 && last >= 0;
    reading.none = beyond <= -CELLS || beyond >= CELLS;
    reading.left = beyond < 0 && !reading.none ? (unsigned)(-8 * beyond) : 0;
    reading.right = beyond > 0 && !reading.none ? (unsigned)(8 * beyond) : 0;
#if INTEGER_LANES == 16
    pick_bytes(layer, &reading);
    reading.plain = 0;
#endif
    return reading;
}

INLINE uint64_t eight_cells(const int8_t *row, const struct reading *reading, size_t width, size_t stride, int plain)
{
    uint64_t cells = 0;
    size_t lane;
    if (plain) {
        memcpy(&cells, row + reading->from, sizeof cells);
        return reading->none ? 0 : cells << reading->left >> reading->right;
    }
    for (lane = 0; lane < CELLS; lane++) {
        const ptrdiff_t at = reading->first + (ptrdiff_t)(lane * stride);
        if (at >= 0 && at < (ptrdiff_t)width) {
            cells |= (uint64_t)(uint8_t)row[at] << 8 * lane;
        }
    }
    return cells;
}

INLINE sums16 cells16(const uint64_t *rows, size_t part)
{
#if INTEGER_LANES == 16
    (void)part;
    return (sums16)_mm256_cvtepi8_epi16(_mm_set_epi64x((long long)rows[1], (long long)rows[0]));
#elif INTEGER_LANES == 8
    typedef int8_t eight_bytes __attribute__((vector_size(8)));
    typedef int16_t eight_words __attribute__((vector_size(16)));
    eight_bytes bytes;
    (void)part;
    memcpy(&bytes, rows, sizeof bytes);
    return (sums16) __builtin_convertvector(bytes, eight_words);
#else
    return (uint16_t)(int8_t)(rows[0] >> 8 * part & 255);
#endif
}

INLINE void store_unit(sums16 a, sums16 b, sums16 c, size_t columns, int combined, size_t plane, uint16_t *to)
{
    store_sums16(to, a);
    if (!combined) {
        if (columns > 1) {
            store_sums16(to + plane, b);
        }
        if (columns > 2) {
            store_sums16(to + 2 * plane, c);
        }
        return;
    }
    if (columns > 1) {
        store_sums16(to + plane, subtracted(b, a));
        store_sums16(to + 2 * plane, b);
        store_sums16(to + 3 * plane, added(b, a));
    }
    if (columns > 2) {
        const sums16 less = subtracted(c, b), more = added(c, b);
        store_sums16(to + 4 * plane, subtracted(less, a));
        store_sums16(to + 5 * plane, less);
        store_sums16(to + 6 * plane, added(less, a));
        store_sums16(to + 7 * plane, subtracted(c, a));
        store_sums16(to + 8 * plane, c);
        store_sums16(to + 9 * plane, added(c, a));
        store_sums16(to + 10 * plane, subtracted(more, a));
        store_sums16(to + 11 * plane, more);
        store_sums16(to + 12 * plane, added(more, a));
    }
}

/* Up to three columns, of one map or each of its own. */
struct unit {
    const int8_t *maps[3];
    struct reading readings[3];
};

INLINE void lay_unit(const struct integer_convolution *layer, size_t tile_row, const struct unit *unit, size_t columns,
                     int combined, int way, uint16_t *to)
{
    const size_t width = layer->in_width, height = layer->in_height, stride = layer->stride_x;
    const size_t stride_y = layer->stride_y, phase_rows = layer->phase_rows, plane = layer->plane_cells;
    const struct reading first = unit->readings[0], second = unit->readings[1], third = unit->readings[2];
    const int8_t *const first_map = unit->maps[0], *const second_map = unit->maps[1], *const third_map = unit->maps[2];
    size_t phase, row, part, each;
    for (phase = 0; phase < layer->phases; phase++) {
        size_t y = tile_row * stride_y + phase - layer->pad_top; /* above the map it is huge */
        for (row = 0; row < phase_rows; row += STRIP_ROWS) {
            uint64_t a[2] = {0, 0}, b[2] = {0, 0}, c[2] = {0, 0};
            for (each = 0; each < STRIP_ROWS; each++) {
                if (y < height) {
                    const size_t at = y * width;
                    a[each] = eight_cells(first_map + at, &first, width, stride, way == 1);
                    if (columns > 1) {
                        b[each] = eight_cells(second_map + at, &second, width, stride, way == 1);
                    }
                    if (columns > 2) {
                        c[each] = eight_cells(third_map + at, &third, width, stride, way == 1);
                    }
                }
                y += stride_y;
            }
            for (part = 0; part < STRIP_PARTS; part++) {
                store_unit(cells16(a, part), cells16(b, part), cells16(c, part), columns, combined, plane,
                           to + part * INTEGER_LANES);
            }
            to += STRIP_ROWS * CELLS;
        }
    }
}

#if INTEGER_LANES == 16
/* The same for two rows at a time, reading this many bytes of each at once. */
INLINE void lay_pairs(const struct integer_convolution *layer, size_t tile_row, const struct unit *unit, size_t columns,
                      int combined, ptrdiff_t bytes, uint16_t *to)
{
    const size_t height = layer->in_height, stride = layer->stride_y, plane = layer->plane_cells;
    const size_t step = stride * layer->in_width;
    const __m128i picked[3] = {unit->readings[0].picked, unit->readings[1].picked, unit->readings[2].picked};
    size_t phase, column;
    for (phase = 0; phase < layer->phases; phase++) {
        size_t y = tile_row * stride + phase - layer->pad_top; /* above the map it is huge */
        size_t row = 0;
        while (row < layer->phase_rows) {
            const int8_t *from[3];
            const size_t inside = (y < height ? 1 : 0) + (y + stride < height ? 2 : 0);
            const size_t at = (inside & 1 ? y : 0) * layer->in_width;
            for (column = 0; column < 3; column++) {
                from[column] = unit->maps[column] + unit->readings[column].bytes_from + at;
            }
            if (inside < 3) { /* the other row exists, and is masked */
                const sums16 mask = row_masks[inside];
                const size_t next = inside == 2 ? (y + stride) * layer->in_width : 0;
                const sums16 a = picked_cells(from[0], from[0] + next, picked[0], bytes) & mask;
                const sums16 b = picked_cells(from[1], from[1] + next, picked[1], bytes) & mask;
                const sums16 c = picked_cells(from[2], from[2] + next, picked[2], bytes) & mask;
                store_unit(a, b, c, columns, combined, plane, to);
                row += 2;
                y += 2 * stride;
                to += 2 * CELLS;
                continue;
            }
            for (; row < layer->phase_rows && y + stride < height; row += 2, y += 2 * stride) {
                const sums16 a = picked_cells(from[0], from[0] + step, picked[0], bytes);
                const sums16 b = columns > 1 ? picked_cells(from[1], from[1] + step, picked[1], bytes) : a;
                const sums16 c = columns > 2 ? picked_cells(from[2], from[2] + step, picked[2], bytes) : a;
                store_unit(a, b, c, columns, combined, plane, to);
                from[0] += 2 * step;
                from[1] += 2 * step;
                from[2] += 2 * step;
                to += 2 * CELLS;
            }
        }
    }
}
#endif

typedef void lay_columns(const struct integer_convolution *layer, size_t tile_row, const struct unit *unit,
                         uint16_t *to);

/* Each number of columns and each way of reading is compiled separately: cell by cell (0), eight cells at once (1), or
   this many bytes of two rows at once. */
#define DEFINE_LAY_COLUMNS(COLUMNS, COMBINED, WAY)                                                                  \
    static void lay_##COLUMNS##_##COMBINED##_##WAY(const struct integer_convolution *layer, size_t tile_row,        \
                                                   const struct unit *unit, uint16_t *to)                           \
    {                                                                                                               \
        LAY_##WAY(layer, tile_row, unit, COLUMNS, COMBINED, WAY, to);                                               \
    }
#define LAY_0 lay_unit
#define LAY_1 lay_unit
#define LAY_4 lay_pairs
#define LAY_8 lay_pairs
#define LAY_16 lay_pairs
#define DEFINE_WAY(WAY)          \
    DEFINE_LAY_COLUMNS(1, 0, WAY) \
    DEFINE_LAY_COLUMNS(2, 0, WAY) \
    DEFINE_LAY_COLUMNS(3, 0, WAY) \
    DEFINE_LAY_COLUMNS(2, 1, WAY) \
    DEFINE_LAY_COLUMNS(3, 1, WAY)
#define LAY_COLUMNS(WAY)                                                                       \
    {                                                                                          \
        {lay_1_0_##WAY, lay_2_0_##WAY, lay_3_0_##WAY}, {lay_1_0_##WAY, lay_2_1_##WAY, lay_3_1_##WAY} \
    }
DEFINE_WAY(0)
#if INTEGER_LANES == 16
DEFINE_WAY(4)
DEFINE_WAY(8)
DEFINE_WAY(16)
static lay_columns *const lay_columns_of[4][2][3] = {LAY_COLUMNS(0), LAY_COLUMNS(4), LAY_COLUMNS(8), LAY_COLUMNS(16)};
#else
DEFINE_WAY(1)
static lay_columns *const lay_columns_of[2][2][3] = {LAY_COLUMNS(0), LAY_COLUMNS(1)};
#endif

/* Which of them suits all columns of a unit. */
static size_t way_of(const struct unit *unit, size_t columns)
{
#if INTEGER_LANES == 16
    const ptrdiff_t bytes = unit->readings[0].bytes;
    size_t column;
    for (column = 1; column < columns; column++) {
        if (unit->readings[column].bytes != bytes) {
            return 0;
        }
    }
    return bytes == 16 ? 3 : bytes == 8 ? 2 : bytes == 4 ? 1 : 0;
#else
    (void)columns;
    return (size_t)unit->readings[0].plain;
#endif
}

static const int8_t *map_at(const struct integer_convolution *layer, const int8_t *in, size_t channel)
{
    return in + (layer->channels ? layer->channels[channel] : channel) * layer->in_height * layer->in_width;
}

/* Kernels of one column: three channels take the place of columns. */
static void lay_channels(const struct integer_convolution *layer, const struct channel_block *block, struct place tile,
                         const int8_t *in, uint16_t *to)
{
    const int combined = layer->unit > 1;
    struct unit unit;
    size_t begin, column;
    unit.readings[0] = unit.readings[1] = unit.readings[2] = reading_at(layer, tile.column, 0);
    for (begin = 0; begin < block->channels; begin += 3) {
        const size_t columns = smaller_of(3, block->channels - begin);
        for (column = 0; column < 3; column++) {
            unit.maps[column] = map_at(layer, in, block->channel + begin + (column < columns ? column : 0));
        }
        lay_columns_of[way_of(&unit, columns)][combined][columns - 1](layer, tile.row, &unit, to);
        to += (combined ? combined_planes(columns) : columns) * layer->plane_cells;
    }
}

/* All planes of a block for a tile. */
static void lay_block_planes(const struct integer_convolution *layer, const struct channel_block *block,
                             struct place tile, const int8_t *in, uint16_t *to)
{
    const size_t all = layer->kernel_x, rest = combined_planes(all % 3);
    const int combined = layer->unit > 1;
    const size_t planes = combined ? all / 3 * combined_planes(3) + rest : all; /* of a channel */
    size_t begin, column, channel;
    if (all == 1) {
        lay_channels(layer, block, tile, in, to);
        return;
    }
    for (begin = 0; begin < all; begin += 3) {
        const size_t columns = smaller_of(3, all - begin);
        lay_columns *lay;
        struct unit unit;
        for (column = 0; column < 3; column++) {
            unit.readings[column] = reading_at(layer, tile.column, begin + (column < columns ? column : 0));
        }
        lay = lay_columns_of[way_of(&unit, columns)][combined][columns - 1];
        for (channel = 0; channel < block->channels; channel++) {
            unit.maps[0] = unit.maps[1] = unit.maps[2] = map_at(layer, in, block->channel + channel);
            lay(layer, tile.row, &unit, to + channel * planes * layer->plane_cells);
        }
        to += (combined ? combined_planes(columns) : columns) * layer->plane_cells;
    }
}

/* Finishes a row of a tile after the last block; on maps that are narrower than a tile, some of its cells. */
INLINE void finish_row(const eight_numbers *numbers, eight_sums sums, const int8_t *residual, int8_t *out, size_t width)
{
    if (width >= CELLS) {
        requantize_eight(numbers, sums, residual, out);
    } else {
        int8_t cells[CELLS], others[CELLS] = {0};
        if (residual) {
            memcpy(others, residual, width);
        }
        requantize_eight(numbers, sums, residual ? others : NULL, cells);
        memcpy(out, cells, width);
    }
}

/* The first cell of a row of a tile in the map of an output. */
INLINE size_t cell_at(const struct integer_convolution *layer, size_t output, struct place tile, size_t row)
{
    return (output * layer->out_height + tile.row + row) * layer->out_width + tile.column;
}
