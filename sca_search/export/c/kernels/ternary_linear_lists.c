#include "ternary_linear.h"

/*
 * For each output and block of inputs: how many inputs are added, how many are subtracted, and those inputs, counted
 * from the block's first. Blocks limit counts to two bytes and keep sums short, which reduces rounding errors.
 */
/* The sum of the listed inputs, in eight parts that do not wait for each other. */
static float sum_listed(const float *in, const uint16_t *list, size_t count)
{
    float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f, e = 0.0f, f = 0.0f, g = 0.0f, h = 0.0f;
    for (; count >= 8; count -= 8, list += 8) {
        a += in[list[0]];
        b += in[list[1]];
        c += in[list[2]];
        d += in[list[3]];
        e += in[list[4]];
        f += in[list[5]];
        g += in[list[6]];
        h += in[list[7]];
    }
    for (; count > 0; count--) {
        a += in[*list++];
    }
    return ((a + b) + (c + d)) + ((e + f) + (g + h));
}

static void ternary_linear_lists(const struct ternary_linear *layer, const uint16_t *list, const float *in, float *out)
{
    size_t index, begin;
    for (index = 0; index < layer->outputs; index++) {
        const size_t output = layer->outputs_read ? layer->outputs_read[index] : index;
        float total = 0.0f;
        for (begin = 0; begin < layer->inputs; begin += layer->block) {
            const size_t plus = list[0], minus = list[1];
            total += sum_listed(in + begin, list + 2, plus) - sum_listed(in + begin, list + 2 + plus, minus);
            list += 2 + plus + minus;
        }
        out[output] = finished(&layer->finish, output, total);
    }
}
