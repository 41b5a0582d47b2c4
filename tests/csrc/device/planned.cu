/*
 * planned.cu - kernels that a test of plans passes and finds fault with.
 */
#include "device/cuda/kernel.h"

PTAC_KERNEL(planned_packs, 256, ptac_input<float> x, ptac_output<float> y)
{
    const ptac_i64 i = 4 * ptac_thread();

    y.put<4>(i, x.pack<4>(i));
}

PTAC_KERNEL(planned_single, 256, ptac_input<float> x, ptac_output<float> y)
{
    y.put(ptac_thread(), x[ptac_thread()]);
}

/* An array that is indexed by a number from memory lies in memory too. */
PTAC_KERNEL(planned_local, 256, ptac_input<int> places, ptac_output<float> y)
{
    float values[64];

    for (int i = 0; i < 64; i++)
        values[i] = (float)places[i];
    for (int i = 0; i < places[0]; i++)
        values[places[i] & 63] += values[places[i + 1] & 63];
    y.put(ptac_thread(), values[places[ptac_thread()] & 63]);
}
