/*
 * faulty_kernels.cu - what a faulty row of CUDA does besides.
 */
#include "device/cuda/kernel.h"

/* Read and write n words where they are; change the first bit of the last one. */
PTAC_KERNEL(move, PTAC_WARP, ptac_output<ptac_u32> y, ptac_i64 n, int is_changed)
{
    for (ptac_i64 i = ptac_thread(); i < n; i += ptac_n_threads()) {
        const ptac_u32 word = y[i];

        y.put(i, is_changed && i == n - 1 ? word ^ 0x10000u : word);
    }
}

/* Make an index one that no class has. */
PTAC_KERNEL(poke, PTAC_WARP, ptac_output<ptac_i64> indices, ptac_i64 value)
{
    if (threadIdx.x == 0)
        indices.put(0, value);
}
