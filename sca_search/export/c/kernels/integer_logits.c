#include <stddef.h>
#include <stdint.h>

static void integer_logits(const int8_t *in, float unit, float *out, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        out[i] = (float)in[i] * unit;
    }
}
