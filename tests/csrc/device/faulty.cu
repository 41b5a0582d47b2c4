/*
 * faulty.cu - a kernel that is right, and what the emulation has to find in wrong ones.
 */
#include "device/cuda/kernel.h"

enum {
    RIGHT,
    NO_BARRIER,        /* the result depends on which thread goes first */
    DIVERGENT_BARRIER, /* half of the threads go around it */
    EARLY_RETURN,      /* and its lane is read */
    WRONG_MASK,        /* names more lanes than come */
    NOT_IN_MASK,       /* a lane calls with a mask of others */
    UNWRITTEN,         /* shared memory that nobody wrote */
    BEHIND_THE_END,    /* of the device's memory */
    BEHIND_SHARED,     /* of shared memory */
    NOT_ALIGNED,       /* four elements from the second on */
};

enum { N_THREADS = 128 };

/* y[0] the sum of x, y[1] how many lanes have one above 0, y[2] how many threads. */
PTAC_KERNEL(faulty, N_THREADS, ptac_input<float> x, ptac_output<float> y, int n,
            int fault)
{
    PTAC_SHARED(float, partial, N_THREADS);
    PTAC_SHARED(int, n_arrived, 1);
    const int t = (int)threadIdx.x;

    partial[t] = t < n ? x[t] : 0.0f;
    if (t == 0 && fault != UNWRITTEN)
        n_arrived[0] = 0;
    if (fault == BEHIND_SHARED)
        partial[t + N_THREADS] = 0.0f;
    if (fault != NO_BARRIER)
        __syncthreads();
    for (int half = N_THREADS / 2; half >= PTAC_WARP; half /= 2) {
        if (t < half)
            partial[t] += partial[t + half];
        if (fault != DIVERGENT_BARRIER || t < half)
            __syncthreads();
    }
    if (fault == EARLY_RETURN && t == 5)
        return;
    if (t < PTAC_WARP) {
        const ptac_u32 all = 0xffffffffu;
        const float sum = ptac_warp_sum(partial[t]);
        const ptac_u32 votes = __ballot_sync(all, partial[t] > 0.0f);

        if (fault == NOT_IN_MASK)
            __syncwarp(1u);
        if (fault == WRONG_MASK && t < 16)
            __syncwarp(all);
        if (t == 0) {
            y.put(0, sum);
            y.put(1, (float)__popc(votes));
        }
    }
    atomicAdd(n_arrived, 1);
    __syncthreads();
    if (t == 0)
        y.put(2, (float)n_arrived[0]);
    if (fault == BEHIND_THE_END)
        y.put(64 + t, 1.0f);
    if (fault == NOT_ALIGNED)
        y.put<4>(1, {});
}
