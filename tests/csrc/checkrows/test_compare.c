/*
 * test_compare.c - what checkrows takes for equal, and for close enough.
 */
#include "checkrows.h"
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
