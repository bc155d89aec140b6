#include "requantize.h"
#include "ternary_linear.h"

/* The lists are those of ternary_linear_lists.c. */

/* The sum of the listed inputs, in four parts that do not wait for each other. */
static int32_t sum_listed_integers(const int8_t *in, const uint16_t *list, size_t count)
{
    int32_t a = 0, b = 0, c = 0, d = 0;
    for (; count >= 4; count -= 4, list += 4) {
        a += in[list[0]];
        b += in[list[1]];
        c += in[list[2]];
        d += in[list[3]];
    }
    for (; count > 0; count--) {
        a += in[*list++];
    }
    return (a + b) + (c + d);
}

static void integer_linear_lists(const struct ternary_linear *layer, const uint16_t *list, const int8_t *in,
                                 int32_t *sums)
{
    size_t index, begin;
    for (index = 0; index < layer->outputs; index++) {
        int32_t total = 0;
        for (begin = 0; begin < layer->inputs; begin += layer->block) {
            const size_t plus = list[0], minus = list[1];
            total += sum_listed_integers(in + begin, list + 2, plus);
            total -= sum_listed_integers(in + begin, list + 2 + plus, minus);
            list += 2 + plus + minus;
        }
        store_sum(sums + index, total);
    }
}
