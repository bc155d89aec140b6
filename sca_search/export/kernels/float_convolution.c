#include "convolution.h"

static void add_multiple(const float *restrict from, float weight, size_t run, float *restrict sums)
{
    size_t cell;
    for (cell = 0; cell < run; cell++) {
        sums[cell] += weight * from[cell];
    }
}

static void add_floats(const struct convolution *layer, const unsigned char *chunk, const float *planes,
                       size_t channels, float *sums)
{
    const size_t run = run_length(layer), size = channel_size(layer);
    size_t channel, tap;
    for (channel = 0; channel < channels; channel++) {
        for (tap = 0; tap < layer->taps; tap++) {
            add_multiple(planes + layer->tap_offsets[tap], load_float(chunk), run, sums);
            chunk += 4;
        }
        planes += size;
    }
}

static void float_convolution(const struct convolution *layer, const float *in, float *out, float *work)
{
    convolve(layer, in, out, work, add_floats);
}
