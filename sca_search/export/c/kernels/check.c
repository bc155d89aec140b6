/* Runs the model on its test vectors: no output may differ from the expected one by more than 1e-5 of the largest. */
#include <math.h>
#include <stdio.h>
#include "model.h"
#include "float_literals.h"
#include "vectors.h"

static float image[MODEL_INPUTS], logits[MODEL_OUTPUTS], expected[MODEL_OUTPUTS];

static void load_floats(struct chunks *chunks, float *to, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        to[i] = load_float(next_chunk(chunks));
    }
}

static double relative_difference(void)
{
    double difference = 0.0, largest = 0.0;
    size_t i;
    for (i = 0; i < MODEL_OUTPUTS; i++) {
        const double here = fabs((double)logits[i] - expected[i]);
        if (!(here <= difference)) { /* also if it is NaN */
            difference = here;
        }
        largest = fabs(expected[i]) > largest ? fabs(expected[i]) : largest;
    }
    return largest > 0.0 ? difference / largest : difference;
}

int main(void)
{
    struct chunks images = chunks_of(&check_images), answers = chunks_of(&check_logits);
    int index, failed = 0;
    for (index = 0; index < CHECK_VECTORS; index++) {
        double difference;
        load_floats(&images, image, MODEL_INPUTS);
        load_floats(&answers, expected, MODEL_OUTPUTS);
        model_predict(image, logits);
        difference = relative_difference();
        if (!(difference <= 1e-5)) {
            printf("vector %d differs by %g of its largest logit\n", index, difference);
            failed++;
        }
    }
    printf("%d of %d test vectors agree\n", CHECK_VECTORS - failed, CHECK_VECTORS);
    return failed == 0 ? 0 : 1;
}
