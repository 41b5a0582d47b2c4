/*
 * faulty_main.c - faulty [FAULT [ORDER]]: one launch of the kernel, and its results.
 */
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    N_THREADS = 128,
    N_RESULTS = 64,
};

int main(int argc, char **argv)
{
    float *x = calloc(N_THREADS, sizeof *x), *y = calloc(N_RESULTS, sizeof *y);
    int n = N_THREADS, fault = argc > 1 ? atoi(argv[1]) : 0;
    const emulated_grid grid = {{2, 1, 1}, {N_THREADS, 1, 1}};
    void *parameters[] = {&x, &y, &n, &fault};

    if (!x || !y)
        return 2;
    for (int i = 0; i < N_THREADS; i++)
        x[i] = 1.0f + 0.37f * (float)i;
    emulator_set_order(argc > 2 ? strtoull(argv[2], NULL, 10) : 0);
    if (!emulator_launch(emulator_find("faulty"), &grid, parameters))
        return 3;
    printf("%a %g %g; read %lld, written %lld\n", (double)y[0], (double)y[1],
           (double)y[2], (long long)emulator_work().bytes_read,
           (long long)emulator_work().bytes_written);
    free(x);
    free(y);
    return 0;
}
