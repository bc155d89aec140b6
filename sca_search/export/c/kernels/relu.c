#include <stddef.h>

static void relu(const float *in, float *out, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        out[i] = in[i] > 0.0f ? in[i] : 0.0f;
    }
}
