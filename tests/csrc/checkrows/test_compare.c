/*
 * test_compare.c - what checkrows takes for equal, and for close enough.
 */
#include "checkrows.h"
#include "narrow.h"
#include "unit.h"

#include <float.h>
#include <math.h>
#include <string.h>

static test_buffer like(ptac_dtype dtype, int64_t n)
{
    const size_t bytes = dtype == PTAC_OTHER_DTYPE ? 1 : dtype_bytes(dtype);

    return (test_buffer){.dtype = dtype, .element_bytes = bytes, .n_elements = n};
}

/* Two floats by bits (allowed < 0) or within allowed. */
static bool floats_agree(float a, float b, double allowed, uint32_t nan_bits)
{
    const test_buffer one = like(PTAC_F32, 1);
    const equality rule = {allowed < 0, nan_bits, allowed};

    return first_difference(&one, &a, &b, &rule) < 0;
}

static float nan_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

UNIT(equal_bits)
{
    EXPECT(floats_agree(1.5f, 1.5f, -1, 0));
    EXPECT(!floats_agree(1.0f, 1.0f + FLT_EPSILON, -1, 0));
    EXPECT(!floats_agree(0.0f, -0.0f, -1, 0));
    EXPECT(!floats_agree(INFINITY, FLT_MAX, -1, 0));
    EXPECT(!floats_agree(NAN, 1.0f, -1, 0));
    EXPECT(!floats_agree(1.0f, NAN, -1, 0));
    EXPECT(floats_agree(nan_of(0x7fc00000), nan_of(0xffc00001), -1, 0));
    EXPECT(floats_agree(nan_of(0x7fc00000), nan_of(0xffc00001), -1, 1u << PTAC_F64));
    EXPECT(!floats_agree(nan_of(0x7fc00000), nan_of(0xffc00001), -1, 1u << PTAC_F32));
}

UNIT(close_enough)
{
    EXPECT(floats_agree(1.0f, 1.25f, 0.25, ~0u));
    EXPECT(!floats_agree(1.0f, 1.26f, 0.25, ~0u));
    EXPECT(floats_agree(0.0f, -0.0f, 0, ~0u));
    EXPECT(floats_agree(nan_of(0x7fc00000), nan_of(0xffc00001), 0, ~0u));
    EXPECT(!floats_agree(NAN, 1.0f, 1e30, 0));
    EXPECT(!floats_agree(INFINITY, FLT_MAX, 1e300, 0));
    EXPECT(!floats_agree(INFINITY, -INFINITY, 1e300, 0));
    EXPECT(floats_agree(-INFINITY, -INFINITY, 0, 0));
}

UNIT(the_first_difference_is_told)
{
    const int64_t whole[] = {1, 2, 3, 4}, other[] = {1, 2, 4, 5};
    const uint16_t halves[] = {0x3f80, 0x4000}, other_halves[] = {0x3f80, 0x4001};
    const test_buffer integers = like(PTAC_I64, 4), bf16 = like(PTAC_BF16, 2);
    const test_buffer bytes = like(PTAC_OTHER_DTYPE, 4);
    const equality close = {false, 0, 100}, by_bits = {true, 0, 0};

    EXPECT(first_difference(&integers, whole, whole, &close) == -1);
    EXPECT(first_difference(&integers, whole, other, &close) == 2); /* never close */
    EXPECT(first_difference(&bytes, "abcd", "abxd", &close) == 2);
    EXPECT(first_difference(&bf16, halves, other_halves, &close) == -1);
    EXPECT(first_difference(&bf16, halves, other_halves, &by_bits) == 1);
}

UNIT(roundings_scale_with_the_largest_finite_element)
{
    const float values[] = {0.5f, -8.0f, INFINITY, NAN};
    const float none[4] = {0};
    const double doubles[] = {4.0};
    const uint16_t half[] = {0x4000}; /* 2 */
    const test_buffer f64 = like(PTAC_F64, 1);
    test_buffer f32 = like(PTAC_F32, 4);
    const test_buffer bf16 = like(PTAC_BF16, 1), integers = like(PTAC_I64, 1);

    EXPECT(roundings_of(&f32, values, 3) == 3 * 0x1p-24 * 8);
    EXPECT(roundings_of(&f64, doubles, 3) == 3 * 0x1p-53 * 4);
    EXPECT(roundings_of(&bf16, half, 3) == 3 * 0x1p-9 * 2);
    EXPECT(roundings_of(&integers, doubles, 3) == 0);

    EXPECT(roundings_of(&f32, none, 3) == 3 * 0x1p-149);
    f32.least_scale = 16;
    EXPECT(roundings_of(&f32, values, 3) == 3 * 0x1p-24 * 16);
    f32.least_scale = 1;
    EXPECT(roundings_of(&f32, values, 3) == 3 * 0x1p-24 * 8);
}

UNIT(elements_round_as_their_dtype_does)
{
    uint16_t half;

    set_real(PTAC_BF16, &half, 0, 1.0 + 0x1p-8); /* a tie: to even */
    EXPECT(half == 0x3f80);
    set_real(PTAC_BF16, &half, 0, 1.0 + 0x3p-8);
    EXPECT(half == 0x3f82);
    set_real(PTAC_BF16, &half, 0, -INFINITY);
    EXPECT(half == 0xff80);
    set_real(PTAC_BF16, &half, 0, NAN);
    EXPECT(half == 0x7fc0 && isnan(real_at(PTAC_BF16, &half, 0)));
}

UNIT(halves_round_as_ieee_has_them)
{
    static const struct {
        double value;
        uint16_t bits;
    } numbers[] = {
        {1, 0x3c00},           {1 + 0x1p-11, 0x3c00}, {1 + 0x3p-11, 0x3c02},
        {2 - 0x1p-12, 0x4000}, {65504, 0x7bff},       {65519.99, 0x7bff},
        {65520, 0x7c00},       {-0x1p-14, 0x8400},    {0x1p-24, 1},
        {0x1p-25, 0},          {0x1.8p-24, 2},        {-0.0, 0x8000},
        {INFINITY, 0x7c00},    {0x1.ff8p-15, 0x3ff},
    };

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        uint16_t bits;

        set_real(PTAC_F16, &bits, 0, numbers[i].value);
        EXPECT(bits == numbers[i].bits);
    }
    for (int bits = 0; bits < 0x10000; bits++) {
        const uint16_t half = (uint16_t)bits;
        uint16_t again;

        set_real(PTAC_F16, &again, 0, real_at(PTAC_F16, &half, 0));
        EXPECT(again == half ||
               (isnan(real_at(PTAC_F16, &half, 0)) && again == 0x7e00));
    }
}

/* One number of 16 bits beside float32's, by bits (allowed < 0) or within allowed. */
static bool narrowed_agree(ptac_dtype dtype, float expected, double got, double allowed)
{
    const test_buffer one = like(dtype, 1);
    const equality rule = {allowed < 0, 0, allowed};
    uint16_t bits;

    set_real(dtype, &bits, 0, got);
    return first_difference_16(&one, &expected, &bits, &rule) < 0;
}

UNIT(results_of_16_bits_lie_where_the_tolerance_rounds_to)
{
    const double half_ulp = 0x1p-11; /* of float16 at 1 */
    const float tie = 1 + (float)half_ulp;

    EXPECT(narrowed_agree(PTAC_F16, tie, 1, -1));
    EXPECT(!narrowed_agree(PTAC_F16, tie, 1 + 2 * half_ulp, -1));
    EXPECT(narrowed_agree(PTAC_F16, tie, 1 + 2 * half_ulp, 0x1p-30));
    EXPECT(!narrowed_agree(PTAC_F16, 1, 1 + 2 * half_ulp, 0.9 * half_ulp));
    EXPECT(narrowed_agree(PTAC_F16, 1, 1 + 2 * half_ulp, 1.1 * half_ulp));
    EXPECT(!narrowed_agree(PTAC_BF16, 1, 1 + 0x1p-7, 0x1p-9));
    EXPECT(narrowed_agree(PTAC_F16, 70000, INFINITY, -1));
    EXPECT(!narrowed_agree(PTAC_F16, 65000, INFINITY, 1));
    EXPECT(narrowed_agree(PTAC_F16, 65519, INFINITY, 2));
    EXPECT(narrowed_agree(PTAC_F16, NAN, NAN, -1));
    EXPECT(!narrowed_agree(PTAC_F16, NAN, 1, 1e30));
    EXPECT(!narrowed_agree(PTAC_F16, 1, NAN, 1e30));
    EXPECT(!narrowed_agree(PTAC_F16, INFINITY, 65504, 1e30));
    EXPECT(narrowed_agree(PTAC_F16, 0, -0.0, 0));
    EXPECT(!narrowed_agree(PTAC_F16, 0, -0.0, -1));
}

UNIT(calls_become_narrow_and_wide)
{
    static const int64_t size = 3;
    static test_call c;
    float *x, *y;

    test_call_clear(&c);
    x = test_input(&c, PTAC_F32, 1, &size, false);
    test_also_16_bits(&c);
    memcpy(x, (float[]){1e30f, 1 + 0x1p-11f, -INFINITY}, 12);
    y = test_input(&c, PTAC_F32, 1, &size, false);
    y[0] = 1e30f;
    test_output_in_place(&c, 0);
    test_output(&c, PTAC_I64, 1, &size, false);
    test_also_16_bits(&c); /* changes nothing: float32 alone is narrowed */
    EXPECT(test_widen(&c));
    test_round(&c, PTAC_F16);
    EXPECT(x[0] == 65504 && x[1] == 1 && x[2] == -INFINITY && y[0] == 1e30f);
    test_narrow(&c, PTAC_F16);
    EXPECT(c.call.inputs[0].dtype == PTAC_F16 && c.call.outputs[0].dtype == PTAC_F16);
    EXPECT(c.call.inputs[1].dtype == PTAC_F32 && c.call.outputs[1].dtype == PTAC_I64);
    EXPECT(c.buffers[0].element_bytes == 2);
    EXPECT(memcmp(c.buffers[0].content, (uint16_t[]){0x7bff, 0x3c00, 0xfc00}, 6) == 0);
    EXPECT(test_bytes(&c) == 2 * 6 + 12 + 24);
    test_call_clear(&c);

    memset(test_input(&c, PTAC_BF16, 1, &size, false), 0x3f, 6);
    EXPECT(test_widen(&c) && c.call.inputs[0].dtype == PTAC_F32);
    EXPECT(c.buffers[0].also_16_bits);
    EXPECT(memcmp(c.buffers[0].content, (uint32_t[]){0x3f3f0000}, 4) == 0);
    test_call_clear(&c);
}

UNIT(calls_are_laid_out_as_generators_ask)
{
    static const generator plain = {.op = PTAC_OP_MAX_POOL2D};
    static const int64_t sizes[] = {2, 3, 4, 5};
    static test_call c;
    rng r = {7};

    arena_prepare();
    test_call_clear(&c);
    memset(test_input(&c, PTAC_F32, 4, sizes, true), 1, 480);
    memset(test_input(&c, PTAC_BF16, 4, sizes, false), 2, 240);
    test_output(&c, PTAC_I64, 4, sizes, true);
    test_output_in_place(&c, 1);
    test_no_input(&c);
    test_no_output(&c);
    test_call_place(&r, &c, &plain);

    EXPECT(c.call.n_inputs == 3 && c.call.n_outputs == 3 && c.n_buffers == 3);
    EXPECT(!c.call.inputs[2].data && !c.call.outputs[2].data);
    EXPECT(ptac_view_is_channels_last(&c.call.inputs[0]));
    EXPECT(ptac_view_is_contiguous(&c.call.inputs[1]));
    EXPECT(ptac_view_is_channels_last(&c.call.outputs[0]));
    EXPECT(c.call.outputs[1].data == c.call.inputs[1].data);
    EXPECT(c.buffers[0].use == READS && c.buffers[1].use == UPDATES);
    EXPECT(memcmp(c.call.inputs[0].data, c.buffers[0].content, 480) == 0);
    EXPECT(memcmp(c.call.inputs[1].data, c.buffers[1].content, 240) == 0);
    EXPECT(c.call.inputs[0].n_elements == 120 && c.call.params == c.params);
    test_call_clear(&c);
    EXPECT(c.n_buffers == 0);
}
