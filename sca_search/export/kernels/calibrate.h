/* What the program that times a network knows of each variant of it, and what a variant tells the program. */
#ifndef CALIBRATE_H
#define CALIBRATE_H

#include <stddef.h>

struct variant {
    size_t tables;  /* bytes */
    size_t scratch; /* floats */
    void (*init)(void *tables);
    void (*predict)(const void *tables, float *scratch, const float *in, float *out);
};

/* The step at this place of a prediction is done. */
void calibrate_step(size_t place);

#endif
