#pragma once
#include "integer_lanes.h"

/*
 * A convolution goes through its output in tiles of CELLS columns and up to sixteen rows. The last tile of a row or
 * column begins earlier instead of hanging over the edge, so that some cells are computed twice. For each tile, what a
 * block of input channels gives to it is first laid out in planes of 16-bit cells: column x of the kernel becomes a
 * plane that holds the cells which it is multiplied with, row behind row, CELLS cells each. Rows are kept apart by
 * stride: those that equal y mod stride are a phase and lie together. What a weight is multiplied with are then the rows
 * of the tile without a gap, from an offset that is known beforehand.
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
    const uint16_t *kernel_rows; /* where what they need begins in a plane, in cells */
    size_t tile_rows, phases, phase_rows, plane_cells;
    size_t groups, group_inputs, group_outputs;
    size_t block;                       /* channels at a time */
    size_t unit;                        /* columns that are combined; 1: none */
    const uint16_t *channels, *outputs; /* which ones there are, if not all */
    const struct requantize *finish;    /* of each output */
    struct limits limits;
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

/* Goes on to the next block; 0 behind the last. */
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
    return columns == 1 ? 1 : columns == 2 ? 4 : 13;
}

/* Rows that are laid out at a time, and the vectors that they fill. */
#define STRIP_ROWS (INTEGER_LANES == 16 ? 2 : 1)
#define STRIP_PARTS (STRIP_ROWS * CELLS / INTEGER_LANES)

/* Eight cells along a row of the map, of which the first lies at `first`; beyond the map are zeros. Where they lie side
 * by side, eight are read at `from` in any case, and those beyond the map shifted out: the first is the lowest byte. */
struct reading {
    ptrdiff_t first, from;
    unsigned left, right;
    int plain, none;
};

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
                     int combined, int plain, uint16_t *to)
{
    const size_t width = layer->in_width, stride = layer->stride_x;
    size_t phase, row, part, each;
    for (phase = 0; phase < layer->phases; phase++) {
        for (row = 0; row < layer->phase_rows; row += STRIP_ROWS) {
            uint64_t a[2] = {0, 0}, b[2] = {0, 0}, c[2] = {0, 0};
            for (each = 0; each < STRIP_ROWS; each++) {
                const size_t y = (tile_row + row + each) * layer->stride_y + phase - layer->pad_top;
                if (y < layer->in_height) { /* above the map, y is huge */
                    const size_t at = y * width;
                    a[each] = eight_cells(unit->maps[0] + at, &unit->readings[0], width, stride, plain);
                    if (columns > 1) {
                        b[each] = eight_cells(unit->maps[1] + at, &unit->readings[1], width, stride, plain);
                    }
                    if (columns > 2) {
                        c[each] = eight_cells(unit->maps[2] + at, &unit->readings[2], width, stride, plain);
                    }
                }
            }
            for (part = 0; part < STRIP_PARTS; part++) {
                store_unit(cells16(a, part), cells16(b, part), cells16(c, part), columns, combined, layer->plane_cells,
                           to + part * INTEGER_LANES);
            }
            to += STRIP_ROWS * CELLS;
        }
    }
}

typedef void lay_columns(const struct integer_convolution *layer, size_t tile_row, const struct unit *unit,
                         uint16_t *to);

/* Each number of columns and each way of reading is compiled by itself. */
#define DEFINE_LAY_COLUMNS(COLUMNS, COMBINED, PLAIN)                                                                \
    static void lay_##COLUMNS##_##COMBINED##_##PLAIN(const struct integer_convolution *layer, size_t tile_row,      \
                                                     const struct unit *unit, uint16_t *to)                         \
    {                                                                                                               \
        lay_unit(layer, tile_row, unit, COLUMNS, COMBINED, PLAIN, to);                                              \
    }
DEFINE_LAY_COLUMNS(1, 0, 0)
DEFINE_LAY_COLUMNS(2, 0, 0)
DEFINE_LAY_COLUMNS(3, 0, 0)
DEFINE_LAY_COLUMNS(2, 1, 0)
DEFINE_LAY_COLUMNS(3, 1, 0)
DEFINE_LAY_COLUMNS(1, 0, 1)
DEFINE_LAY_COLUMNS(2, 0, 1)
DEFINE_LAY_COLUMNS(3, 0, 1)
DEFINE_LAY_COLUMNS(2, 1, 1)
DEFINE_LAY_COLUMNS(3, 1, 1)

static lay_columns *const lay_columns_of[2][2][3] = {
    {{lay_1_0_0, lay_2_0_0, lay_3_0_0}, {lay_1_0_0, lay_2_1_0, lay_3_1_0}},
    {{lay_1_0_1, lay_2_0_1, lay_3_0_1}, {lay_1_0_1, lay_2_1_1, lay_3_1_1}},
};

/* All planes of a block for a tile. */
static void lay_block_planes(const struct integer_convolution *layer, const struct channel_block *block,
                             struct place tile, const int8_t *in, uint16_t *to)
{
    const size_t all = block->channels * layer->kernel_x, map = layer->in_height * layer->in_width;
    const size_t run = layer->kernel_x == 1 ? all : layer->kernel_x;
    const int combined = layer->unit > 1;
    size_t begin = 0, column;
    while (begin < all) {
        const size_t columns = smaller_of(3, run - begin % run);
        struct unit unit;
        for (column = 0; column < 3; column++) {
            const size_t at = begin + (column < columns ? column : 0);
            const size_t channel = block->channel + at / layer->kernel_x;
            unit.maps[column] = in + (layer->channels ? layer->channels[channel] : channel) * map;
            unit.readings[column] = reading_at(layer, tile.column, at % layer->kernel_x);
        }
        lay_columns_of[unit.readings[0].plain][combined][columns - 1](layer, tile.row, &unit, to);
        to += (combined ? combined_planes(columns) : columns) * layer->plane_cells;
        begin += columns;
    }
}

/* What becomes of the sums of some rows of a tile: in `sums` they are over the blocks before. */
INLINE void finish_row(const struct integer_convolution *layer, size_t output, size_t at, eight_sums sums,
                       const int8_t *residual, int8_t *out)
{
    const struct requantize *const to = layer->finish + output;
    const size_t place = output * layer->out_height * layer->out_width + at;
    if (layer->out_width >= CELLS) {
        requantize_eight(to, layer->limits, sums, residual ? residual + place : NULL, out + place);
    } else {
        int8_t cells[CELLS], others[CELLS] = {0};
        if (residual) {
            memcpy(others, residual + place, layer->out_width);
        }
        requantize_eight(to, layer->limits, sums, residual ? others : NULL, cells);
        memcpy(out + place, cells, layer->out_width);
    }
}
