#include "requantize.h"

/* Channels of this many cells, each with its own numbers. */
static void integer_rescale(const struct requantize *to, const int8_t *in, int8_t *out, size_t channels, size_t size)
{
    const struct integer_limits limits = {-127, 127};
    size_t channel, cell;
    for (channel = 0; channel < channels; channel++) {
        for (cell = 0; cell < size; cell++) {
            *out++ = requantized(to + channel, limits, *in++, 0);
        }
    }
}
