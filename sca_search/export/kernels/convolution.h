#pragma once
#include <stddef.h>
#include "literals.h"

/*
 * A convolution takes its input a block of channels at a time. Each channel of the block is first laid out with its
 * border of zeros, and split by stride into phases: the cells (y, x) with equal y mod stride and x mod stride are one
 * plane. Then every tap of the kernel sees its cells as one contiguous run, from an offset that is known beforehand:
 * the whole map of an output channel is summed in one loop, and cells beyond a row's end are computed and not used.
 * Blocks also keep float sums short: each is summed by itself and then added to the others.
 */
struct convolution {
    size_t in_height, in_width, out_height, out_width;
    size_t groups, group_inputs, group_outputs;
    size_t block; /* input channels at a time */
    size_t stride_y, stride_x, pad_top, pad_left;
    size_t phases_y, phases_x, plane_height, plane_width;
    int ready;   /* the input is its own only plane */
    size_t taps; /* of a kernel */
    const size_t *tap_offsets;
    struct literal weights; /* a chunk: one output's weights for one block, in the order of these loops */
    struct literal affine;  /* a chunk: scale and bias of one output */
};

/* Adds one chunk's weights times the planes to the sums. */
typedef void add_chunk(const struct convolution *layer, const unsigned char *chunk, const float *planes,
                       size_t channels, float *sums);

/* The run of cells from an output map's first to its last, with rows as long as a plane's. */
static size_t run_length(const struct convolution *layer)
{
    return (layer->out_height - 1) * layer->plane_width + layer->out_width;
}

/* All phases of one channel. */
static size_t channel_size(const struct convolution *layer)
{
    return layer->phases_y * layer->phases_x * layer->plane_height * layer->plane_width;
}

static void clear(float *to, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        to[i] = 0.0f;
    }
}

static void lay_row(const struct convolution *layer, const float *row, size_t phase, float *to)
{
    size_t column;
    for (column = 0; column < layer->plane_width; column++) {
        const size_t x = column * layer->stride_x + phase; /* counted from the border's edge */
        const int inside = x >= layer->pad_left && x - layer->pad_left < layer->in_width;
        to[column] = inside ? row[x - layer->pad_left] : 0.0f;
    }
}

static void lay_channel(const struct convolution *layer, const float *map, float *to)
{
    size_t phase_y, phase_x, row;
    for (phase_y = 0; phase_y < layer->phases_y; phase_y++) {
        for (phase_x = 0; phase_x < layer->phases_x; phase_x++) {
            for (row = 0; row < layer->plane_height; row++) {
                const size_t y = row * layer->stride_y + phase_y;
                if (y >= layer->pad_top && y - layer->pad_top < layer->in_height) {
                    lay_row(layer, map + (y - layer->pad_top) * layer->in_width, phase_x, to);
                } else {
                    clear(to, layer->plane_width);
                }
                to += layer->plane_width;
            }
        }
    }
}

static const float *lay_block(const struct convolution *layer, const float *maps, size_t channels, float *planes)
{
    size_t channel;
    if (layer->ready) {
        return maps;
    }
    for (channel = 0; channel < channels; channel++) {
        lay_channel(layer, maps + channel * layer->in_height * layer->in_width, planes + channel * channel_size(layer));
    }
    return planes;
}

static void take_sums(const struct convolution *layer, const float *sums, int first, float *map)
{
    size_t row, column;
    for (row = 0; row < layer->out_height; row++) {
        for (column = 0; column < layer->out_width; column++) {
            map[column] = first ? sums[column] : map[column] + sums[column];
        }
        map += layer->out_width;
        sums += layer->plane_width;
    }
}

static void scale_maps(const struct convolution *layer, float *out)
{
    const size_t size = layer->out_height * layer->out_width;
    struct chunks affine = chunks_of(&layer->affine);
    size_t output, cell;
    for (output = 0; output < layer->groups * layer->group_outputs; output++) {
        const unsigned char *chunk = next_chunk(&affine);
        const float scale = load_float(chunk), bias = load_float(chunk + 4);
        for (cell = 0; cell < size; cell++) {
            out[cell] = out[cell] * scale + bias;
        }
        out += size;
    }
}

/* Work space: one run of sums, then a block of laid out channels. */
static void convolve(const struct convolution *layer, const float *in, float *out, float *work, add_chunk *add)
{
    const size_t in_size = layer->in_height * layer->in_width, out_size = layer->out_height * layer->out_width;
    const size_t run = run_length(layer);
    struct chunks weights = chunks_of(&layer->weights);
    size_t group, begin, output;
    for (group = 0; group < layer->groups; group++) {
        const float *group_in = in + group * layer->group_inputs * in_size;
        float *group_out = out + group * layer->group_outputs * out_size;
        for (begin = 0; begin < layer->group_inputs; begin += layer->block) {
            const size_t left = layer->group_inputs - begin, channels = left < layer->block ? left : layer->block;
            const float *planes = lay_block(layer, group_in + begin * in_size, channels, work + run);
            for (output = 0; output < layer->group_outputs; output++) {
                clear(work, run);
                add(layer, next_chunk(&weights), planes, channels, work);
                take_sums(layer, work, begin == 0, group_out + output * out_size);
            }
        }
    }
    scale_maps(layer, out);
}
