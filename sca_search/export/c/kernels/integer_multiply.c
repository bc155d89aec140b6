#include "requantize.h"

/* A gate has a value for each `size` cells. */
static void integer_multiply(const struct requantize *to, const int8_t *value, const int8_t *gate, int8_t *out,
                             size_t count, size_t size)
{
    const struct integer_limits limits = {-127, 127};
    size_t i;
    for (i = 0; i < count; i++) {
        out[i] = requantized(to, limits, value[i] * gate[i / size], 0);
    }
}
