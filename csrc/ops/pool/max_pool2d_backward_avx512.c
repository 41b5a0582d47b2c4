/*
 * max_pool2d_backward_avx512.c - max pooling's gradient, sixteen float lanes at a time.
 *
 * The algorithm is in max_pool2d_backward_tpl.h; this file only names the lanes.
 * Windows in NCHW that overlap, or have other shapes, go by the definition.
 */
#if defined(__x86_64__)
#include "ops/pool/max_pool2d_backward.h"

#include "ops/pool/lanes_avx512.h"

PTAC_SCATTER_PLANE(float, plane_f32, PTAC_PLAIN_ADD)
PTAC_SCATTER_PLANE(double, plane_f64, PTAC_PLAIN_ADD)
PTAC_SCATTER_PLANE(uint16_t, plane_bf16, bf16_add)

PTAC_SCATTER_PLANES(float, planes_f32, plane_f32)
PTAC_SCATTER_PLANES(double, planes_f64, plane_f64)
PTAC_SCATTER_PLANES(uint16_t, planes_bf16, plane_bf16)

/* vpmovsqd saturates, and no position in an image is as large as INT32_MAX. */
TARGET static inline __m512i load_index_16(const int64_t *p, int n)
{
    const __mmask16 mask = first_16(n);
    const __m512i low = _mm512_maskz_loadu_epi64((__mmask8)mask, p);
    const __m512i high = _mm512_maskz_loadu_epi64((__mmask8)(mask >> 8), p + 8);

    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtsepi64_epi32(low)),
                              _mm512_cvtsepi64_epi32(high), 1);
}

TARGET static inline __m256i load_index_8(const int64_t *p, int n)
{
    return _mm512_cvtsepi64_epi32(_mm512_maskz_loadu_epi64(first_8(n), p));
}

TARGET static inline void zip_f32(float *p, __m512 even, __m512 odd, int n)
{
    const __m512i low =
        _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high =
        _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
    const uint32_t mask = (uint32_t)((UINT64_C(1) << 2 * n) - 1);

    _mm512_mask_storeu_ps(p, (__mmask16)mask, _mm512_permutex2var_ps(even, low, odd));
    _mm512_mask_storeu_ps(p + 16, (__mmask16)(mask >> 16),
                          _mm512_permutex2var_ps(even, high, odd));
}

TARGET static inline void zip_f64(double *p, __m512d even, __m512d odd, int n)
{
    const __m512i low = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
    const __m512i high = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
    const uint32_t mask = (1u << 2 * n) - 1;

    _mm512_mask_storeu_pd(p, (__mmask8)mask, _mm512_permutex2var_pd(even, low, odd));
    _mm512_mask_storeu_pd(p + 8, (__mmask8)(mask >> 8),
                          _mm512_permutex2var_pd(even, high, odd));
}

TARGET static inline void zip_bf16(uint16_t *p, __m512 even, __m512 odd, int n)
{
    const __m512i pairs = _mm512_or_si512(
        _mm512_srli_epi32(_mm512_castps_si512(even), 16),
        _mm512_and_si512(_mm512_castps_si512(odd), _mm512_set1_epi32((int)0xffff0000)));

    _mm512_mask_storeu_epi16(p, (__mmask32)((UINT64_C(1) << 2 * n) - 1), pairs);
}

TARGET static inline __m512 keep_f32(__mmask16 m, __m512 v)
{
    return _mm512_maskz_add_ps(m, v, _mm512_setzero_ps());
}

/* As bf16_from_f32() does, NaNs become the one that c10 uses. */
TARGET static inline __m512 keep_bf16(__mmask16 m, __m512 v)
{
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512 quiet = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));

    return keep_f32(m, _mm512_mask_mov_ps(v, nan, quiet));
}

TARGET static inline __m512d keep_f64(__mmask8 m, __m512d v)
{
    return _mm512_maskz_add_pd(m, v, _mm512_setzero_pd());
}

TARGET static inline __m512 add_f32(__m512 sum, __mmask16 m, __m512 v)
{
    return _mm512_mask_add_ps(sum, m, sum, v);
}

TARGET static inline __m512d add_f64(__m512d sum, __mmask8 m, __m512d v)
{
    return _mm512_mask_add_pd(sum, m, sum, v);
}

/* The sum rounded to nearest even and widened again, so that cutting it is exact. */
TARGET static inline __m512 add_bf16(__m512 sum, __mmask16 m, __m512 v)
{
    const __m512 full = _mm512_add_ps(sum, v);
    const __m512i bits = _mm512_castps_si512(full);
    const __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i near =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(full, full, _CMP_UNORD_Q);
    const __m512i rounded =
        _mm512_mask_blend_epi32(nan, near, _mm512_set1_epi32(0x7fc00000));

    return _mm512_mask_mov_ps(sum, m,
                              _mm512_castsi512_ps(_mm512_and_si512(
                                  rounded, _mm512_set1_epi32((int)0xffff0000))));
}

#define FULL_16(m, n) ((first_16(n) & (m)) == first_16(n))
#define FULL_8(m, n)  ((first_8(n) & (m)) == first_8(n))

#define SUFFIX(name) name##_f32
#define TYPE         float
#define VEC          __m512
#define IVEC         __m512i
#define MASK         __mmask16
#define LANES        16
#define LOAD         load_f32
#define STORE        store_f32
#define LOAD_INDEX   load_index_16
#define ISET         _mm512_set1_epi32
#define IADD         _mm512_add_epi32
#define IRAMP        ramp_16
#define EQUAL        _mm512_cmpeq_epi32_mask
#define KEEP         keep_f32
#define ADD_WHERE    add_f32
#define IS_FULL      FULL_16
#define ZIP          zip_f32
#define SCATTER      plane_f32
#include "ops/pool/max_pool2d_backward_tpl.h"

#define SUFFIX(name) name##_bf16
#define TYPE         uint16_t
#define VEC          __m512
#define IVEC         __m512i
#define MASK         __mmask16
#define LANES        16
#define LOAD         load_bf16
#define STORE        store_bf16
#define LOAD_INDEX   load_index_16
#define ISET         _mm512_set1_epi32
#define IADD         _mm512_add_epi32
#define IRAMP        ramp_16
#define EQUAL        _mm512_cmpeq_epi32_mask
#define KEEP         keep_bf16
#define ADD_WHERE    add_bf16
#define IS_FULL      FULL_16
#define ZIP          zip_bf16
#define SCATTER      plane_bf16
#include "ops/pool/max_pool2d_backward_tpl.h"

#define SUFFIX(name) name##_f64
#define TYPE         double
#define VEC          __m512d
#define IVEC         __m256i
#define MASK         __mmask8
#define LANES        8
#define LOAD         load_f64
#define STORE        store_f64
#define LOAD_INDEX   load_index_8
#define ISET         _mm256_set1_epi32
#define IADD         _mm256_add_epi32
#define IRAMP        ramp_8
#define EQUAL        _mm256_cmpeq_epi32_mask
#define KEEP         keep_f64
#define ADD_WHERE    add_f64
#define IS_FULL      FULL_8
#define ZIP          zip_f64
#define SCATTER      plane_f64
#include "ops/pool/max_pool2d_backward_tpl.h"

static ptac_reason accepts(const ptac_call *call)
{
    return call->inputs[0].dtype <= PTAC_F64 ? PTAC_TAKE : PTAC_DTYPE;
}

static ptac_status run(const ptac_call *call)
{
    static const ptac_range_fn tiled[] = {tiled_planes_f32, tiled_planes_bf16,
                                          tiled_planes_f64};
    static const ptac_range_fn planes[] = {planes_f32, planes_bf16, planes_f64};
    static const ptac_range_fn images[] = {images_f32, images_bf16, images_f64};
    const ptac_max_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const ptac_dtype dtype = call->inputs[0].dtype;
    ptac_scatter job = {.call = call};

    if (image->channels_last)
        ptac_parallel_for(0, image->n, 1, images[dtype], &job);
    else
        ptac_parallel_for(
            0, image->n * image->channels, 16384 / (image->h * image->w) + 1,
            ptac_max_pool2d_is_tiled(p) ? tiled[dtype] : planes[dtype], &job);
    return job.out_of_range ? PTAC_UNSUPPORTED : PTAC_OK;
}

static const ptac_kernel max_pool2d_backward_avx512 = {
    .op = PTAC_OP_MAX_POOL2D_BACKWARD,
    .name = "avx512",
    .level = PTAC_EXACT,
    .needs = PTAC_CPU_AVX512,
    .accepts = accepts,
    .run = run,
};
PTAC_REGISTER(max_pool2d_backward_avx512)
#endif
