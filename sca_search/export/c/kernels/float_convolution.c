#include "float_literals.h"
#include "tiles.h"

/*
 * A dense convolution over the same planes. Its weights come four outputs at a time, so that a vector of cells that was
 * loaded once serves four sums. A chunk: the weights of (up to) four outputs for one block's channels of their group,
 * side by side for each column, row and channel.
 */

/* Sums of four outputs for two vectors: eight accumulators, as many as hide the latency of a multiplication. */
#define EACH_OUTPUT(DO) DO(0) DO(1) DO(2) DO(3)
#define CLEAR_PAIR(i) lanes left_##i = all_lanes(0.0f), right_##i = all_lanes(0.0f);
#define ADD_PAIR(i)                                                     \
    {                                                                   \
        const lanes weight = all_lanes(load_float(weights + 4 * (i)));  \
        left_##i = add_product(left_##i, left, weight);                 \
        right_##i = add_product(right_##i, right, weight);              \
    }
#define KEEP_PAIR(i)                                                    \
    store_lanes(to + (i) * size, left_##i);                             \
    store_lanes(to + (i) * size + MODEL_LANES, right_##i);

static void multiply_four(const struct convolution *layer, const unsigned char *weights, size_t channels,
                          const float *planes, size_t next, size_t size, float *to)
{
    const size_t step = layer->row_floats;
    size_t channel, row, column;
    EACH_OUTPUT(CLEAR_PAIR)
    for (channel = 0; channel < channels; channel++) {
        for (column = 0; column < layer->kernel_x; column++) {
            for (row = 0; row < layer->kernel_y; row++) {
                const float *from = planes + layer->kernel_rows[row] * step + layer->kernel_columns[column];
                const lanes left = load_lanes(from), right = load_lanes(from + next);
                EACH_OUTPUT(ADD_PAIR)
                weights += 16;
            }
        }
        planes += plane_rows(layer) * step;
    }
    EACH_OUTPUT(KEEP_PAIR)
}

/* One output for one vector: what is left over. */
static void multiply_one(const struct convolution *layer, const unsigned char *weights, size_t outputs, size_t channels,
                         const float *planes, float *to)
{
    const size_t step = layer->row_floats;
    lanes sum = all_lanes(0.0f);
    size_t channel, row, column;
    for (channel = 0; channel < channels; channel++) {
        for (column = 0; column < layer->kernel_x; column++) {
            for (row = 0; row < layer->kernel_y; row++) {
                const lanes weight = all_lanes(load_float(weights));
                const float *from = planes + layer->kernel_rows[row] * step + layer->kernel_columns[column];
                sum = add_product(sum, load_lanes(from), weight);
                weights += 4 * outputs;
            }
        }
        planes += plane_rows(layer) * step;
    }
    store_lanes(to, sum);
}

static void finish_tile(const struct convolution *layer, const struct block *block, size_t output, const float *fresh,
                        float *sums, int at_border, struct target target)
{
    const size_t vectors = layer->tile_rows * ROW_PARTS, width = layer->out_width;
    const struct lane_limits limits = limits_of(&layer->finish);
    const lanes scale = all_lanes(layer->finish.affine[output][0]), bias = all_lanes(layer->finish.affine[output][1]);
    size_t vector;
    for (vector = 0; vector < vectors; vector++) {
        const size_t at = vector * MODEL_LANES;
        lanes sum = load_lanes(fresh + at);
        if (!block->first) {
            sum += load_lanes(sums + at);
        }
        if (block->last && width >= CELLS) {
            const size_t row = vector / ROW_PARTS, column = vector % ROW_PARTS * MODEL_LANES;
            sum = add_product(bias, sum, scale);
            if (target.residual) {
                sum += load_lanes(target.residual + row * layer->residual_row + column);
            }
            store_lanes(target.out + row * layer->out_row + column, limited_lanes(limits, sum));
            if (at_border) {
                store_lanes(target.out + row * layer->out_row + column + CELLS, all_lanes(0.0f));
            }
        } else {
            store_lanes(sums + at, sum);
        }
    }
    if (block->last && width < CELLS) {
        finish_narrow(layer, output, sums, target);
    }
}

static size_t plane_at(const struct convolution *layer, size_t vector)
{
    return vector / ROW_PARTS * layer->row_floats + vector % ROW_PARTS * MODEL_LANES;
}

/* The sums of up to four outputs of one group over one block, side by side in `fresh`. */
static void multiply_tile(const struct convolution *layer, const unsigned char *weights, size_t outputs,
                          size_t channels, const float *planes, float *fresh)
{
    const size_t vectors = layer->tile_rows * ROW_PARTS, size = layer->tile_rows * CELLS;
    size_t vector = 0, output;
    for (; outputs == 4 && vector + 2 <= vectors; vector += 2) {
        const size_t at = plane_at(layer, vector), next = plane_at(layer, vector + 1) - at;
        multiply_four(layer, weights, channels, planes + at, next, size, fresh + vector * MODEL_LANES);
    }
    for (; vector < vectors; vector++) {
        for (output = 0; output < outputs; output++) {
            multiply_one(layer, weights + 4 * output, outputs, channels, planes + plane_at(layer, vector),
                         fresh + output * size + vector * MODEL_LANES);
        }
    }
}

/* Work space: the planes of a block, the fresh sums of four outputs, then the sums of all outputs. */
static void float_convolution(const struct convolution *layer, const struct literal *weights, size_t outputs_at_once,
                              size_t planes_size, const float *in, const float *residual, float *out, float *work)
{
    const size_t size = layer->tile_rows * CELLS;
    float *const fresh = work + planes_size, *const sums = fresh + 4 * size;
    struct tile tile = {0, 0};
    do {
        struct chunks chunks = chunks_of(weights);
        struct block block = first_block(layer);
        do {
            const size_t channels = smaller_size(block.channels, layer->group_inputs);
            size_t group, begin, output;
            lay_planes(layer, &block, tile, in, work);
            for (group = 0; group < block.outputs / layer->group_outputs; group++) {
                const float *planes = work + group * channels * plane_rows(layer) * layer->row_floats;
                for (begin = 0; begin < layer->group_outputs; begin += outputs_at_once) {
                    const size_t outputs = smaller_size(outputs_at_once, layer->group_outputs - begin);
                    multiply_tile(layer, next_chunk(&chunks), outputs, channels, planes, fresh);
                    for (output = 0; output < outputs; output++) {
                        const size_t index = block.output + group * layer->group_outputs + begin + output;
                        finish_tile(layer, &block, index, fresh + output * size, sums + index * size,
                                    ends_at_border(layer, tile), target_of(layer, index, tile, out, residual));
                    }
                }
            }
        } while (next_block(layer, &block));
    } while (next_tile(layer, &tile));
}
