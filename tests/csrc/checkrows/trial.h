/*
 * trial.h - one random call, run by every row that can, in every way.
 */
#ifndef PTAC_TESTS_TRIAL_H
#define PTAC_TESTS_TRIAL_H

#include "checkrows.h"

/* What kernels have done. */
typedef struct device_work {
    int64_t n_launches, bytes_read, bytes_written;
    int64_t n_accesses; /* of the device's memory, by which those bytes came and went */
} device_work;

/*
 * Whose rows are run against the row "scalar": the CPU's, unless a file of the program
 * brings the emulation of a device.
 */
typedef struct tested_device {
    ptac_device device;
    void (*begin)(void);               /* once, or NULL */
    void *stream;                      /* of its calls */
    void (*set_order)(uint64_t order); /* of its threads, or NULL */
    device_work (*work)(void);         /* since the program started */
} tested_device;

extern tested_device the_device;

/* How often a row of an operator was run, and with which outcome. */
typedef struct tally {
    int64_t n_compared, n_refused, n_given_back;
    int64_t n_16_bits[2]; /* of those compared: on float16, on bfloat16 */
    int64_t n_shared;     /* times that work was given to a host with threads */
} tally;

/*
 * Make up the call of that number and run it by every row, under every CPU limit,
 * serially and with threads. records has a place for each row of the operator. False
 * when a row did what it must not; what it was is printed.
 */
bool check_case(const generator *g, uint64_t seed, int64_t number, tally *records);

/* Random numbers that depend on these three alone. */
rng rng_for_case(uint64_t seed, ptac_op op, int64_t number);

/* The name of the buffer in this slot of the arena, in the call that is run now. */
const char *name_of_buffer(int slot);

/* Give back what the last case holds. */
void forget_case(void);

#endif
