/*
 * layer_norm.c - layer norms once more, sixteen columns at a time.
 */
#include "ops/pack/layer_norm.h"

#include "core/cpu.h"
#include "core/host.h"

#include <stdatomic.h>

bool ptac_layer_norm_is_there(void)
{
    return ptac_cpu_features() & PTAC_CPU_AVX512;
}

typedef struct job {
    const ptac_layer_norm *norm;
    float *out;
    const float *y;
    atomic_bool differs;
} job;

#ifdef __x86_64__
#include "ops/math/lanes_avx512.h"

/* Columns of a row; lanes that are not of it are 0 and not touched in memory. */
TARGET static inline __m512 lanes(const ptac_layer_norm *norm, int64_t row, int64_t c,
                                  __mmask16 in)
{
    const __m512 mean = _mm512_set1_ps(norm->mean[row]);
    const __m512 rstd = _mm512_set1_ps(norm->rstd[row]);
    const __m512 x = _mm512_maskz_loadu_ps(in, norm->x + row * norm->n_columns + c);
    const __m512 weight = _mm512_maskz_loadu_ps(in, norm->weight + c);
    const __m512 bias = _mm512_maskz_loadu_ps(in, norm->bias + c);

    return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_sub_ps(x, mean), rstd), weight, bias);
}

TARGET static inline __mmask16 unlike(__m512 again, const float *y, __mmask16 in)
{
    return _mm512_mask_cmpneq_epi32_mask(in, _mm512_castps_si512(again),
                                         _mm512_maskz_loadu_epi32(in, y));
}

/*
 * The last lanes are masked. A mask that is constant makes plain loads of the others,
 * which the CPU fetches ahead; masked ones are four times slower out of memory.
 */
TARGET static void apply(int64_t begin, int64_t end, void *context)
{
    const job *j = context;
    const int64_t n = j->norm->n_columns, whole = n & ~15;
    const __mmask16 rest = (__mmask16)((1u << (n - whole)) - 1);

    for (int64_t row = begin; row < end; row++) {
        float *out = j->out + row * n;

        for (int64_t c = 0; c < whole; c += 16)
            _mm512_storeu_ps(out + c, lanes(j->norm, row, c, 0xffff));
        _mm512_mask_storeu_ps(out + whole, rest, lanes(j->norm, row, whole, rest));
    }
}

TARGET static void match(int64_t begin, int64_t end, void *context)
{
    job *j = context;
    const int64_t n = j->norm->n_columns, whole = n & ~15;
    const __mmask16 rest = (__mmask16)((1u << (n - whole)) - 1);
    __mmask16 differs = 0;

    for (int64_t row = begin; row < end && !differs; row++) {
        const float *y = j->y + row * n;

        for (int64_t c = 0; c < whole; c += 16)
            differs |= unlike(lanes(j->norm, row, c, 0xffff), y + c, 0xffff);
        differs |= unlike(lanes(j->norm, row, whole, rest), y + whole, rest);
    }
    if (differs)
        atomic_store_explicit(&j->differs, true, memory_order_relaxed);
}
#else
static const ptac_range_fn apply = NULL, match = NULL; /* nobody may call them */
#endif

static void on_rows(job *j, ptac_range_fn body)
{
    enum { GRAIN = 1 << 15 }; /* elements that are worth a thread */
    const int64_t n = j->norm->n_columns;

    ptac_parallel_for(0, j->norm->n_rows, n < GRAIN ? GRAIN / (n + !n) : 1, body, j);
}

void ptac_layer_norm_apply(const ptac_layer_norm *norm, float *y)
{
    job j = {.norm = norm, .out = y};

    on_rows(&j, apply);
}

bool ptac_layer_norm_matches(const ptac_layer_norm *norm, const float *y)
{
    job j = {.norm = norm, .y = y};

    on_rows(&j, match);
    return !atomic_load_explicit(&j.differs, memory_order_relaxed);
}
