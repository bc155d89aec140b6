/* For programs that load the model as a shared library, without its macros. */
#include <stddef.h>
#include "model.h"

const size_t library_inputs = MODEL_INPUTS;
const size_t library_outputs = MODEL_OUTPUTS;
const size_t library_tables = MODEL_TABLES;   /* bytes */
const size_t library_scratch = MODEL_SCRATCH; /* floats */

/* The logits of this many images, one after the other. */
void library_predict(const void *tables, float *scratch, const float *in, float *out, size_t count)
{
    size_t image;
    for (image = 0; image < count; image++) {
        model_predict_with(tables, scratch, in + image * MODEL_INPUTS, out + image * MODEL_OUTPUTS);
    }
}

/* Once, before anything is predicted. */
void library_init(void *tables)
{
    model_init(tables);
}
