#include "integer_tiles.h"

/*
 * The weights of a ternary convolution as lists of offsets into the planes of a block, in cells. For each block: how many
 * outputs follow; for each of them its place, how many offsets are added, how many are subtracted, and those offsets.
 * Outputs to which a block adds nothing are left out, but for the block that begins a sum and the one that ends it. No
 * list has more weights than sums of 16 bits have room for; blocks are joined in 32 bits.
 */

/* One block's sums for some rows of a tile: their inputs and outputs. */
struct integer_summing {
    const uint16_t *planes;
    size_t row, rows; /* of the tile */
    int32_t *sums;    /* of all outputs, if there are several blocks */
    struct place tile;
    const int8_t *residual; /* or none */
    int8_t *out;
    int first, last;
};

static void join_rows(const struct integer_convolution *layer, const struct integer_summing *summing, size_t place,
                      const uint16_t *fresh)
{
    const size_t rows = summing->rows, width = layer->out_width;
    int32_t *const kept = summing->sums + (place * layer->tile_rows + summing->row) * CELLS;
    const int first = summing->first;
    size_t row;
    if (!summing->last) {
        for (row = 0; row < rows; row++) {
            const eight_sums sums = widened(fresh + row * CELLS);
            store_eight(kept + row * CELLS, first ? sums : eight_added(sums, load_eight(kept + row * CELLS)));
        }
    } else {
        const size_t output = layer->outputs ? layer->outputs[place] : place;
        const size_t at = cell_at(layer, output, summing->tile, summing->row);
        const int8_t *const residual = summing->residual ? summing->residual + at : NULL;
        const eight_numbers numbers = numbers_of(layer->finish + output, layer->limits);
        int8_t *const out = summing->out + at;
        row = 0;
#if INTEGER_LANES == 16
        for (; width >= CELLS && row + 2 <= rows; row += 2) {
            eight_sums upper = widened(fresh + row * CELLS), lower = widened(fresh + (row + 1) * CELLS);
            if (!first) {
                upper = eight_added(upper, load_eight(kept + row * CELLS));
                lower = eight_added(lower, load_eight(kept + (row + 1) * CELLS));
            }
            requantize_two(&numbers, upper, lower, residual ? residual + row * width : NULL, out + row * width, width);
        }
#endif
        for (; row < rows; row++) {
            eight_sums sums = widened(fresh + row * CELLS);
            if (!first) {
                sums = eight_added(sums, load_eight(kept + row * CELLS));
            }
            finish_row(&numbers, sums, residual ? residual + row * width : NULL, out + row * width, width);
        }
    }
}

#define CLEAR_SUM16(i) sums16 sum_##i = none;
#define ADD_CELLS16(i) sum_##i = added(sum_##i, load_sums16(from + (i) * INTEGER_LANES));
#define SUBTRACT_CELLS16(i) sum_##i = subtracted(sum_##i, load_sums16(from + (i) * INTEGER_LANES));
#define STORE_SUM16(i) store_sums16(fresh + (i) * INTEGER_LANES, sum_##i);

/* Sums over the lists of a block, for this many vectors; returns the end of the lists. */
#define DEFINE_SUM_LISTS(COUNT)                                                                                       \
    static const uint16_t *sum_lists_##COUNT(const struct integer_convolution *layer,                                 \
                                             const struct integer_summing *summing, const uint16_t *list)             \
    {                                                                                                                 \
        const uint16_t *const planes = summing->planes;                                                               \
        uint16_t fresh[8 * INTEGER_LANES + CELLS];                                                                    \
        const sums16 none = {0};                                                                                      \
        size_t outputs = *list++;                                                                                     \
        for (; outputs > 0; outputs--) {                                                                              \
            const size_t place = list[0];                                                                             \
            const uint16_t *const minus = list + 3 + list[1], *const end = minus + list[2];                           \
            TIMES_##COUNT(CLEAR_SUM16)                                                                                \
            for (list += 3; list < minus; list++) {                                                                   \
                const uint16_t *from = planes + *list;                                                                \
                TIMES_##COUNT(ADD_CELLS16)                                                                            \
            }                                                                                                         \
            for (; list < end; list++) {                                                                              \
                const uint16_t *from = planes + *list;                                                                \
                TIMES_##COUNT(SUBTRACT_CELLS16)                                                                       \
            }                                                                                                         \
            TIMES_##COUNT(STORE_SUM16)                                                                                \
            join_rows(layer, summing, place, fresh);                                                                  \
        }                                                                                                             \
        return list;                                                                                                  \
    }

DEFINE_SUM_LISTS(1)
DEFINE_SUM_LISTS(2)
DEFINE_SUM_LISTS(3)
DEFINE_SUM_LISTS(4)
DEFINE_SUM_LISTS(5)
DEFINE_SUM_LISTS(6)
DEFINE_SUM_LISTS(7)
DEFINE_SUM_LISTS(8)

typedef const uint16_t *sum_lists(const struct integer_convolution *layer, const struct integer_summing *summing,
                                  const uint16_t *list);

static sum_lists *const sum_lists_of[] = {
    NULL, sum_lists_1, sum_lists_2, sum_lists_3, sum_lists_4, sum_lists_5, sum_lists_6, sum_lists_7, sum_lists_8,
};

/* A tile's rows in passes of up to eight vectors, each with the same lists; returns their end. */
static const uint16_t *sum_tile(const struct integer_convolution *layer, struct integer_summing *summing,
                                const uint16_t *planes, const uint16_t *list)
{
    const uint16_t *end = list;
    for (summing->row = 0; summing->row < layer->tile_rows; summing->row += summing->rows) {
        const size_t left = layer->tile_rows - summing->row;
        const size_t vectors = smaller_of((left * CELLS + INTEGER_LANES - 1) / INTEGER_LANES, 8);
        summing->rows = smaller_of(vectors * INTEGER_LANES / CELLS, left);
        summing->planes = planes + summing->row * CELLS;
        end = sum_lists_of[vectors](layer, summing, list);
    }
    return end;
}

/* Work space: the planes of a block, then sums. */
static void integer_ternary_convolution(const struct integer_convolution *layer, const uint16_t *lists,
                                        size_t planes_bytes, const int8_t *in, const int8_t *residual, int8_t *out,
                                        void *work)
{
    uint16_t *const planes = (uint16_t *)work;
    struct integer_summing summing;
    summing.sums = (int32_t *)(void *)((char *)work + planes_bytes);
    summing.tile.row = summing.tile.column = 0;
    summing.residual = residual;
    summing.out = out;
    do {
        const uint16_t *list = lists;
        struct channel_block block = first_channels(layer);
        do {
            summing.first = block.first;
            summing.last = block.last;
            lay_block_planes(layer, &block, summing.tile, in, planes);
            list = sum_tile(layer, &summing, planes, list);
        } while (next_channels(layer, &block));
    } while (next_place(layer, &summing.tile));
}
