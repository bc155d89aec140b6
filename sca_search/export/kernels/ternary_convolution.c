#include "convolution.h"
#include "trits.h"

static void add_run(const float *restrict from, size_t run, float *restrict sums)
{
    size_t cell;
    for (cell = 0; cell < run; cell++) {
        sums[cell] += from[cell];
    }
}

static void subtract_run(const float *restrict from, size_t run, float *restrict sums)
{
    size_t cell;
    for (cell = 0; cell < run; cell++) {
        sums[cell] -= from[cell];
    }
}

static void add_trits(const struct convolution *layer, const unsigned char *chunk, const float *planes,
                      size_t channels, float *sums)
{
    const size_t run = run_length(layer), size = channel_size(layer);
    unsigned trits = 0;
    size_t channel, tap, place = 0;
    for (channel = 0; channel < channels; channel++) {
        for (tap = 0; tap < layer->taps; tap++) {
            trits = place % 4 == 0 ? trits_of(*chunk++) : trits >> 2;
            place++;
            if (trits & 1) {
                add_run(planes + layer->tap_offsets[tap], run, sums);
            } else if (trits & 2) {
                subtract_run(planes + layer->tap_offsets[tap], run, sums);
            }
        }
        planes += size;
    }
}

static void ternary_convolution(const struct convolution *layer, const float *in, float *out, float *work)
{
    convolve(layer, in, out, work, add_trits);
}
