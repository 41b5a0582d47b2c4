/*
 * testcall.c - building a call, laying it out in memory, comparing what came of it.
 */
#include "checkrows.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NO_BUFFER = -1,
};

static void set_strides(int n_dims, const int64_t *sizes, bool channels_last,
                        int64_t *strides)
{
    int order[5];
    int64_t step = 1;

    for (int i = 0; i < n_dims; i++) {
        const int d = channels_last && ptac_channels_last_order(n_dims, order)
                          ? order[i]
                          : n_dims - 1 - i;

        strides[d] = step;
        step *= sizes[d] > 0 ? sizes[d] : 1;
    }
}

void *test_memory(test_call *c, buffer_use use, ptac_dtype dtype, int64_t n_elements)
{
    test_buffer *b = &c->buffers[c->n_buffers++];

    *b = (test_buffer){
        .use = use,
        .dtype = dtype,
        .element_bytes = dtype == PTAC_OTHER_DTYPE ? 1 : dtype_bytes(dtype),
        .n_elements = n_elements,
    };
    b->content = calloc((size_t)n_elements + 1, b->element_bytes);
    if (!b->content)
        abort();
    snprintf(b->name, sizeof b->name, "memory %d", c->n_buffers - 1);
    return b->content;
}

static void set_view(test_call *c, ptac_view *view, int slot, ptac_dtype dtype,
                     int n_dims, const int64_t *sizes, bool channels_last)
{
    view->sizes = c->sizes[slot];
    view->strides = c->strides[slot];
    view->n_dims = n_dims;
    view->dtype = dtype;
    view->n_elements = 1;
    for (int i = 0; i < n_dims; i++) {
        c->sizes[slot][i] = sizes[i];
        view->n_elements *= sizes[i];
    }
    set_strides(n_dims, sizes, channels_last, c->strides[slot]);
}

void *test_input(test_call *c, ptac_dtype dtype, int n_dims, const int64_t *sizes,
                 bool channels_last)
{
    const int i = c->call.n_inputs++;
    ptac_view *view = &c->call.inputs[i];

    set_view(c, view, i, dtype, n_dims, sizes, channels_last);
    c->input_buffers[i] = c->n_buffers;
    test_memory(c, READS, dtype, view->n_elements);
    snprintf(c->buffers[c->n_buffers - 1].name, sizeof c->buffers[0].name, "input %d",
             i);
    return c->buffers[c->n_buffers - 1].content;
}

void test_output(test_call *c, ptac_dtype dtype, int n_dims, const int64_t *sizes,
                 bool channels_last)
{
    const int i = c->call.n_outputs++;
    ptac_view *view = &c->call.outputs[i];

    set_view(c, view, PTAC_MAX_INPUTS + i, dtype, n_dims, sizes, channels_last);
    c->output_buffers[i] = c->n_buffers;
    test_memory(c, WRITES, dtype, view->n_elements);
    snprintf(c->buffers[c->n_buffers - 1].name, sizeof c->buffers[0].name, "output %d",
             i);
}

void test_output_in_place(test_call *c, int input)
{
    const int i = c->call.n_outputs++;

    c->call.outputs[i] = c->call.inputs[input];
    c->output_buffers[i] = c->input_buffers[input];
    c->buffers[c->input_buffers[input]].use = UPDATES;
}

void test_no_input(test_call *c)
{
    c->input_buffers[c->call.n_inputs++] = NO_BUFFER;
}

void test_no_output(test_call *c)
{
    c->output_buffers[c->call.n_outputs++] = NO_BUFFER;
}

void test_call_clear(test_call *c)
{
    for (int i = 0; i < c->n_buffers; i++)
        free(c->buffers[i].content);
    memset(c, 0, sizeof *c);
    c->call.params = c->params;
}

static void *data_of(const test_call *c, int buffer)
{
    return buffer == NO_BUFFER ? NULL : c->buffers[buffer].data;
}

void test_call_place(rng *r, test_call *c, const generator *g)
{
    for (int i = 0; i < c->n_buffers; i++) {
        test_buffer *b = &c->buffers[i];
        const size_t bytes = (size_t)b->n_elements * b->element_bytes;

        b->data = arena_place(r, i, bytes, b->element_bytes);
        /* Noise that no row would write by accident. */
        if (b->use == WRITES || b->use == SCRATCH)
            memset(b->data, r ? (int)rng_between(r, 0x61, 0x7a) : 0x61, bytes);
        else
            memcpy(b->data, b->content, bytes);
    }
    for (int i = 0; i < c->call.n_inputs; i++)
        c->call.inputs[i].data = data_of(c, c->input_buffers[i]);
    for (int i = 0; i < c->call.n_outputs; i++)
        c->call.outputs[i].data = data_of(c, c->output_buffers[i]);
    if (g->place)
        g->place(c);
}

int64_t test_bytes(const test_call *c)
{
    int64_t bytes = 0;

    for (int i = 0; i < c->n_buffers; i++) {
        const test_buffer *b = &c->buffers[i];
        const int times = b->use == SCRATCH ? 0 : b->use == UPDATES ? 2 : 1;

        bytes += times * b->n_elements * (int64_t)b->element_bytes;
    }
    return bytes;
}

static bool is_real(ptac_dtype dtype)
{
    return dtype == PTAC_F32 || dtype == PTAC_BF16 || dtype == PTAC_F64 ||
           dtype == PTAC_F16;
}

int64_t first_difference(const test_buffer *like, const void *expected, const void *got,
                         const equality *rule)
{
    const size_t size = like->element_bytes;

    if (memcmp(expected, got, size * (size_t)like->n_elements) == 0)
        return -1;
    for (int64_t i = 0; i < like->n_elements; i++) {
        const size_t at = (size_t)i * size;

        if (memcmp((const char *)expected + at, (const char *)got + at, size) == 0)
            continue;
        if (!is_real(like->dtype))
            return i;

        const double a = real_at(like->dtype, expected, i);
        const double b = real_at(like->dtype, got, i);

        if (isnan(a) && isnan(b) && !(rule->bits && rule->nan_bits >> like->dtype & 1))
            continue;
        if (rule->bits || !(fabs(a - b) <= rule->allowed))
            return i;
    }
    return -1;
}

/* The smallest number: what is near it cannot be rounded more finely. */
static double smallest(ptac_dtype dtype)
{
    return dtype == PTAC_F64 ? DBL_TRUE_MIN : dtype == PTAC_BF16 ? 0x1p-133 : 0x1p-149;
}

double roundings_of(const test_buffer *like, const void *expected, double roundings)
{
    const double unit = like->dtype == PTAC_F64    ? 0x1p-53
                        : like->dtype == PTAC_BF16 ? 0x1p-9
                                                   : 0x1p-24;
    double largest = like->least_scale;

    if (!is_real(like->dtype))
        return 0;
    for (int64_t i = 0; i < like->n_elements; i++) {
        const double magnitude = fabs(real_at(like->dtype, expected, i));

        if (isfinite(magnitude) && magnitude > largest)
            largest = magnitude;
    }
    return roundings * (unit * largest + smallest(like->dtype));
}
