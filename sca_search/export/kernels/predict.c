void model_init(void *tables)
{
    uint16_t *const expanded = (uint16_t *)tables;
    (void)expanded;
    @EXPANSIONS@
}

void model_predict_with(const void *tables, float *scratch, const float *in, float *out)
{
    const uint16_t *const expanded = (const uint16_t *)tables;
    (void)expanded;
    @STATEMENTS@
}

#ifndef MODEL_NO_SCRATCH
#ifdef __GNUC__
#define MODEL_ALIGNED __attribute__((aligned(64)))
#else
#define MODEL_ALIGNED
#endif

void model_predict(const float *in, float *out)
{
    static MODEL_ALIGNED float scratch[MODEL_SCRATCH];
    static MODEL_ALIGNED uint16_t tables[MODEL_TABLES / 2 + 1];
    static int ready = 0;
    if (!ready) {
        model_init(tables);
        ready = 1;
    }
    model_predict_with(tables, scratch, in, out);
}
#endif
