/*
 * philox_state.h - torch's PhiloxCudaState: where seed and offset of a call lie.
 *
 * While a CUDA graph is captured, the generator's seed and offset lie in the device's
 * memory, which each replay fills anew; the offset inside the graph is added to that.
 * Offsets are multiples of four (CUDAGeneratorImpl.cpp says why).
 */
#ifndef PTAC_OPS_RANDOM_PHILOX_STATE_H
#define PTAC_OPS_RANDOM_PHILOX_STATE_H

typedef union ptac_philox_word {
    unsigned long long value;
    const unsigned long long *address;
} ptac_philox_word;

typedef struct ptac_philox_state {
    ptac_philox_word seed, offset; /* by address where the state is captured */
    unsigned long long offset_in_graph;
    int is_captured;
} ptac_philox_state;

#endif
