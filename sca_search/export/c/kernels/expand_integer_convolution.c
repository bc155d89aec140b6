#include "integer_tiles.h"
#include "literals.h"
#include "trits.h"

/* Makes the lists of integer_ternary_convolution.c. */

/* The digits of this many columns from `column` on as a number; see integer_tiles.h. */
static int unit_digits(const struct integer_convolution *layer, const unsigned char *trits, size_t column,
                       size_t columns, size_t kernel_row)
{
    static const int digits[4] = {0, 1, -1, 0};
    int value = 0;
    while (columns-- > 0) {
        const size_t at = column + columns, channel = at / layer->kernel_x;
        const size_t index = (channel * layer->kernel_y + kernel_row) * layer->kernel_x + at % layer->kernel_x;
        value = 3 * value + digits[trit_at(trits, index)];
    }
    return value;
}

/* All offsets with one sign of an output's weights for this many channels. */
static uint16_t *expand_offsets(const struct integer_convolution *layer, const unsigned char *trits, size_t channels,
                                int sign, uint16_t *to)
{
    const size_t all = channels * layer->kernel_x, run = layer->kernel_x == 1 ? all : layer->kernel_x;
    size_t begin, row, columns, plane = 0;
    for (begin = 0; begin < all; begin += columns) {
        columns = smaller_of(layer->unit, run - begin % run);
        for (row = 0; row < layer->kernel_y; row++) {
            const int value = sign * unit_digits(layer, trits, begin, columns, row);
            if (value > 0) {
                *to++ = (uint16_t)((plane + (size_t)value - 1) * layer->plane_cells + layer->kernel_rows[row]);
            }
        }
        plane += combined_planes(columns);
    }
    return to;
}

/* A chunk of trits: one output's weights for one block's channels. */
static void expand_integer_convolution(const struct integer_convolution *layer, const struct literal *weights,
                                       uint16_t *to)
{
    struct chunks trits = chunks_of(weights);
    struct channel_block block = first_channels(layer);
    do {
        uint16_t *const count = to++;
        size_t output;
        *count = 0;
        for (output = 0; output < layer->group_outputs; output++) {
            const unsigned char *const chunk = next_chunk(&trits);
            uint16_t *const plus = expand_offsets(layer, chunk, block.channels, 1, to + 3);
            uint16_t *const minus = expand_offsets(layer, chunk, block.channels, -1, plus);
            to[0] = (uint16_t)(block.output + output);
            to[1] = (uint16_t)(plus - (to + 3));
            to[2] = (uint16_t)(minus - plus);
            if (minus > to + 3 || block.first || block.last) {
                to = minus;
                ++*count;
            }
        }
    } while (next_channels(layer, &block));
}
