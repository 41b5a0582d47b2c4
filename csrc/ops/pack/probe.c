/*
 * probe.c - a glance at a tensor, to see whether packing is worth a try.
 */
#include "ops/pack/pack.h"

enum {
    SAMPLE = 256,
};

static uint64_t element(const void *x, int64_t i, int width)
{
    return width == 2   ? ((const uint16_t *)x)[i]
           : width == 4 ? ((const uint32_t *)x)[i]
                        : ((const uint64_t *)x)[i];
}

ptac_pack_promise ptac_pack_probe(const void *x, int64_t n, int width)
{
    const int64_t step = n / SAMPLE | 1; /* odd, so as not to stay in one column */
    uint64_t first, second;
    int64_t zeros = 0, looked = 0, strange = 0;

    if (n == 0)
        return PTAC_PACK_NOTHING;
    first = second = element(x, 0, width);
    for (int64_t i = 0; i < n; i += step, looked++) {
        const uint64_t now = element(x, i, width);

        zeros += now == 0;
        if (now != first && second == first)
            second = now;
        strange += now != first && now != second;
    }
    if (strange == 0)
        return PTAC_PACK_TWO_VALUES;
    return width == 4 && zeros * 5 >= looked * 2 ? PTAC_PACK_ZEROS : PTAC_PACK_NOTHING;
}
