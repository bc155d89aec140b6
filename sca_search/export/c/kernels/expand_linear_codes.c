#include "literals.h"
#include "linear_codes.h"
#include "trits.h"

/* Makes the codes of ternary_linear_codes.c. A chunk of trits: one output's weights for one block of inputs. */

static void expand_linear_codes(const struct ternary_linear *layer, const struct literal *weights, uint16_t *to)
{
    const size_t groups = (layer->outputs + GROUP - 1) / GROUP;
    struct chunks trits = chunks_of(weights);
    size_t output, begin, place;
    for (place = 0; place < groups * layer->inputs * CODED; place++) {
        to[place] = 0;
    }
    for (output = 0; output < layer->outputs; output++) {
        const size_t number = output % CODED, shift = 2 * (output % GROUP / CODED);
        uint16_t *codes = to + output / GROUP * layer->inputs * CODED + number;
        for (begin = 0; begin < layer->inputs; begin += layer->block) {
            const size_t left = layer->inputs - begin, count = left < layer->block ? left : layer->block;
            const unsigned char *const chunk = next_chunk(&trits);
            for (place = 0; place < count; place++) {
                codes[(begin + place) * CODED] |= (uint16_t)(trit_at(chunk, place) << shift);
            }
        }
    }
}
