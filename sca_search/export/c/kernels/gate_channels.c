#include <stddef.h>

static void gate_channels(const float *in, const float *gates, float *out, size_t channels, size_t size)
{
    size_t channel, cell;
    for (channel = 0; channel < channels; channel++) {
        for (cell = 0; cell < size; cell++) {
            *out++ = *in++ * gates[channel];
        }
    }
}
