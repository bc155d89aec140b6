#include "literals.h"

static void normalise(const struct literal *statistics, const float *in, float *out, size_t channels, size_t size)
{
    struct chunks numbers = chunks_of(statistics);
    size_t channel, cell;
    for (channel = 0; channel < channels; channel++) {
        const unsigned char *chunk = next_chunk(&numbers);
        const float mean = load_float(chunk), deviation = load_float(chunk + 4);
        for (cell = 0; cell < size; cell++) {
            *out++ = (*in++ - mean) / deviation;
        }
    }
}
