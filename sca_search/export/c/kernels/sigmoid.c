#include <math.h>
#include <stddef.h>

static void sigmoid(const float *in, float *out, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        out[i] = 1.0f / (1.0f + expf(-in[i]));
    }
}
