/* One variant of the network under unique names, which reports when a step is done. */
#include "calibrate.h"

#define MODEL_STEP_DONE(place) \
    do { \
        if (calibrate_stamps) { \
            calibrate_step(place); \
        } \
    } while (0)

#define model_class_names variant_@NUMBER@_class_names
#define model_init variant_@NUMBER@_init
#define model_predict_with variant_@NUMBER@_predict_with
#define model_predict variant_@NUMBER@_predict

@MODEL@
