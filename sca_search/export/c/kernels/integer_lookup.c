#include <stddef.h>
#include <stdint.h>

/* An activation: its value for each input from -128 on. */
static void integer_lookup(const int8_t *table, const int8_t *in, int8_t *out, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        out[i] = table[in[i] + 128];
    }
}
