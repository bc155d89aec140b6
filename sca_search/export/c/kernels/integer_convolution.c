#include "integer_tiles.h"
#include "literals.h"

/*
 * A convolution with weights from -127 to 127, over planes of single columns. A chunk: the weights of up to four outputs
 * for one block's channels of their group. For each two taps and each output there are two numbers of two bytes, the
 * lower first: a tap is a channel, a column and a row of the kernel, in this order. An odd number of taps is filled up
 * with a zero, whose cells are those of the first.
 */
struct integer_taps {
    struct literal weights;
    const uint16_t *offsets; /* of the taps of a block */
    size_t taps;             /* of a channel */
    size_t outputs_at_once;
};

INLINE int32_t tap_weight(const unsigned char *weights, size_t outputs, size_t output, size_t tap)
{
    const unsigned char low = weights[4 * (tap / 2 * outputs + output) + 2 * (tap % 2)];
    return low < 128 ? low : (int32_t)low - 256;
}

/* The sums of one output for one row. */
static void multiply_row(const unsigned char *weights, size_t outputs, size_t output, const uint16_t *offsets,
                         size_t taps, const uint16_t *planes, int32_t *to)
{
    int32_t sums[CELLS] = {0};
    size_t tap, cell;
    for (tap = 0; tap < taps; tap++) {
        const int32_t weight = tap_weight(weights, outputs, output, tap);
        int16_t cells[CELLS];
        memcpy(cells, planes + offsets[tap], sizeof cells);
        for (cell = 0; cell < CELLS; cell++) {
            sums[cell] += weight * cells[cell];
        }
    }
    memcpy(to, sums, sizeof sums);
}

#if INTEGER_LANES == 16
#define EACH_OF_FOUR(DO) DO(0) DO(1) DO(2) DO(3)
#define CLEAR_TWO(i) __m256i low_##i = _mm256_setzero_si256(), high_##i = _mm256_setzero_si256();
#define MULTIPLY_TWO(i)                                                            \
    {                                                                              \
        int32_t pair;                                                              \
        __m256i weight;                                                            \
        memcpy(&pair, weights + 4 * (i), sizeof pair);                             \
        weight = _mm256_set1_epi32(pair);                                          \
        low_##i = _mm256_add_epi32(low_##i, _mm256_madd_epi16(low, weight));       \
        high_##i = _mm256_add_epi32(high_##i, _mm256_madd_epi16(high, weight));    \
    }
#define STORE_TWO(i)                                                                             \
    store_eight(to + (i) * size, _mm256_permute2x128_si256(low_##i, high_##i, 0x20));            \
    store_eight(to + (i) * size + CELLS, _mm256_permute2x128_si256(low_##i, high_##i, 0x31));

/* The sums of four outputs for two rows: products of two taps are added as they are made. */
static void multiply_two_rows(const unsigned char *weights, const uint16_t *offsets, size_t taps,
                              const uint16_t *planes, size_t size, int32_t *to)
{
    size_t tap;
    EACH_OF_FOUR(CLEAR_TWO)
    for (tap = 0; tap < taps; tap += 2) {
        const uint16_t *const other = planes + offsets[tap + 1 < taps ? tap + 1 : 0];
        const __m256i left = (__m256i)load_sums16(planes + offsets[tap]), right = (__m256i)load_sums16(other);
        const __m256i low = _mm256_unpacklo_epi16(left, right), high = _mm256_unpackhi_epi16(left, right);
        EACH_OF_FOUR(MULTIPLY_TWO)
        weights += 16;
    }
    EACH_OF_FOUR(STORE_TWO)
}
#endif

/* The sums of up to four outputs, one tile after the other in `fresh`. */
static void multiply_planes(const struct integer_convolution *layer, const struct integer_taps *dense,
                            const unsigned char *weights, size_t outputs, size_t taps, const uint16_t *planes,
                            int32_t *fresh)
{
    const size_t at_once = dense->outputs_at_once, size = (layer->tile_rows + 1) * CELLS;
    size_t row = 0, output;
#if INTEGER_LANES == 16
    for (; at_once == 4 && row < layer->tile_rows; row += 2) {
        multiply_two_rows(weights, dense->offsets, taps, planes + row * CELLS, size, fresh + row * CELLS);
    }
#endif
    for (; row < layer->tile_rows; row++) {
        for (output = 0; output < outputs; output++) {
            multiply_row(weights, at_once, output, dense->offsets, taps, planes + row * CELLS,
                         fresh + output * size + row * CELLS);
        }
    }
}

/* Adds an output's fresh sums to those of the previous blocks, and finishes them after the last. */
static void join_tile(const struct integer_convolution *layer, const struct channel_block *block, size_t output,
                      struct place tile, const int32_t *fresh, int32_t *kept, const int8_t *residual, int8_t *out)
{
    const eight_numbers numbers = numbers_of(layer->finish + output, layer->limits);
    const size_t at = cell_at(layer, output, tile, 0), width = layer->out_width, rows = layer->tile_rows;
    const int first = block->first, last = block->last;
    size_t row;
    for (row = 0; row < rows; row++) {
        eight_sums sums = load_eight(fresh + row * CELLS);
        if (!first) {
            sums = eight_added(sums, load_eight(kept + row * CELLS));
        }
        if (last) {
            const size_t cell = at + row * width;
            finish_row(&numbers, sums, residual ? residual + cell : NULL, out + cell, width);
        } else {
            store_eight(kept + row * CELLS, sums);
        }
    }
}

/* Work space: the planes of a block, the fresh sums of four outputs with a row to spare each, then those of all. */
static void integer_convolution(const struct integer_convolution *layer, const struct integer_taps *dense,
                                size_t planes_bytes, const int8_t *in, const int8_t *residual, int8_t *out, void *work)
{
    const size_t size = (layer->tile_rows + 1) * CELLS;
    uint16_t *const planes = (uint16_t *)work;
    int32_t *const fresh = (int32_t *)(void *)((char *)work + planes_bytes), *const sums = fresh + 4 * size;
    struct place tile = {0, 0};
    do {
        struct chunks chunks = chunks_of(&dense->weights);
        struct channel_block block = first_channels(layer);
        do {
            const size_t taps = block.channels * dense->taps;
            size_t begin, output;
            lay_block_planes(layer, &block, tile, in, planes);
            for (begin = 0; begin < layer->group_outputs; begin += dense->outputs_at_once) {
                const size_t outputs = smaller_of(dense->outputs_at_once, layer->group_outputs - begin);
                multiply_planes(layer, dense, next_chunk(&chunks), outputs, taps, planes, fresh);
                for (output = 0; output < outputs; output++) {
                    const size_t index = block.output + begin + output;
                    join_tile(layer, &block, index, tile, fresh + output * size,
                              sums + index * layer->tile_rows * CELLS, residual, out);
                }
            }
        } while (next_channels(layer, &block));
    } while (next_place(layer, &tile));
}
