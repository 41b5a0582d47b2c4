/*
 * max_pool2d_avx512.c - max pooling, sixteen float or eight double lanes at a time.
 *
 * The algorithm is in max_pool2d_tpl.h; this file only names the lanes.
 */
#if defined(__x86_64__)
#include "ops/pool/max_pool2d.h"

#include "core/host.h"
#include "ops/pool/lanes_avx512.h"

#include <math.h>

#define SUFFIX(name) name##_f32
#define TYPE         float
#define VEC          __m512
#define IVEC         __m512i
#define MASK         __mmask16
#define LANES        16
#define LOAD         load_f32
#define SPAN         uint32_t
#define SPAN_OF      span_of
#define LOAD_SPAN    load_span_f32
#define LOAD2_SPAN   load2_span_f32
#define LOAD_PAIRS   load_pairs_f32
#define STORE        store_f32
#define STORE_INDEX  store_index_16
#define RANGE        range_16
#define GREATER      GREATER_F32
#define UNORDERED    UNORDERED_F32
#define NONE         IS_NONE
#define PICK         _mm512_mask_blend_ps
#define IPICK        _mm512_mask_blend_epi32
#define LOWEST       _mm512_set1_ps(-INFINITY)
#define ISET         _mm512_set1_epi32
#define ILOAD        _mm512_loadu_si512
#define IADD         _mm512_add_epi32
#define IRAMP        ramp_16
#include "ops/pool/max_pool2d_tpl.h"

#define SUFFIX(name) name##_bf16
#define TYPE         uint16_t
#define VEC          __m512
#define IVEC         __m512i
#define MASK         __mmask16
#define LANES        16
#define LOAD         load_bf16
#define SPAN         uint32_t
#define SPAN_OF      span_of
#define LOAD_SPAN    load_span_bf16
#define LOAD2_SPAN   load2_span_bf16
#define LOAD_PAIRS   load_pairs_bf16
#define STORE        store_bf16
#define STORE_INDEX  store_index_16
#define RANGE        range_16
#define GREATER      GREATER_F32
#define UNORDERED    UNORDERED_F32
#define NONE         IS_NONE
#define PICK         _mm512_mask_blend_ps
#define IPICK        _mm512_mask_blend_epi32
#define LOWEST       _mm512_set1_ps(-INFINITY)
#define ISET         _mm512_set1_epi32
#define ILOAD        _mm512_loadu_si512
#define IADD         _mm512_add_epi32
#define IRAMP        ramp_16
#include "ops/pool/max_pool2d_tpl.h"

#define SUFFIX(name) name##_f64
#define TYPE         double
#define VEC          __m512d
#define IVEC         __m256i
#define MASK         __mmask8
#define LANES        8
#define LOAD         load_f64
#define SPAN         uint32_t
#define SPAN_OF      span_of
#define LOAD_SPAN    load_span_f64
#define LOAD2_SPAN   load2_span_f64
#define LOAD_PAIRS   load_pairs_f64
#define STORE        store_f64
#define STORE_INDEX  store_index_8
#define RANGE        range_8
#define GREATER      GREATER_F64
#define UNORDERED    UNORDERED_F64
#define NONE         IS_NONE
#define PICK         _mm512_mask_blend_pd
#define IPICK        _mm256_mask_blend_epi32
#define LOWEST       _mm512_set1_pd(-INFINITY)
#define ISET         _mm256_set1_epi32
#define ILOAD(p)     _mm256_loadu_si256((const __m256i *)(p))
#define IADD         _mm256_add_epi32
#define IRAMP        ramp_8
#include "ops/pool/max_pool2d_tpl.h"

static ptac_reason accepts(const ptac_call *call)
{
    const ptac_max_pool2d *p = call->params;

    if (call->inputs[0].dtype > PTAC_F64)
        return PTAC_DTYPE;
    return p->window.w.kernel <= PTAC_MAX_TAPS ? PTAC_TAKE : PTAC_SHAPE;
}

static ptac_status run(const ptac_call *call)
{
    static const ptac_range_fn tiled[] = {tiled_planes_f32, tiled_planes_bf16,
                                          tiled_planes_f64};
    static const ptac_range_fn planes[] = {planes_f32, planes_bf16, planes_f64};
    static const ptac_range_fn pixels[] = {pixels_f32, pixels_bf16, pixels_f64};
    const ptac_max_pool2d *p = call->params;
    const ptac_image *image = &p->image;
    const ptac_dtype dtype = call->inputs[0].dtype;

    if (image->channels_last)
        ptac_parallel_for(0, image->n * image->out_h * image->out_w,
                          16384 / image->channels + 1, pixels[dtype], (void *)call);
    else
        ptac_parallel_for(
            0, image->n * image->channels, 16384 / (image->h * image->w) + 1,
            ptac_max_pool2d_is_tiled(p) ? tiled[dtype] : planes[dtype], (void *)call);
    return PTAC_OK;
}

static const ptac_kernel max_pool2d_avx512 = {
    .op = PTAC_OP_MAX_POOL2D,
    .name = "avx512",
    .level = PTAC_EXACT,
    .needs = PTAC_CPU_AVX512,
    .accepts = accepts,
    .run = run,
};
PTAC_REGISTER(max_pool2d_avx512)
#endif
