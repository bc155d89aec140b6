#include "tiles.h"

/*
 * The weights of a ternary convolution as lists of offsets into what is laid out of a block, in floats. For each block: how many
 * outputs follow; for each of them its place, how many offsets are added, how many are subtracted, and those offsets.
 * Outputs to which a block adds nothing are left out, but for the block that begins a sum and the one that ends it.
 */

/* One block's sums for one tile, or for some rows of it: their inputs and outputs. */
struct summing {
    const float *planes;
    float *sums; /* of all outputs: over the blocks before, and for those after */
    float *out;  /* the tile's first cell in the first output's map */
    const float *residual; /* the same in what is added, or none */
    int first, finished, at_border;
};

#define CLEAR_SUM(i) lanes sum_##i = none;
/* Up to eight vectors at a time, as many per row as a tile has times CELLS columns. */
#define PASS 8
#define PARTS_OF(STRIPS) ((STRIPS)*ROW_PARTS < PASS ? (STRIPS)*ROW_PARTS : PASS)
#define PLANE_AT(i) ((i) / parts * step + (i) % parts * MODEL_LANES)
#define ADD_CELLS(i) sum_##i += load_lanes(from + PLANE_AT(i));
#define SUBTRACT_CELLS(i) sum_##i -= load_lanes(from + PLANE_AT(i));
#define ADD_EARLIER(i) sum_##i += load_lanes(kept + (i) * MODEL_LANES);
#define KEEP_SUM(i) store_lanes(kept + (i) * MODEL_LANES, sum_##i);
#define CELL_AT(i, width) ((i) / parts * (width) + (i) % parts * MODEL_LANES)
#define SCALE_SUM(i) sum_##i = add_product(bias, sum_##i, scale);
#define ADD_RESIDUAL(i) sum_##i += load_lanes(residual + CELL_AT(i, residual_row));
#define CLEAR_BEHIND(i)                                         \
    if ((i) % parts >= parts - ROW_PARTS) {                     \
        store_lanes(out + CELL_AT(i, out_row) + CELLS, none);   \
    }
#define WRITE_CELLS(i) store_lanes(out + CELL_AT(i, out_row), limited_lanes(limits, sum_##i));

/* Sums over the lists of a block, for this many vectors of rows at that distance; returns the end of the lists. */
#define DEFINE_SUM_VECTORS(NAME, COUNT, STRIPS, STEP)                                                               \
    static const uint16_t *NAME(const struct convolution *layer, const struct summing *summing,                     \
                                const uint16_t *list)                                                               \
    {                                                                                                               \
        const size_t parts = PARTS_OF(STRIPS), step = STEP;                                                         \
        const size_t out_row = layer->out_row, residual_row = layer->residual_row;                                  \
        const float *const planes = summing->planes;                                                                \
        const struct lane_limits limits = limits_of(&layer->finish);                                                \
        const lanes none = all_lanes(0.0f);                                                                         \
        size_t outputs = *list++;                                                                                   \
        for (; outputs > 0; outputs--) {                                                                            \
            const size_t place = list[0];                                                                           \
            const uint16_t *const minus = list + 3 + list[1], *const end = minus + list[2];                         \
            float *const kept = summing->sums + place * layer->tile_rows * CELLS;                                   \
            TIMES_##COUNT(CLEAR_SUM)                                                                                \
            for (list += 3; list < minus; list++) {                                                                 \
                const float *from = planes + *list;                                                                 \
                TIMES_##COUNT(ADD_CELLS)                                                                            \
            }                                                                                                       \
            for (; list < end; list++) {                                                                            \
                const float *from = planes + *list;                                                                 \
                TIMES_##COUNT(SUBTRACT_CELLS)                                                                       \
            }                                                                                                       \
            if (!summing->first) {                                                                                  \
                TIMES_##COUNT(ADD_EARLIER)                                                                          \
            }                                                                                                       \
            if (summing->finished) {                                                                                \
                const size_t output = layer->outputs ? layer->outputs[place] : place;                               \
                float *const out = summing->out + output * layer->out_step;                                         \
                const float *const affine = layer->finish.affine[output];                                           \
                const lanes scale = all_lanes(affine[0]), bias = all_lanes(affine[1]);                              \
                TIMES_##COUNT(SCALE_SUM)                                                                            \
                if (summing->residual) {                                                                            \
                    const float *const residual = summing->residual + output * layer->residual_step;                \
                    TIMES_##COUNT(ADD_RESIDUAL)                                                                     \
                }                                                                                                   \
                TIMES_##COUNT(WRITE_CELLS)                                                                          \
                if (summing->at_border) {                                                                           \
                    TIMES_##COUNT(CLEAR_BEHIND)                                                                     \
                }                                                                                                   \
            } else {                                                                                                \
                TIMES_##COUNT(KEEP_SUM)                                                                             \
            }                                                                                                       \
        }                                                                                                           \
        return list;                                                                                                \
    }

DEFINE_SUM_VECTORS(sum_vectors_1, 1, 1, layer->row_floats)
DEFINE_SUM_VECTORS(sum_vectors_2, 2, 1, layer->row_floats)
DEFINE_SUM_VECTORS(sum_vectors_3, 3, 1, layer->row_floats)
DEFINE_SUM_VECTORS(sum_vectors_4, 4, 1, layer->row_floats)
DEFINE_SUM_VECTORS(sum_vectors_5, 5, 1, layer->row_floats)
DEFINE_SUM_VECTORS(sum_vectors_6, 6, 1, layer->row_floats)
DEFINE_SUM_VECTORS(sum_vectors_7, 7, 1, layer->row_floats)
DEFINE_SUM_VECTORS(sum_vectors_8, 8, 1, layer->row_floats)
/* The most common distances separately, so that addresses are computed at compile time: rows of a cache line, and those
 * of three combined columns. */
#define LINE_STEP 16
#define COMBINED_STEP (13 * CELLS)
DEFINE_SUM_VECTORS(sum_vectors_8_of_lines, 8, 1, LINE_STEP)
DEFINE_SUM_VECTORS(sum_vectors_8_of_combined, 8, 1, COMBINED_STEP)
/* Wide tiles. */
DEFINE_SUM_VECTORS(sum_vectors_8_of_two, 8, 2, layer->row_floats)
DEFINE_SUM_VECTORS(sum_vectors_8_of_four, 8, 4, layer->row_floats)

typedef const uint16_t *sum_vectors(const struct convolution *layer, const struct summing *summing,
                                    const uint16_t *list);

static sum_vectors *sum_vectors_of(const struct convolution *layer, size_t count)
{
    static sum_vectors *const any[] = {
        NULL,          sum_vectors_1, sum_vectors_2, sum_vectors_3, sum_vectors_4,
        sum_vectors_5, sum_vectors_6, sum_vectors_7, sum_vectors_8,
    };
    if (layer->tile_cells > CELLS) {
        return layer->tile_cells == 2 * CELLS ? sum_vectors_8_of_two : sum_vectors_8_of_four;
    }
    if (count == PASS && layer->row_floats == LINE_STEP) {
        return sum_vectors_8_of_lines;
    }
    return count == PASS && layer->row_floats == COMBINED_STEP ? sum_vectors_8_of_combined : any[count];
}

/* Finishes the outputs of a block on maps that are narrower than a tile, whose sums were stored. */
static void finish_block(const struct convolution *layer, const struct block *block, struct tile tile,
                         const float *sums, float *out, const float *residual)
{
    size_t place;
    for (place = block->output; place < block->output + block->outputs; place++) {
        const size_t output = layer->outputs ? layer->outputs[place] : place;
        finish_narrow(layer, output, sums + place * layer->tile_rows * CELLS,
                      target_of(layer, output, tile, out, residual));
    }
}

/* A tile's rows in passes, each with the same lists. */
static const uint16_t *sum_block(const struct convolution *layer, const struct block *block, struct tile tile,
                                 const uint16_t *list, const float *planes, float *sums, float *out,
                                 const float *residual)
{
    const struct target target = target_of(layer, 0, tile, out, residual);
    const int narrow = layer->out_width < CELLS;
    const uint16_t *end = list;
    const size_t parts = layer->tile_cells / MODEL_LANES, vectors = layer->tile_rows * parts;
    size_t vector = 0;
    struct summing summing;
    summing.first = block->first;
    summing.finished = block->last && !narrow;
    while (vector < vectors) {
        const size_t some = smaller_size(vectors - vector, PASS);
        const size_t row = vector / parts, column = vector % parts * MODEL_LANES;
        summing.planes = planes + row * layer->row_floats + column;
        summing.sums = sums + vector * MODEL_LANES;
        summing.out = target.out + row * layer->out_row + column;
        summing.residual = target.residual ? target.residual + row * layer->residual_row + column : NULL;
        vector += some;
        summing.at_border = ends_at_border(layer, tile) && vector % parts == 0;
        end = sum_vectors_of(layer, some)(layer, &summing, list);
    }
    if (block->last && narrow) {
        finish_block(layer, block, tile, sums, out, residual);
    }
    return end;
}

/* What the lists' offsets count from: planes that are laid out, or the maps themselves. */
static const float *planes_of_tile(const struct convolution *layer, const struct block *block, struct tile tile,
                                   const float *in, float *work)
{
    if (layer->laid == 0) {
        const size_t border = layer->pad_top * layer->in_row + layer->pad_left;
        return in + tile.row * layer->in_row + tile.column - border;
    }
    lay_planes(layer, block, tile, in, work);
    return work;
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
            const float *const planes = planes_of_tile(layer, &block, tile, in, work);
            list = sum_block(layer, &block, tile, list, planes, work + planes_size, out, residual);
        } while (next_block(layer, &block));
    } while (next_tile(layer, &tile));
}
