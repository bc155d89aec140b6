#include "requantize.h"

/* Logits as multiples of a power of two, with products of 64 bits: floats represent integers up to 2^24 exactly. */
struct logit {
    int64_t factor, bias;
};

static void requantize_logits(const struct logit *to, int shift, int32_t lowest, int32_t highest, float unit,
                              const int32_t *sums, size_t count, float *out)
{
    size_t index;
    for (index = 0; index < count; index++) {
        const int64_t value = (load_sum(sums + index) * to[index].factor + to[index].bias) >> shift;
        const int32_t near = value < lowest ? lowest : value > highest ? highest : (int32_t)value;
        out[index] = (float)near * unit;
    }
}
