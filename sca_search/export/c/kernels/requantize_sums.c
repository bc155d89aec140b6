#include "requantize.h"

/* The sums of a linear layer; `places` says which outputs they are, if not all. */
static void requantize_sums(const struct requantize *to, int32_t lowest, int32_t highest, const uint16_t *places,
                            const int32_t *sums, size_t count, int8_t *out)
{
    const struct integer_limits limits = {lowest, highest};
    size_t index;
    for (index = 0; index < count; index++) {
        const size_t output = places ? places[index] : index;
        out[output] = requantized(to + output, limits, load_sum(sums + index), 0);
    }
}
