/*
 * emulator.h - what tests ask of the emulation, from C.
 *
 * A misuse that hardware would answer with anything at all ends the program; its last
 * line on stderr has the kernel, the thread, the line and the reason.
 */
#ifndef PTAC_TESTS_EMULATOR_H
#define PTAC_TESTS_EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct emulated_grid {
    unsigned int blocks[3], threads[3];
} emulated_grid;

/* What kernels have done since emulator_forget(). */
typedef struct emulated_work {
    int64_t n_launches, n_blocks;
    int64_t bytes_read, bytes_written; /* of the device's memory */
    int64_t n_accesses;                /* so many reads and writes did that */
} emulated_work;

/* A kernel by its name, or NULL; kernels are those of the program's .cu files. */
const void *emulator_find(const char *name);
int emulator_n_parameters(const void *kernel);

/* Run it. False, and nothing is done, where a device would refuse the grid. */
bool emulator_launch(const void *kernel, const emulated_grid *grid, void **parameters);

/*
 * Which thread goes first: 0 those of low numbers, 1 those of high ones, else by chance
 * from this seed, blocks too.
 */
void emulator_set_order(uint64_t order);

emulated_work emulator_work(void);
void emulator_forget(void);

#ifdef __cplusplus
}
#endif

#endif
