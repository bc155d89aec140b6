#include "requantize.h"

static void integer_add(const struct requantize *to, const int8_t *left, const int8_t *right, int8_t *out, size_t count)
{
    const struct integer_limits limits = {-127, 127};
    size_t i;
    for (i = 0; i < count; i++) {
        out[i] = requantized(to, limits, left[i], right[i]);
    }
}
