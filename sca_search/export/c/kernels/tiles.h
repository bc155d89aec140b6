#pragma once
#include "finish.h"

/*
 * A convolution goes through its output in tiles of CELLS columns and some rows. The last tile of a row or column
 * begins earlier instead of extending over the edge, so that some cells are computed twice. For each tile, the cells that
 * it needs of a block of input channels are first copied, with the border's zeros, to memory that fits into a first-level
 * cache. A weight is then multiplied with rows of cells at equal distances, from a precomputed offset. Rows
 * are grouped by stride: those with equal y mod stride are a phase and contiguous. There are two layouts of a row, and a
 * third without a copy:
 *
 * Plain: the cells of the tile and those next to it, columns of equal x mod stride together. A row begins at a multiple
 * of its length, which is usually that of a cache line, so that no vector of it lies across two.
 *
 * Combined: the columns x of the kernel become planes that hold the cells which column x is multiplied with, and three
 * planes are replaced by all their sums. Three weights w0, w1, w2 are the digits of a number v = w0 + 3 w1 + 9 w2 from
 * -13 to 13, and plane |v| - 1 holds the sum that v stands for: a whole row of a kernel is then one addition, or one
 * subtraction where v is below zero. Of kernels one column wide, three channels are combined as if they were columns.
 *
 * In place: the maps have a border of zeros, and nothing is laid out. Vectors may lie across two cache lines, which
 * costs less than laying out what few weights use. Tiles are wide and low then, so that they touch few lines.
 */
struct convolution {
    size_t in_height, in_width, out_height, out_width;
    size_t in_row, out_row, residual_row;    /* from row to row, */
    size_t in_step, out_step, residual_step; /* and from channel to channel, in floats */
    int bordered;                            /* the outputs' maps, see clear_border.c */
    size_t stride_y, stride_x, pad_top, pad_left;
    size_t kernel_y, kernel_x;
    const uint16_t *kernel_rows, *kernel_columns; /* at which row of a plane, and float of a row, each begins */
    size_t tile_rows, tile_cells, phases, phase_rows;
    size_t groups, group_inputs, group_outputs;
    size_t block_groups, block; /* whole groups at a time and all their channels, or one group and some channels */
    int combined;
    size_t laid;                /* vectors of cells that are laid out of a row, none in place, */
    const uint16_t *laid_cells; /* and where they begin in it */
    size_t row_floats;          /* from row to row, all of a channel's or of three that are combined */
    const uint16_t *channels, *outputs; /* which ones there are, if not all */
    struct finish finish;
};

/* A block of channels, the outputs that it adds to, and whether it is the first or the last to do so. */
struct block {
    size_t channel, channels, output, outputs;
    int first, last;
};

/* Where a tile's first cell lies. */
struct tile {
    size_t row, column;
};

static size_t smaller_size(size_t left, size_t right)
{
    return left < right ? left : right;
}

static size_t plane_rows(const struct convolution *layer)
{
    return layer->phases * layer->phase_rows;
}

static struct block first_block(const struct convolution *layer)
{
    struct block block;
    block.channel = 0;
    block.channels = smaller_size(layer->block, layer->block_groups * layer->group_inputs);
    block.output = 0;
    block.outputs = layer->block_groups * layer->group_outputs;
    block.first = 1;
    block.last = block.channels == layer->block_groups * layer->group_inputs;
    return block;
}

/* Advances to the next block; 0 after the last. */
static int next_block(const struct convolution *layer, struct block *block)
{
    block->channel += block->channels;
    block->first = block->last;
    if (block->last) {
        block->output += block->outputs;
    }
    if (block->channel >= layer->groups * layer->group_inputs) {
        return 0;
    }
    if (layer->block_groups > 1) {
        const size_t left = layer->groups - block->channel / layer->group_inputs;
        block->channels = smaller_size(layer->block_groups, left) * layer->group_inputs;
        block->outputs = smaller_size(layer->block_groups, left) * layer->group_outputs;
    } else {
        const size_t left = layer->group_inputs - block->channel % layer->group_inputs;
        block->channels = smaller_size(layer->block, left);
        block->last = block->channels == left;
    }
    return 1;
}

static int next_tile(const struct convolution *layer, struct tile *tile)
{
    const size_t last_row = layer->out_height - layer->tile_rows;
    const size_t cells = layer->tile_cells, last_column = layer->out_width > cells ? layer->out_width - cells : 0;
    if (tile->column < last_column) {
        tile->column = smaller_size(tile->column + cells, last_column);
        return 1;
    }
    tile->column = 0;
    if (tile->row < last_row) {
        tile->row = smaller_size(tile->row + layer->tile_rows, last_row);
        return 1;
    }
    return 0;
}

#define UNIT 3 /* vectors that are laid out together */

/* A vector of cells along a row: the map's, from `first` on. Counted from there, those from `begin` to `end` lie in it. */
struct span {
    ptrdiff_t first, begin, end;
};

static struct span span_of(const struct convolution *layer, size_t tile_column, size_t cell)
{
    const ptrdiff_t length = (CELLS - 1) * (ptrdiff_t)layer->stride_x + 1;
    struct span span;
    span.first = (ptrdiff_t)(tile_column * layer->stride_x + cell) - (ptrdiff_t)layer->pad_left;
    span.begin = span.first < 0 ? -span.first : 0;
    span.end = (ptrdiff_t)layer->in_width - span.first;
    span.begin = span.begin < length ? span.begin : length;
    span.end = span.end < length ? span.end : length;
    return span;
}

/* How the cells of a row are read. All columns of a unit are read in the same way, so that rows can be read in loops
   without branches. */
enum reading {
    READ_PLAIN, /* side by side, and all of them in the map */
    READ_CUT,   /* side by side; the map's edge cuts some off */
    READ_EVEN,  /* every other one */
    READ_ANY
};

static enum reading reading_of(const struct convolution *layer, const struct span *spans, size_t columns)
{
    int plain = layer->stride_x == 1;
    size_t column;
    for (column = 0; column < columns; column++) {
        plain = plain && spans[column].begin == 0 && spans[column].end == CELLS;
    }
#if MODEL_LANES == 8 && defined(__AVX2__)
    return plain ? READ_PLAIN : layer->stride_x == 1 ? READ_CUT : layer->stride_x == 2 ? READ_EVEN : READ_ANY;
#else
    return plain ? READ_PLAIN : READ_ANY;
#endif
}

#if MODEL_LANES == 8 && defined(__AVX2__)
/* Only the lanes from `begin` to `end` are read. */
INLINE lanes load_cut(const float *from, ptrdiff_t begin, ptrdiff_t end)
{
    static const int32_t edge[3 * CELLS] = {0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1};
    const __m256i behind = _mm256_loadu_si256((const __m256i *)(const void *)(edge + CELLS - begin));
    const __m256i before = _mm256_loadu_si256((const __m256i *)(const void *)(edge + 2 * CELLS - end));
    return (lanes)_mm256_maskload_ps(from, _mm256_and_si256(behind, before));
}

/* Every other cell of fifteen. */
INLINE lanes load_even(const float *from)
{
    const __m256 mixed = _mm256_shuffle_ps(_mm256_loadu_ps(from), _mm256_loadu_ps(from + CELLS - 1), 0xD8);
    return (lanes)_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xD8));
}

INLINE lanes load_even_cut(const float *from, ptrdiff_t begin, ptrdiff_t end)
{
    const __m256 left = (__m256)load_cut(from, begin < CELLS ? begin : CELLS, end < CELLS ? end : CELLS);
    const __m256 right =
        (__m256)load_cut(from + CELLS, begin < CELLS ? 0 : begin - CELLS, end < CELLS ? 0 : end - CELLS);
    const __m256 mixed = _mm256_shuffle_ps(left, right, 0x88);
    return (lanes)_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xD8));
}
#endif

/* One vector of a row of the map. */
INLINE lanes load_cells(const float *row, struct span span, enum reading reading, size_t stride, size_t part)
{
    const float *const from = row + span.first;
    float cells[MODEL_LANES];
    size_t lane;
    if (reading == READ_PLAIN) {
        return load_lanes(from + part * MODEL_LANES);
    }
#if MODEL_LANES == 8 && defined(__AVX2__)
    if (reading == READ_CUT) {
        return load_cut(from, span.begin, span.end < 0 ? 0 : span.end);
    }
    if (reading == READ_EVEN) {
        if (span.begin == 0 && span.end == 2 * CELLS - 1) {
            return load_even(from);
        }
        return load_even_cut(from, span.begin, span.end < 0 ? 0 : span.end);
    }
#endif
    for (lane = 0; lane < MODEL_LANES; lane++) {
        const ptrdiff_t at = (ptrdiff_t)((part * MODEL_LANES + lane) * stride);
        cells[lane] = at >= span.begin && at < span.end ? from[at] : 0.0f;
    }
    return load_lanes(cells);
}

INLINE size_t planes_of(size_t columns, int combined)
{
    return !combined || columns < 2 ? columns : columns == 2 ? 4 : 13;
}

/* The cells of up to three columns, or all their sums with weights of -1, 0 and 1 but for signs. */
INLINE void store_planes(lanes a, lanes b, lanes c, size_t columns, int combined, float *to)
{
    store_lanes(to, a);
    if (!combined) {
        if (columns > 1) {
            store_lanes(to + CELLS, b);
        }
        if (columns > 2) {
            store_lanes(to + 2 * CELLS, c);
        }
        return;
    }
    if (columns > 1) {
        store_lanes(to + CELLS, b - a);
        store_lanes(to + 2 * CELLS, b);
        store_lanes(to + 3 * CELLS, b + a);
    }
    if (columns > 2) {
        const lanes less = c - b, more = c + b;
        store_lanes(to + 4 * CELLS, less - a);
        store_lanes(to + 5 * CELLS, less);
        store_lanes(to + 6 * CELLS, less + a);
        store_lanes(to + 7 * CELLS, c - a);
        store_lanes(to + 8 * CELLS, c);
        store_lanes(to + 9 * CELLS, c + a);
        store_lanes(to + 10 * CELLS, more - a);
        store_lanes(to + 11 * CELLS, more);
        store_lanes(to + 12 * CELLS, more + a);
    }
}

/* What a unit of columns has in common in all channels of a block, for one phase of rows. */
struct laying {
    struct span spans[UNIT];
    size_t above, inside, below; /* rows above the map, in it, and below it */
    size_t row;                  /* the first in the map, */
    size_t row_step, stride_x;   /* the distance of rows, and of cells in a row, all in cells */
    size_t to_step;              /* the distance of a plane's rows in floats */
};

/* A unit of columns, all of one map or each of its own. */
INLINE void lay_unit(const struct laying *laying, size_t columns, int combined, enum reading reading,
                     const float *const *maps, float *to)
{
    const size_t to_step = laying->to_step, step = laying->row_step, stride = laying->stride_x;
    const struct span a_span = laying->spans[0], b_span = laying->spans[1], c_span = laying->spans[2];
    const float *a_row = maps[0] + laying->row, *b_row = maps[1] + laying->row, *c_row = maps[2] + laying->row;
    const lanes none = all_lanes(0.0f);
    size_t rows, part;
    for (rows = laying->above; rows > 0; rows--) {
        for (part = 0; part < ROW_PARTS; part++) {
            store_planes(none, none, none, columns, combined, to + part * MODEL_LANES);
        }
        to += to_step;
    }
    for (rows = laying->inside; rows > 0; rows--) {
        for (part = 0; part < ROW_PARTS; part++) {
            const lanes a = load_cells(a_row, a_span, reading, stride, part);
            const lanes b = columns > 1 ? load_cells(b_row, b_span, reading, stride, part) : none;
            const lanes c = columns > 2 ? load_cells(c_row, c_span, reading, stride, part) : none;
            store_planes(a, b, c, columns, combined, to + part * MODEL_LANES);
        }
        a_row += step;
        b_row += step;
        c_row += step;
        to += to_step;
    }
    for (rows = laying->below; rows > 0; rows--) {
        for (part = 0; part < ROW_PARTS; part++) {
            store_planes(none, none, none, columns, combined, to + part * MODEL_LANES);
        }
        to += to_step;
    }
}

static const float *map_of(const struct convolution *layer, const float *in, size_t index)
{
    return in + (layer->channels ? layer->channels[index] : index) * layer->in_step;
}

/* The same columns of all channels of a block, which are `step` floats apart. */
INLINE void lay_channels(const struct convolution *layer, const struct laying *laying, size_t columns, int combined,
                         enum reading reading, const struct block *block, const float *in, size_t step, float *to)
{
    size_t index;
    for (index = 0; index < block->channels; index++) {
        const float *const map = map_of(layer, in, block->channel + index), *const maps[UNIT] = {map, map, map};
        lay_unit(laying, columns, combined, reading, maps, to + index * step);
    }
}

typedef void lay_block(const struct convolution *layer, const struct laying *laying, const struct block *block,
                       const float *in, size_t step, float *to);

/* Each number of columns and each way of reading is compiled separately. */
#define DEFINE_LAY(READING, WORD, COLUMNS, COMBINED)                                                                \
    static void lay_##READING##_##WORD##_##COLUMNS(const struct convolution *layer, const struct laying *laying,    \
                                                   const struct block *block, const float *in, size_t step,         \
                                                   float *to)                                                       \
    {                                                                                                               \
        lay_channels(layer, laying, COLUMNS, COMBINED, READ_##READING, block, in, step, to);                        \
    }
#define DEFINE_LAYS(READING)            \
    DEFINE_LAY(READING, apart, 1, 0)    \
    DEFINE_LAY(READING, apart, 2, 0)    \
    DEFINE_LAY(READING, apart, 3, 0)    \
    DEFINE_LAY(READING, combined, 2, 1) \
    DEFINE_LAY(READING, combined, 3, 1)
#define LAYS(READING)                                                                                              \
    {                                                                                                              \
        {lay_##READING##_apart_1, lay_##READING##_apart_2, lay_##READING##_apart_3},                               \
            {lay_##READING##_apart_1, lay_##READING##_combined_2, lay_##READING##_combined_3}                      \
    }

DEFINE_LAYS(PLAIN)
DEFINE_LAYS(ANY)
#if MODEL_LANES == 8 && defined(__AVX2__)
DEFINE_LAYS(CUT)
DEFINE_LAYS(EVEN)
static lay_block *const lay_block_of[4][2][UNIT] = {LAYS(PLAIN), LAYS(CUT), LAYS(EVEN), LAYS(ANY)};
#else
static lay_block *const lay_block_of[4][2][UNIT] = {LAYS(PLAIN), LAYS(ANY), LAYS(ANY), LAYS(ANY)};
#endif

/* Kernels of one column, combined: neighboring channels take the place of columns. */
static void lay_neighbours(const struct convolution *layer, const struct laying *laying, enum reading reading,
                           const struct block *block, const float *in, float *to)
{
    size_t index, column;
    for (index = 0; index < block->channels; index += UNIT) {
        const size_t columns = smaller_size(UNIT, block->channels - index);
        const float *maps[UNIT];
        for (column = 0; column < UNIT; column++) {
            maps[column] = map_of(layer, in, block->channel + index + (column < columns ? column : 0));
        }
        if (columns == UNIT && reading == READ_PLAIN) {
            lay_unit(laying, UNIT, 1, READ_PLAIN, maps, to);
        } else if (columns == UNIT) {
            lay_unit(laying, UNIT, 1, READ_ANY, maps, to);
        } else if (columns == 2) {
            lay_unit(laying, 2, 1, READ_ANY, maps, to);
        } else {
            lay_unit(laying, 1, 1, READ_ANY, maps, to);
        }
        to += plane_rows(layer) * laying->to_step;
    }
}

/* Rows of one phase that lie above, in and below the map. */
static void divide_rows(const struct convolution *layer, size_t tile_row, size_t phase, struct laying *laying)
{
    const size_t step = layer->stride_y, end = layer->in_height + layer->pad_top;
    size_t y = tile_row * step + phase; /* counted from the border's edge */
    for (laying->above = 0; laying->above < layer->phase_rows && y < layer->pad_top; y += step) {
        laying->above++;
    }
    laying->row = laying->above < layer->phase_rows ? (y - layer->pad_top) * layer->in_row : 0;
    for (laying->inside = 0; laying->above + laying->inside < layer->phase_rows && y < end; y += step) {
        laying->inside++;
    }
    laying->below = layer->phase_rows - laying->above - laying->inside;
}

/* All planes of a block for a tile. */
static void lay_planes(const struct convolution *layer, const struct block *block, struct tile tile, const float *in,
                       float *to)
{
    const size_t step = layer->row_floats;
    struct laying laying;
    size_t phase, begin, column;
    laying.row_step = layer->stride_y * layer->in_row;
    laying.stride_x = layer->stride_x;
    laying.to_step = step;
    for (begin = 0; begin < layer->laid; begin += UNIT) {
        const size_t columns = smaller_size(UNIT, layer->laid - begin);
        enum reading reading;
        for (column = 0; column < UNIT; column++) {
            const size_t place = begin + (column < columns ? column : 0);
            laying.spans[column] = span_of(layer, tile.column, layer->laid_cells[place]);
        }
        reading = reading_of(layer, laying.spans, columns);
        for (phase = 0; phase < layer->phases; phase++) {
            float *const phase_to = to + phase * layer->phase_rows * step;
            divide_rows(layer, tile.row, phase, &laying);
            if (layer->kernel_x == 1 && layer->combined) {
                lay_neighbours(layer, &laying, reading, block, in, phase_to);
            } else {
                lay_block_of[reading][layer->combined][columns - 1](layer, &laying, block, in,
                                                                    plane_rows(layer) * step, phase_to);
            }
        }
        to += planes_of(columns, layer->combined) * CELLS;
    }
}

/* Where a tile's rows go, and what a residual adds to them. */
struct target {
    float *out;
    const float *residual; /* or none */
};

static struct target target_of(const struct convolution *layer, size_t output, struct tile tile, float *out,
                               const float *residual)
{
    struct target target = {out + output * layer->out_step + tile.row * layer->out_row + tile.column, NULL};
    if (residual) {
        target.residual = residual + output * layer->residual_step + tile.row * layer->residual_row + tile.column;
    }
    return target;
}

/* Whether a tile ends where its map does, and zeros follow. */
static int ends_at_border(const struct convolution *layer, struct tile tile)
{
    return layer->bordered && tile.column + layer->tile_cells >= layer->out_width;
}

/* Sums of a tile on a map that is narrower than it. */
static void finish_narrow(const struct convolution *layer, size_t output, const float *sums, struct target target)
{
    size_t row, column;
    for (row = 0; row < layer->tile_rows; row++) {
        if (layer->bordered) {
            clear_behind(target.out + row * layer->out_row + layer->out_width);
        }
        for (column = 0; column < layer->out_width; column++) {
            const float *affine = layer->finish.affine[output];
            float value = sums[row * CELLS + column] * affine[0] + affine[1];
            if (target.residual) {
                value += target.residual[row * layer->residual_row + column];
            }
            target.out[row * layer->out_row + column] = limited(&layer->finish, value);
        }
    }
}
