#include "literals.h"
#include "ternary_linear.h"
#include "trits.h"

/* Makes the lists of ternary_linear_lists.c. A chunk of trits: one output's weights for one block of inputs. */

static uint16_t *expand_inputs(const unsigned char *trits, size_t count, unsigned trit, uint16_t *to)
{
    size_t place;
    for (place = 0; place < count; place++) {
        if (trit_at(trits, place) == trit) {
            *to++ = (uint16_t)place;
        }
    }
    return to;
}

static void expand_linear_lists(const struct ternary_linear *layer, const struct literal *weights, uint16_t *to)
{
    struct chunks trits = chunks_of(weights);
    size_t output, begin;
    for (output = 0; output < layer->outputs; output++) {
        for (begin = 0; begin < layer->inputs; begin += layer->block) {
            const size_t left = layer->inputs - begin, count = left < layer->block ? left : layer->block;
            const unsigned char *const chunk = next_chunk(&trits);
            uint16_t *const plus = expand_inputs(chunk, count, 1, to + 2);
            uint16_t *const minus = expand_inputs(chunk, count, 2, plus);
            to[0] = (uint16_t)(plus - (to + 2));
            to[1] = (uint16_t)(minus - plus);
            to = minus;
        }
    }
}
