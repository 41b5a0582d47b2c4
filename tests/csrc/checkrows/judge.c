/*
 * judge.c - guards, inputs and outputs after a run.
 */
#include "judge.h"

#include "faults.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool fail(const char *format, ...)
{
    va_list args;

    printf("FAIL %s\n  ", faults_noted());
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    return false;
}

bool left_alone(const test_call *c, ptac_status status)
{
    for (int i = 0; i < c->n_buffers; i++) {
        const test_buffer *b = &c->buffers[i];
        const size_t bytes = (size_t)b->n_elements * b->element_bytes;
        const char *damage = arena_damage(i);
        const bool may_change =
            b->use == WRITES || b->use == SCRATCH || (b->use == UPDATES && !status);

        if (damage)
            return fail("%s: %s", b->name, damage);
        if (!may_change && memcmp(b->data, b->content, bytes) != 0)
            return fail("%s was changed", b->name);
    }
    return true;
}

static bool is_compared(const test_buffer *b)
{
    return b->use == WRITES || b->use == UPDATES;
}

void results_keep(results *kept, const test_call *c)
{
    for (int i = 0; i < c->n_buffers; i++) {
        const test_buffer *b = &c->buffers[i];
        const size_t bytes = (size_t)b->n_elements * b->element_bytes;

        free(kept->of[i]);
        kept->dtypes[i] = b->dtype;
        kept->of[i] = is_compared(b) ? malloc(bytes + 1) : NULL;
        if (kept->of[i])
            memcpy(kept->of[i], b->data, bytes);
    }
}

void results_drop(results *kept)
{
    for (int i = 0; i < MAX_BUFFERS; i++)
        free(kept->of[i]);
    memset(kept, 0, sizeof *kept);
}

static bool fail_at(const test_buffer *b, int64_t i, const void *expected,
                    ptac_dtype dtype, const char *against)
{
    const size_t bytes = dtype < PTAC_OTHER_DTYPE ? dtype_bytes(dtype) : 1;
    uint64_t wanted = 0, got = 0;

    memcpy(&wanted, (const char *)expected + (size_t)i * bytes, bytes);
    memcpy(&got, (const char *)b->data + (size_t)i * b->element_bytes,
           b->element_bytes);
    return fail("%s of %s, element %lld: %.17g (%llx), but by %s %.17g (%llx)", b->name,
                ptac_dtype_name(b->dtype), (long long)i, real_at(b->dtype, &got, 0),
                (unsigned long long)got, against, real_at(dtype, &wanted, 0),
                (unsigned long long)wanted);
}

/* How far the row's outputs may lie from those of "scalar"; 0: they have equal bits. */
static double roundings_for(const generator *g, const ptac_kernel *row)
{
    return row->level == PTAC_EXACT || strcmp(row->name, "scalar") == 0 ? 0
                                                                        : g->roundings;
}

static int64_t difference(const test_buffer *b, const void *expected, ptac_dtype dtype,
                          double roundings, uint32_t nan_bits)
{
    test_buffer wide = *b;

    wide.dtype = dtype;

    const equality rule = {
        .bits = roundings == 0,
        .nan_bits = nan_bits,
        .allowed = roundings_of(&wide, expected, roundings),
    };

    return dtype == b->dtype ? first_difference(b, expected, b->data, &rule)
                             : first_difference_16(b, expected, b->data, &rule);
}

bool agrees(const test_call *c, const results *with, const generator *g,
            const ptac_kernel *row, bool with_itself)
{
    for (int i = 0; i < c->n_buffers; i++) {
        const test_buffer *b = &c->buffers[i];

        if (!is_compared(b))
            continue;

        const int64_t at = difference(b, with->of[i], with->dtypes[i],
                                      with_itself ? 0 : roundings_for(g, row),
                                      with_itself ? 0 : g->nan_bits);

        if (at >= 0)
            return fail_at(b, at, with->of[i], with->dtypes[i],
                           with_itself ? "the same row without threads" : "\"scalar\"");
    }
    return true;
}
