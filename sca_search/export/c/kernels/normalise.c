#include "lanes.h"

struct image {
    size_t channels, height, width;
    size_t out_row, out_step; /* from row to row, and from channel to channel, in floats */
    int bordered;             /* the outputs' maps, see clear_border.c */
};

/* By mean and deviation of each channel. */
static void normalise(const struct image *image, const float (*statistics)[2], const float *in, float *out)
{
    size_t channel, row, column;
    for (channel = 0; channel < image->channels; channel++) {
        const float mean = statistics[channel][0], deviation = statistics[channel][1];
        for (row = 0; row < image->height; row++) {
            float *const to = out + channel * image->out_step + row * image->out_row;
            if (image->bordered) {
                clear_behind(to + image->width);
            }
            for (column = 0; column < image->width; column++) {
                to[column] = (*in++ - mean) / deviation;
            }
        }
    }
}
