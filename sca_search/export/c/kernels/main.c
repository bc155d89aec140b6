/* Reads images from the standard input until it ends and writes their logits to the standard output, both as float32 in
 * the machine's byte order: ./model < images.f32 > logits.f32 */
#include <stdio.h>
#include "model.h"

int main(void)
{
    static float image[MODEL_INPUTS], logits[MODEL_OUTPUTS];
    size_t got;
    while ((got = fread(image, sizeof *image, MODEL_INPUTS, stdin)) == MODEL_INPUTS) {
        model_predict(image, logits);
        if (fwrite(logits, sizeof *logits, MODEL_OUTPUTS, stdout) != MODEL_OUTPUTS) {
            fputs("the logits cannot be written\n", stderr);
            return 1;
        }
    }
    if (got != 0) {
        fprintf(stderr, "the last image has %lu of %lu values\n", (unsigned long)got, (unsigned long)MODEL_INPUTS);
        return 1;
    }
    return fflush(stdout) == 0 ? 0 : 1;
}
