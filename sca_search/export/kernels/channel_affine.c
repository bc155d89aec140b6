#include "literals.h"

static void channel_affine(const struct literal *affine, const float *in, float *out, size_t channels, size_t size)
{
    struct chunks numbers = chunks_of(affine);
    size_t channel, cell;
    for (channel = 0; channel < channels; channel++) {
        const unsigned char *chunk = next_chunk(&numbers);
        const float scale = load_float(chunk), bias = load_float(chunk + 4);
        for (cell = 0; cell < size; cell++) {
            *out++ = *in++ * scale + bias;
        }
    }
}
