#pragma once
#include <stddef.h>
#include "literals.h"

/* Sums are taken a block of inputs at a time, and in four parts within a block: short sums lose less to rounding. */
struct linear {
    size_t inputs, outputs;
    size_t block; /* inputs at a time */
    struct literal weights; /* a chunk: one output's weights for one block; an output's blocks follow each other */
    struct literal affine;  /* a chunk: scale and bias of one output */
};

/* The sum of one chunk's weights times the inputs. */
typedef float sum_chunk(const unsigned char *chunk, const float *in, size_t count);

static void multiply_vector(const struct linear *layer, const float *in, float *out, sum_chunk *sum)
{
    struct chunks weights = chunks_of(&layer->weights), affine = chunks_of(&layer->affine);
    size_t output, begin;
    for (output = 0; output < layer->outputs; output++) {
        const unsigned char *numbers = next_chunk(&affine);
        float total = 0.0f;
        for (begin = 0; begin < layer->inputs; begin += layer->block) {
            const size_t left = layer->inputs - begin;
            total += sum(next_chunk(&weights), in + begin, left < layer->block ? left : layer->block);
        }
        out[output] = total * load_float(numbers) + load_float(numbers + 4);
    }
}
