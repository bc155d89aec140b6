#include "literals.h"
#include "requantize.h"

/* A fully connected layer with weights from -127 to 127. */
struct integer_linear {
    size_t inputs, outputs;
    size_t block;           /* inputs at a time */
    struct literal weights; /* a chunk: one output's weights for one block; an output's blocks follow each other */
};

static void integer_linear(const struct integer_linear *layer, const int8_t *in, int32_t *sums)
{
    struct chunks chunks = chunks_of(&layer->weights);
    size_t output, begin, place;
    for (output = 0; output < layer->outputs; output++) {
        int32_t total = 0;
        for (begin = 0; begin < layer->inputs; begin += layer->block) {
            const size_t left = layer->inputs - begin, count = left < layer->block ? left : layer->block;
            const int8_t *const weights = (const int8_t *)next_chunk(&chunks), *const from = in + begin;
            for (place = 0; place < count; place++) {
                total += from[place] * weights[place];
            }
        }
        store_sum(sums + output, total);
    }
}
