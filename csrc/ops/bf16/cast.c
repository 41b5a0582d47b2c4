/*
 * cast.c - float32 to bfloat16 and back, sixteen lanes at a time.
 *
 * Only rows that need AVX512-BF16 come here, so on x86-64 there is AVX-512. Its own
 * conversion instruction makes zeros of subnormal numbers, which torch does not.
 */
#include "ops/bf16/cast.h"

#include "core/host.h"
#include "ops/bf16/bf16.h"

enum {
    GRAIN = 1 << 15, /* elements worth a thread */
    AHEAD = 8, /* rows apart, of which a CPU sees no pattern, are asked for early */
};

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

TARGET static inline __attribute__((always_inline)) __m256i rounded(__m512 x)
{
    const __m512i half = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1);
    const __m512i nan = _mm512_set1_epi32(0x7fc0), bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, half));

    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(
        _mm512_srli_epi32(up, 16), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan));
}

TARGET static void narrow(const float *in, uint16_t *out, int64_t n)
{
    int64_t i = 0;

    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(out + i), rounded(_mm512_loadu_ps(in + i)));
    if (i < n) {
        const __mmask16 some = (__mmask16)((1u << (n - i)) - 1);

        _mm256_mask_storeu_epi16(out + i, some,
                                 rounded(_mm512_maskz_loadu_ps(some, in + i)));
    }
}

/* scale and shift are one number for all, or one for each of the n where vary is set */
TARGET static void widen(const uint16_t *in, float *out, int64_t n, const float *scale,
                         const float *shift, bool vary, bool with_relu)
{
    const __m512 zero = _mm512_setzero_ps();
    const __m512 a = _mm512_set1_ps(scale ? *scale : 1);
    const __m512 b = _mm512_set1_ps(shift ? *shift : 0);

    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 some =
            n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xffff;
        const __m512i bits = _mm512_slli_epi32(
            _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, in + i)), 16);
        __m512 y = _mm512_castsi512_ps(bits);

        if (scale)
            y = _mm512_mul_ps(y, vary ? _mm512_maskz_loadu_ps(some, scale + i) : a);
        if (shift)
            y = _mm512_add_ps(y, vary ? _mm512_maskz_loadu_ps(some, shift + i) : b);
        if (with_relu)
            y = _mm512_max_ps(zero, y); /* the second operand where one is NaN */
        _mm512_mask_storeu_ps(out + i, some, y);
    }
}
#else
static void narrow(const float *in, uint16_t *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = bf16_from_f32(in[i]);
}

static void widen(const uint16_t *in, float *out, int64_t n, const float *scale,
                  const float *shift, bool vary, bool with_relu)
{
    for (int64_t i = 0; i < n; i++) {
        float y = bf16_to_f32(in[i]);

        y = scale ? y * scale[vary ? i : 0] : y;
        y = shift ? y + shift[vary ? i : 0] : y;
        out[i] = with_relu && y < 0 ? 0 : y;
    }
}
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
