#include "tiles.h"

/*
 * The weights of a ternary convolution as lists of offsets into the planes, in rows of cells. For each block: how many
 * outputs follow; for each of them its place, how many offsets are added, how many are subtracted, and those offsets.
 * Outputs to which a block adds nothing are left out, but for the block that begins a sum and the one that ends it.
 */

/* What becomes of the sums over one block. */
struct ending {
    const struct convolution *layer;
    float *sums; /* over the blocks before, and for those after */
    int first, finished;
    size_t output;
    struct target target;
};

#define CLEAR_SUM(i) lanes sum_##i = all_lanes(0.0f);
#define ADD_CELLS(i) sum_##i += load_lanes(from + (i) * MODEL_LANES);
#define SUBTRACT_CELLS(i) sum_##i -= load_lanes(from + (i) * MODEL_LANES);
#define ADD_EARLIER(i) sum_##i += load_lanes(ending->sums + (i) * MODEL_LANES);
#define KEEP_SUM(i) store_lanes(ending->sums + (i) * MODEL_LANES, sum_##i);
#define CELL_AT(i) ((i) / ROW_PARTS * width + (i) % ROW_PARTS * MODEL_LANES)
#define SCALE_SUM(i) sum_##i = add_product(bias, sum_##i, scale);
#define ADD_RESIDUAL(i) sum_##i += load_lanes(ending->target.residual + CELL_AT(i));
#define WRITE_CELLS(i) store_lanes(ending->target.out + CELL_AT(i), limited_lanes(&ending->layer->finish, sum_##i));

/* Sums over a list, for so many vectors side by side. */
#define DEFINE_SUM_VECTORS(COUNT)                                                                              \
    static void sum_vectors_##COUNT(const float *planes, const uint16_t *list, const uint16_t *minus,          \
                                    const uint16_t *end, const struct ending *ending)                          \
    {                                                                                                          \
        TIMES_##COUNT(CLEAR_SUM)                                                                               \
        for (; list < minus; list++) {                                                                         \
            const float *from = planes + (size_t)*list * CELLS;                                                \
            TIMES_##COUNT(ADD_CELLS)                                                                           \
        }                                                                                                      \
        for (; list < end; list++) {                                                                           \
            const float *from = planes + (size_t)*list * CELLS;                                                \
            TIMES_##COUNT(SUBTRACT_CELLS)                                                                      \
        }                                                                                                      \
        if (!ending->first) {                                                                                  \
            TIMES_##COUNT(ADD_EARLIER)                                                                         \
        }                                                                                                      \
        if (ending->finished) {                                                                                \
            const size_t width = ending->layer->out_width;                                                     \
            const float *const affine = ending->layer->finish.affine[ending->output];                          \
            const lanes scale = all_lanes(affine[0]), bias = all_lanes(affine[1]);                             \
            TIMES_##COUNT(SCALE_SUM)                                                                           \
            if (ending->target.residual) {                                                                     \
                TIMES_##COUNT(ADD_RESIDUAL)                                                                    \
            }                                                                                                  \
            TIMES_##COUNT(WRITE_CELLS)                                                                         \
        } else {                                                                                               \
            TIMES_##COUNT(KEEP_SUM)                                                                            \
        }                                                                                                      \
    }

DEFINE_SUM_VECTORS(1)
DEFINE_SUM_VECTORS(2)
DEFINE_SUM_VECTORS(3)
DEFINE_SUM_VECTORS(4)
DEFINE_SUM_VECTORS(5)
DEFINE_SUM_VECTORS(6)
DEFINE_SUM_VECTORS(7)
DEFINE_SUM_VECTORS(8)

typedef void sum_vectors(const float *planes, const uint16_t *list, const uint16_t *minus, const uint16_t *end,
                         const struct ending *ending);

static sum_vectors *const sum_vectors_of[] = {
    NULL,          sum_vectors_1, sum_vectors_2, sum_vectors_3, sum_vectors_4,
    sum_vectors_5, sum_vectors_6, sum_vectors_7, sum_vectors_8,
};

/* A tile's rows in passes of up to eight vectors. */
static void sum_tile(const float *planes, const uint16_t *list, const uint16_t *minus, const uint16_t *end,
                     struct ending ending)
{
    size_t vectors = ending.layer->tile_rows * ROW_PARTS;
    while (vectors > 8) {
        sum_vectors_8(planes, list, minus, end, &ending);
        planes += 8 * MODEL_LANES;
        ending.sums += 8 * MODEL_LANES;
        ending.target.out += 8 / ROW_PARTS * ending.layer->out_width;
        if (ending.target.residual) {
            ending.target.residual += 8 / ROW_PARTS * ending.layer->out_width;
        }
        vectors -= 8;
    }
    sum_vectors_of[vectors](planes, list, minus, end, &ending);
}

static const uint16_t *sum_block(const struct convolution *layer, const struct block *block, struct tile tile,
                                 const uint16_t *list, const float *planes, float *sums, float *out,
                                 const float *residual)
{
    const int narrow = layer->out_width < CELLS;
    size_t outputs = *list++;
    for (; outputs > 0; outputs--) {
        const uint16_t *const minus = list + 3 + list[1], *const end = minus + list[2];
        struct ending ending;
        ending.layer = layer;
        ending.sums = sums + (size_t)list[0] * layer->tile_rows * CELLS;
        ending.first = block->first;
        ending.finished = block->last && !narrow;
        ending.output = layer->outputs ? layer->outputs[list[0]] : list[0];
        ending.target = target_of(layer, ending.output, tile, out, residual);
        sum_tile(planes, list + 3, minus, end, ending);
        if (block->last && narrow) {
            finish_narrow(layer, ending.output, ending.sums, ending.target);
        }
        list = end;
    }
    return list;
}

/* Work space: the planes of a block, then the sums of all outputs. */
static void ternary_convolution(const struct convolution *layer, const uint16_t *lists, size_t planes_size,
                                const float *in, const float *residual, float *out, float *work)
{
    struct tile tile = {0, 0};
    do {
        const uint16_t *list = lists;
        struct block block = first_block(layer);
        do {
            lay_planes(layer, &block, tile, in, work);
            list = sum_block(layer, &block, tile, list, work, work + planes_size, out, residual);
        } while (next_block(layer, &block));
    } while (next_tile(layer, &tile));
}
