/*
 * cast.c - float32 to bfloat16 and back, sixteen lanes at a time.
 *
 * Only rows that need AVX512-BF16 come here, so on x86-64 there is AVX-512. Its own
 * conversion instruction makes zeros of subnormal numbers, which torch does not.
 */
#include "ops/bf16/cast.h"

#include "core/host.h"

enum {
    GRAIN = 1 << 15, /* elements worth a thread */
    AHEAD = 8, /* rows apart, of which a CPU sees no pattern, are asked for early */
};

#if defined(__x86_64__)
#include "ops/math/lanes_avx512.h"

INLINE __m256i rounded(vec x)
{
    const ints half = EPI32(set1)(0x7fff), one = EPI32(set1)(1);
    const ints nan = EPI32(set1)(0x7fc0), bits = (ints)x;
    const ints odd = EPI32(srli)(bits, 16) & one;
    const ints up = EPI32(add)(bits, EPI32(add)(odd, half));

    return _mm512_cvtepi32_epi16(
        _mm512_mask_mov_epi32(EPI32(srli)(up, 16), v_compare(x, x, _CMP_UNORD_Q), nan));
}

TARGET static void narrow(const float *in, uint16_t *out, int64_t n)
{
    FOR_LANES(i, some, 0, n,
              v_store_halves(out + i, rounded(v_load_first(in + i, some)), some));
}

/* scale and shift are one number for all, or one for each of the n where vary is set */
TARGET static void widen(const uint16_t *in, float *out, int64_t n, const float *scale,
                         const float *shift, bool vary, bool with_relu)
{
    const vec a = v_set(scale ? *scale : 1), b = v_set(shift ? *shift : 0);

    for (int64_t i = 0; i < n; i += LANES) {
        const mask some = n - i < LANES ? v_first(n - i) : (mask)~0;
        vec y = v_widen(_mm256_maskz_loadu_epi16(some, in + i));

        if (scale)
            y = v_mul(y, vary ? _mm512_maskz_loadu_ps(some, scale + i) : a);
        if (shift)
            y = v_add(y, vary ? _mm512_maskz_loadu_ps(some, shift + i) : b);
        if (with_relu)
            y = v_max(v_zero(), y); /* NaN stays */
        _mm512_mask_storeu_ps(out + i, some, y);
    }
}
#else /* nobody may call them */
static void (*const narrow)(const float *, uint16_t *, int64_t) = NULL;
static void (*const widen)(const uint16_t *, float *, int64_t, const float *,
                           const float *, bool, bool) = NULL;
#endif

static int64_t rows_a_thread(int64_t n_cols)
{
    return n_cols < GRAIN ? (GRAIN + n_cols) / (n_cols + 1) : 1;
}

/* Rows along the last dimension of a view of four, each without gaps. */
typedef struct rows_job {
    const float *in;
    int64_t sizes[4], strides[4]; /* the last stride is not looked at */
    uint16_t *out;
} rows_job;

static void narrow_rows(int64_t begin, int64_t end, void *context)
{
    const rows_job *job = context;
    const int64_t *size = job->sizes, *stride = job->strides;
    int64_t i = begin % size[2], j = begin / size[2] % size[1];
    int64_t k = begin / size[2] / size[1];
    const int64_t row_bytes = size[3] * (int64_t)sizeof *job->in;
    const uintptr_t ahead = (uintptr_t)(AHEAD * stride[2]) * sizeof *job->in;

    for (int64_t row = begin; row < end; row++) {
        const float *in = job->in + i * stride[2] + j * stride[1] + k * stride[0];

        /* An address is only computed with: there may be no row so far ahead. */
        for (int64_t byte = 0; byte < row_bytes; byte += 64)
            __builtin_prefetch((const void *)((uintptr_t)in + ahead + byte));
        narrow(in, job->out + row * size[3], size[3]);
        if (++i < size[2])
            continue;
        i = 0;
        if (++j < size[1])
            continue;
        j = 0;
        k++;
    }
}

static void narrow_elements(int64_t begin, int64_t end, void *context)
{
    const rows_job *job = context;

    narrow(job->in + begin, job->out + begin, end - begin);
}

void ptac_bf16_narrow_rows(const float *in, int64_t stride, int64_t n_rows,
                           int64_t n_cols, uint16_t *out)
{
    rows_job job = {in, {1, 1, n_rows, n_cols}, {0, 0, stride}, out};

    if (stride == n_cols) /* threads may then share a long row as well */
        ptac_parallel_for(0, n_rows * n_cols, rows_a_thread(1), narrow_elements, &job);
    else
        ptac_parallel_for(0, n_rows, rows_a_thread(n_cols), narrow_rows, &job);
}

void ptac_bf16_narrow_view(const ptac_view *in, uint16_t *out)
{
    rows_job job = {.in = in->data, .sizes = {1, 1, 1, 1}, .out = out};
    const int first = 4 - in->n_dims;

    if (in->n_elements == 0)
        return;
    if (ptac_view_is_contiguous(in)) {
        ptac_bf16_narrow_rows(in->data, 1, in->n_elements, 1, out);
        return;
    }
    for (int i = first; i < 4; i++) {
        job.sizes[i] = in->sizes[i - first];
        job.strides[i] = in->strides[i - first];
    }
    ptac_parallel_for(0, job.sizes[0] * job.sizes[1] * job.sizes[2],
                      rows_a_thread(job.sizes[3]), narrow_rows, &job);
}

typedef struct widen_job {
    const uint16_t *in;
    float *out;
    const ptac_bf16_epilogue *epilogue; /* NULL: planes of one element */
} widen_job;

static void widen_some(int64_t begin, int64_t end, void *context)
{
    const widen_job *job = context;

    widen(job->in + begin, job->out + begin, end - begin, NULL, NULL, false, false);
}

void ptac_bf16_widen(const uint16_t *in, float *out, int64_t n)
{
    widen_job job = {in, out, NULL};

    ptac_parallel_for(0, n, GRAIN, widen_some, &job);
}

static void widen_some_planes(int64_t begin, int64_t end, void *context)
{
    const widen_job *job = context;
    const ptac_bf16_epilogue *e = job->epilogue;
    const int64_t n = e->channels_last ? e->n_channels : e->size;

    for (int64_t i = begin; i < end; i++) {
        const int64_t c = e->channels_last ? 0 : i % e->n_channels;

        widen(job->in + i * n, job->out + i * n, n, e->scale ? e->scale + c : NULL,
              e->shift ? e->shift + c : NULL, e->channels_last, e->with_relu);
    }
}

void ptac_bf16_widen_channels(const uint16_t *in, float *out,
                              const ptac_bf16_epilogue *epilogue)
{
    const ptac_bf16_epilogue *e = epilogue;
    widen_job job = {in, out, e};

    ptac_parallel_for(0, e->n_planes,
                      rows_a_thread(e->channels_last ? e->n_channels : e->size),
                      widen_some_planes, &job);
}
