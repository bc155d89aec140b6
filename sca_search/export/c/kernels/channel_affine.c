#include <stddef.h>

static void channel_affine(const float (*affine)[2], const float *in, float *out, size_t channels, size_t size)
{
    size_t channel, cell;
    for (channel = 0; channel < channels; channel++) {
        const float scale = affine[channel][0], bias = affine[channel][1];
        for (cell = 0; cell < size; cell++) {
            *out++ = *in++ * scale + bias;
        }
    }
}
