/*
 * narrow.c - calls of float32 as a device's rows take them in 16 bits, and the
 * comparison of what comes of that with float32's.
 */
#include "narrow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void test_also_16_bits(test_call *c)
{
    test_buffer *b = &c->buffers[c->n_buffers - 1];

    b->also_16_bits = b->dtype == PTAC_F32;
}

static void set_views(ptac_view *views, const int *buffers, int n, int buffer,
                      ptac_dtype dtype)
{
    for (int i = 0; i < n; i++)
        if (buffers[i] == buffer)
            views[i].dtype = dtype;
}

/* The buffer's content, and the tensors that lie there, become of this dtype. */
static void convert(test_call *c, int buffer, ptac_dtype dtype)
{
    test_buffer *b = &c->buffers[buffer];
    void *content = calloc((size_t)b->n_elements + 1, dtype_bytes(dtype));

    if (!content)
        abort();
    for (int64_t i = 0; i < b->n_elements; i++)
        set_real(dtype, content, i, real_at(b->dtype, b->content, i));
    free(b->content);
    b->content = content;
    b->dtype = dtype;
    b->element_bytes = dtype_bytes(dtype);
    set_views(c->call.inputs, c->input_buffers, c->call.n_inputs, buffer, dtype);
    set_views(c->call.outputs, c->output_buffers, c->call.n_outputs, buffer, dtype);
}

bool test_widen(test_call *c)
{
    bool any = false;

    for (int i = 0; i < c->n_buffers; i++) {
        if (c->buffers[i].dtype == PTAC_BF16) {
            convert(c, i, PTAC_F32);
            c->buffers[i].also_16_bits = true;
        }
        any |= c->buffers[i].also_16_bits;
    }
    return any;
}

static double largest(ptac_dtype dtype)
{
    return dtype == PTAC_F16 ? 65504 : 0x1.fep127;
}

/* Finite numbers stay finite: sums that generators have bounded stay so. */
void test_round(test_call *c, ptac_dtype dtype)
{
    for (int i = 0; i < c->n_buffers; i++) {
        const test_buffer *b = &c->buffers[i];
        float *content = b->content;

        for (int64_t k = 0; b->also_16_bits && k < b->n_elements; k++) {
            uint16_t rounded;

            if (isfinite(content[k]) && fabs(content[k]) > largest(dtype))
                content[k] = (float)copysign(largest(dtype), content[k]);
            set_real(dtype, &rounded, 0, content[k]);
            content[k] = (float)real_at(dtype, &rounded, 0);
        }
    }
}

void test_narrow(test_call *c, ptac_dtype dtype)
{
    for (int i = 0; i < c->n_buffers; i++)
        if (c->buffers[i].also_16_bits)
            convert(c, i, dtype);
}

static double rounded_to(ptac_dtype dtype, double value)
{
    uint16_t bits;

    set_real(dtype, &bits, 0, value);
    return real_at(dtype, &bits, 0);
}

int64_t first_difference_16(const test_buffer *like, const float *expected,
                            const void *got, const equality *rule)
{
    const double allowed = rule->bits ? 0 : rule->allowed;

    for (int64_t i = 0; i < like->n_elements; i++) {
        const double a = expected[i], b = real_at(like->dtype, got, i);

        if (isnan(a) && isnan(b))
            continue;
        if (!(b >= rounded_to(like->dtype, a - allowed) &&
              b <= rounded_to(like->dtype, a + allowed)) ||
            (rule->bits && !signbit(a) != !signbit(b)))
            return i;
    }
    return -1;
}
