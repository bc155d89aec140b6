#include <stddef.h>
#include <stdint.h>

/* The image in integers, by mean and factor of each channel; a factor is twice what it should be, so that half a unit
 * is an integer, too, and nothing but a subtraction and a multiplication is rounded by the machine. */
static void quantize_image(const float (*statistics)[2], const float *in, int8_t *out, size_t channels, size_t size)
{
    size_t channel, cell;
    for (channel = 0; channel < channels; channel++) {
        const float mean = statistics[channel][0], factor = statistics[channel][1];
        for (cell = 0; cell < size; cell++) {
            const float doubled = (*in++ - mean) * factor;
            /* NaN becomes the lowest value. */
            const int halves = (int)(doubled > 254.0f ? 254.0f : doubled > -254.0f ? doubled : -254.0f);
            *out++ = (int8_t)(halves < 0 ? -((1 - halves) / 2) : (halves + 1) / 2);
        }
    }
}
