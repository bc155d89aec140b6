#include <stddef.h>

/* By mean and deviation of each channel. */
static void normalise(const float (*statistics)[2], const float *in, float *out, size_t channels, size_t size)
{
    size_t channel, cell;
    for (channel = 0; channel < channels; channel++) {
        const float mean = statistics[channel][0], deviation = statistics[channel][1];
        for (cell = 0; cell < size; cell++) {
            *out++ = (*in++ - mean) / deviation;
        }
    }
}
