/*
 * copy_avx2.c - copies by whole runs, and planes turned block by block in registers.
 *
 * turn_avx2.h has the blocks and turn_tpl.h what is around them. CPUs with AVX-512 run
 * it too: blocks of 16 x 16 in wider registers were no faster, the memory decides.
 */
#if defined(__x86_64__)
#include "ops/copy/turn_avx2.h"

#include <string.h>

#define BYTES     2
#define N         8
#define BLOCK     turn_2
#define TURN      turn_planes_2
#define BIG       32
#define BIG_BLOCK turn_2_by_32
#include "ops/copy/turn_tpl.h"

#define BYTES     4
#define N         8
#define BLOCK     turn_4
#define TURN      turn_planes_4
#define BIG       16
#define BIG_BLOCK turn_4_by_16
#include "ops/copy/turn_tpl.h"

#define BYTES     8
#define N         4
#define BLOCK     turn_8
#define TURN      turn_planes_8
#define BIG       8
#define BIG_BLOCK turn_8_by_8
#include "ops/copy/turn_tpl.h"

#define BYTES     16
#define N         4
#define BLOCK     turn_16
#define TURN      turn_planes_16
#define BIG       4
#define BIG_BLOCK turn_16_by_4
#include "ops/copy/turn_tpl.h"

/* n runs of bytes, where PART divides what one move takes: the last one overlaps. */
#define RUNS_OF(part, move)                                                            \
    for (int64_t i = 0; i < n; i++, to += to_stride, from += from_stride) {            \
        for (int64_t j = 0; j < bytes - (part); j += (part))                           \
            move(to + j, from + j);                                                    \
        move(to + bytes - (part), from + bytes - (part));                              \
    }

INLINE void move_2(char *to, const char *from)
{
    memcpy(to, from, 2);
}

INLINE void move_4(char *to, const char *from)
{
    memcpy(to, from, 4);
}

INLINE void move_8(char *to, const char *from)
{
    memcpy(to, from, 8);
}

INLINE void move_32(char *to, const char *from)
{
    _mm256_storeu_si256((__m256i *)to, _mm256_loadu_si256((const __m256i *)from));
}

INLINE void copy_n_runs(char *to, int64_t to_stride, const char *from,
                        int64_t from_stride, int64_t n, int64_t bytes)
{
    if (bytes >= 4096)
        for (int64_t i = 0; i < n; i++)
            memcpy(to + i * to_stride, from + i * from_stride, (size_t)bytes);
    else if (bytes >= 32)
        RUNS_OF(32, move_32)
    else if (bytes >= 16)
        RUNS_OF(16, move_16)
    else if (bytes >= 8)
        RUNS_OF(8, move_8)
    else if (bytes >= 4)
        RUNS_OF(4, move_4)
    else
        RUNS_OF(2, move_2)
}

/* Runs [begin, end), by as many as the loop over them still has. */
TARGET static void copy_runs(int64_t begin, int64_t end, void *context)
{
    const ptac_call *call = context;
    const ptac_copy *p = call->params;
    const int d = p->n_dims - 2;
    const int64_t bytes = p->sizes[d + 1] * p->bytes;
    int64_t at = begin % p->sizes[d];
    ptac_copy_place place = ptac_copy_seek(p, 2, begin / p->sizes[d]);

    for (int64_t i = begin; i < end; ptac_copy_step(p, &place)) {
        const int64_t n = ptac_least(p->sizes[d] - at, end - i);
        char *to = (char *)call->outputs[0].data + place.to + at * p->to[d];
        const char *from =
            (const char *)call->inputs[0].data + place.from + at * p->from[d];

        copy_n_runs(to, p->to[d], from, p->from[d], n, bytes);
        i += n;
        at = 0;
    }
}

static ptac_status run(const ptac_call *call)
{
    const ptac_copy *p = call->params;
    int64_t turns;

    if (p->way == PTAC_COPY_RUNS) {
        turns = ptac_copy_turns(p, 1);
        ptac_parallel_for(0, turns, ptac_copy_grain(p, turns), copy_runs, (void *)call);
        return PTAC_OK;
    }
    turns = ptac_copy_turns(p, 2) * ptac_copy_cut(p).n;
    ptac_parallel_for(0, turns, ptac_copy_grain(p, turns),
                      p->bytes == 2   ? turn_planes_2
                      : p->bytes == 4 ? turn_planes_4
                      : p->bytes == 8 ? turn_planes_8
                                      : turn_planes_16,
                      (void *)call);
    return PTAC_OK;
}

PTAC_ROW(COPY, "avx2", PTAC_EXACT, PTAC_CPU_AVX2, ptac_copy_accepts, run)
#endif
