#include "literals.h"
#include "tiles.h"
#include "trits.h"

/* Makes the lists of ternary_convolution.c. */

/* The digits of a combination as a number; see tiles.h. */
static int combined_trits(const struct convolution *layer, const unsigned char *trits, size_t place, size_t columns,
                          size_t kernel_row)
{
    static const int digits[4] = {0, 1, -1, 0};
    int value = 0;
    while (columns-- > 0) {
        const size_t channel = (place + columns) / layer->kernel_x, column = (place + columns) % layer->kernel_x;
        const size_t index = (channel * layer->kernel_y + kernel_row) * layer->kernel_x + column;
        value = 3 * value + digits[trit_at(trits, index)];
    }
    return value;
}

/* The offsets with one sign of this many combined weights of each row of the kernel, or of a single one; `place`
 * counts columns of all channels, and `to_rows` is where those of the first row of the kernel begin. */
static uint16_t *expand_unit(const struct convolution *layer, const unsigned char *trits, size_t place, size_t columns,
                             size_t to_rows, int sign, uint16_t *to)
{
    size_t row;
    for (row = 0; row < layer->kernel_y; row++) {
        const int value = sign * combined_trits(layer, trits, place, columns, row);
        if (value > 0) {
            *to++ = (uint16_t)(to_rows + layer->kernel_rows[row] * layer->row_floats + (size_t)(value - 1) * CELLS);
        }
    }
    return to;
}

/* All offsets with one sign of an output's weights for this many channels, starting at the block's `first`. */
static uint16_t *expand_sign(const struct convolution *layer, const unsigned char *trits, size_t first, size_t channels,
                             int sign, uint16_t *to)
{
    const size_t area = plane_rows(layer) * layer->row_floats, unit = layer->combined ? UNIT : 1;
    const size_t columns = layer->kernel_x;
    size_t channel, column;
    if (columns == 1) { /* channels are combined */
        for (channel = 0; channel < channels; channel += unit) {
            const size_t some = smaller_size(unit, channels - channel);
            to = expand_unit(layer, trits, channel, some, (first + channel / unit) * area, sign, to);
        }
        return to;
    }
    for (channel = 0; channel < channels; channel++) {
        for (column = 0; column < columns; column += unit) {
            const size_t some = smaller_size(unit, columns - column);
            const size_t begin = (first + channel) * area + layer->kernel_columns[column];
            to = expand_unit(layer, trits, channel * columns + column, some, begin, sign, to);
        }
    }
    return to;
}

static uint16_t *expand_output(const struct convolution *layer, const unsigned char *trits, const struct block *block,
                               size_t output, uint16_t *to)
{
    const size_t channels = smaller_size(block->channels, layer->group_inputs);
    const size_t first = layer->block_groups > 1 ? output / layer->group_outputs * layer->group_inputs : 0;
    uint16_t *const plus = expand_sign(layer, trits, first, channels, 1, to + 3);
    uint16_t *const minus = expand_sign(layer, trits, first, channels, -1, plus);
    to[0] = (uint16_t)(block->output + output);
    to[1] = (uint16_t)(plus - (to + 3));
    to[2] = (uint16_t)(minus - plus);
    return minus;
}

/* A chunk of trits: one output's weights for one block's channels of its group. */
static void expand_convolution(const struct convolution *layer, const struct literal *weights, uint16_t *to)
{
    struct chunks trits = chunks_of(weights);
    struct block block = first_block(layer);
    do {
        uint16_t *const count = to++;
        size_t output;
        *count = 0;
        for (output = 0; output < block.outputs; output++) {
            uint16_t *const end = expand_output(layer, next_chunk(&trits), &block, output, to);
            if (end > to + 3 || block.first || block.last) {
                to = end;
                ++*count;
            }
        }
    } while (next_block(layer, &block));
}
