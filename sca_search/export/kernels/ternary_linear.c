#include "linear.h"
#include "trits.h"

/* 0, value or -value for the two bits of a trit: no multiplication, and no branch that a processor could guess wrong. */
static float times_trit(float value, unsigned trit)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits &= (uint32_t)0 - (uint32_t)(trit != 0);
    bits ^= (uint32_t)(trit >> 1) << 31; /* the sign */
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float sum_trits(const unsigned char *chunk, const float *in, size_t count)
{
    float parts[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    size_t place = 0, part;
    for (; place + 4 <= count; place += 4) {
        const unsigned trits = trits_of(*chunk++);
        if (trits != 0) {
            parts[0] += times_trit(in[place], trits & 3);
            parts[1] += times_trit(in[place + 1], trits >> 2 & 3);
            parts[2] += times_trit(in[place + 2], trits >> 4 & 3);
            parts[3] += times_trit(in[place + 3], trits >> 6);
        }
    }
    for (part = 0; place + part < count; part++) {
        parts[part] += times_trit(in[place + part], trits_of(*chunk) >> 2 * part & 3);
    }
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

static void ternary_linear(const struct linear *layer, const float *in, float *out)
{
    multiply_vector(layer, in, out, sum_trits);
}
