/* Interface between a variant of the network and the program that times it. */
#ifndef CALIBRATE_H
#define CALIBRATE_H

#include <stddef.h>

/* Whether steps are timed. Read between the steps, at a cost far below a time stamp's; volatile, so that the compiler
 * does not make two functions of one. */
extern volatile int calibrate_stamps;

/* The step at this place of a prediction is done. */
void calibrate_step(size_t place);

#endif
