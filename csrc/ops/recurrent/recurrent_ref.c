/*
 * recurrent_ref.c - recurrent layers and their gradients by definition; shape kinds.
 *
 * The rows "scalar" run on any CPU; every other row is tested against them. Sums are in
 * double, states between steps in float, as the tensors that hold them.
 */
#include "ops/recurrent/recurrent.h"

#include <math.h>
#include <string.h>

/*
 * By rows, or packed, or a cell, which stock computes otherwise, and whether a gradient
 * is kept for: few rows leave tiles of the products unfilled. work: multiply-adds;
 * sizes: rows, terms and columns of a step's product.
 */
enum {
    FEW_ROWS = 8,
    PACKED = 2,
    CELL = 3,
    N_KINDS = 5,
};

static ptac_reason classify(const ptac_call *call, ptac_shape *shape)
{
    const ptac_view *x = &call->inputs[PTAC_RECURRENT_X];
    const int64_t n_hidden = call->inputs[PTAC_RECURRENT_W_HH].sizes[1];
    const int64_t columns = ptac_recurrent_gates(call) * n_hidden;
    const int64_t n_rows = x->sizes[1];
    const ptac_recurrent *params = call->params;

    if (x->n_elements == 0 || n_hidden == 0)
        return PTAC_EMPTY;
    shape->kind =
        (call->n_outputs > PTAC_RECURRENT_GATES ? N_KINDS : 0) +
        (params->starts ? PACKED : (params->is_cell ? CELL : 0) + (n_rows >= FEW_ROWS));
    shape->work = x->sizes[0] * n_rows * (x->sizes[2] + n_hidden) * columns;
    return PTAC_TAKE;
}

#define KINDS(end)                                                                     \
    "few_rows" end, "rows" end, "packed" end, "cell_few_rows" end, "cell_rows" end

PTAC_SHAPES(LSTM, classify, KINDS(""), KINDS("_gradient"))
PTAC_SHAPES(GRU, classify, KINDS(""), KINDS("_gradient"))
PTAC_SHAPES(RNN_TANH, classify, KINDS(""), KINDS("_gradient"))
PTAC_SHAPES(RNN_RELU, classify, KINDS(""), KINDS("_gradient"))

/* What forward has kept is no use to stock: its row has decided. */
static ptac_reason classify_gradient(const ptac_call *call, ptac_shape *shape)
{
    const ptac_view *gates = &call->inputs[PTAC_RECURRENT_GRAD_GATES];

    if (gates->n_elements == 0)
        return PTAC_EMPTY;
    shape->kind = 0;
    shape->work = gates->n_elements;
    return PTAC_TAKE;
}

PTAC_SHAPES_OF(LSTM_BACKWARD, classify_gradient, 0, true, "any")
PTAC_SHAPES_OF(GRU_BACKWARD, classify_gradient, 0, true, "any")
PTAC_SHAPES_OF(RNN_TANH_BACKWARD, classify_gradient, 0, true, "any")
PTAC_SHAPES_OF(RNN_RELU_BACKWARD, classify_gradient, 0, true, "any")

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;

    for (int64_t k = 0; k < n; k++)
        sum += (double)a[k] * b[k];
    return sum;
}

/* A row of a step: where it lies, and the state before it. */
typedef struct row {
    const ptac_call *call;
    const float *x, *h;
    float c;
    int64_t n_in, n_hidden;
} row;

static const float *input(const ptac_call *call, int place)
{
    return call->inputs[place].data;
}

static double of_x(const row *r, int64_t column)
{
    const float *bias = input(r->call, PTAC_RECURRENT_B_IH);
    const float *w = input(r->call, PTAC_RECURRENT_W_IH) + column * r->n_in;

    return dot(r->x, w, r->n_in) + (bias ? bias[column] : 0);
}

static double of_h(const row *r, int64_t column)
{
    const float *bias = input(r->call, PTAC_RECURRENT_B_HH);
    const float *w = input(r->call, PTAC_RECURRENT_W_HH) + column * r->n_hidden;

    return dot(r->h, w, r->n_hidden) + (bias ? bias[column] : 0);
}

/* h of unit j; kept are its four values for the gradient. */
static double lstm_unit(row *r, int64_t j, double kept[PTAC_RECURRENT_KEPT])
{
    for (int gate = 0; gate < PTAC_LSTM_GATES; gate++) {
        const int64_t column = gate * r->n_hidden + j;
        const double sum = of_x(r, column) + of_h(r, column);

        kept[gate] = gate == 2 ? tanh(sum) : sigmoid(sum);
    }
    r->c = (float)(kept[1] * r->c + kept[0] * kept[2]);
    return kept[3] * tanh(r->c);
}

static double gru_unit(const row *r, int64_t j, double kept[PTAC_RECURRENT_KEPT])
{
    const int64_t n = r->n_hidden;

    for (int gate = 0; gate < 2; gate++)
        kept[gate] = sigmoid(of_x(r, gate * n + j) + of_h(r, gate * n + j));
    kept[3] = of_h(r, 2 * n + j);
    kept[2] = tanh(of_x(r, 2 * n + j) + kept[0] * kept[3]);
    return kept[2] + kept[1] * (r->h[j] - kept[2]);
}

/* ReLU hands a NaN on. */
static double rnn_unit(const row *r, int64_t j)
{
    const double sum = of_x(r, j) + of_h(r, j);

    return !ptac_recurrent_is_relu(r->call) ? tanh(sum) : sum < 0 ? 0 : sum;
}

/* Row b of step t. */
static void forward_row(const ptac_call *call, const ptac_recurrent_steps *steps,
                        int64_t t, int64_t b)
{
    const bool is_gru = ptac_recurrent_is_gru(call);
    const ptac_view *x = &call->inputs[PTAC_RECURRENT_X], *y = &call->outputs[0];
    const int64_t n = y->sizes[2], at = ptac_recurrent_at(steps, t, b);
    const int64_t before = ptac_recurrent_beside(steps, t, b, false);
    const int64_t x_step = steps->starts ? 0 : t, x_row = steps->starts ? at : b;
    float *all_y = y->data, *cn = call->outputs[PTAC_RECURRENT_CN].data;
    float *gates = call->outputs[PTAC_RECURRENT_GATES].data;
    float *cells = call->outputs[PTAC_RECURRENT_CELLS].data;
    row r = {
        .call = call,
        .x = (const float *)x->data + x_step * x->strides[0] + x_row * x->strides[1],
        .h = before >= 0 ? all_y + before * n : input(call, PTAC_RECURRENT_H0) + b * n,
        .n_in = x->sizes[2],
        .n_hidden = n,
    };

    for (int64_t j = 0; j < n; j++) {
        double kept[PTAC_RECURRENT_KEPT];

        if (!ptac_recurrent_is_lstm(call) && !is_gru) {
            all_y[at * n + j] = (float)rnn_unit(&r, j);
        } else if (is_gru) {
            all_y[at * n + j] = (float)gru_unit(&r, j, kept);
        } else {
            r.c = (before >= 0 ? cn : input(call, PTAC_RECURRENT_C0))[b * n + j];
            all_y[at * n + j] = (float)lstm_unit(&r, j, kept);
            cn[b * n + j] = r.c;
        }
        for (int i = 0; gates && i < PTAC_RECURRENT_KEPT; i++)
            gates[(at * PTAC_RECURRENT_KEPT + i) * n + j] = (float)kept[i];
        if (cells)
            cells[at * n + j] = r.c;
    }
    if (ptac_recurrent_beside(steps, t, b, true) < 0)
        memcpy((float *)call->outputs[PTAC_RECURRENT_HN].data + b * n, all_y + at * n,
               (size_t)n * sizeof(float));
}

static ptac_status run_forward(const ptac_call *call)
{
    const ptac_recurrent_steps steps =
        ptac_recurrent_steps_of(call, &call->inputs[PTAC_RECURRENT_X]);

    for (int64_t s = 0; s < steps.n_steps; s++) {
        const int64_t t = ptac_recurrent_step(&steps, s);

        for (int64_t b = 0; b < ptac_recurrent_rows(&steps, t); b++)
            forward_row(call, &steps, t, b);
    }
    return PTAC_OK;
}

/* What backward reads and writes of one unit of a row in a step. */
typedef struct unit {
    double kept[PTAC_RECURRENT_KEPT];
    double state, before; /* c or h, after the step and before it */
    double of_h, of_c;    /* gradients after the step; then those before it but for */
    double sums[4];       /* what goes through these, */
    double hidden[3];     /* or of gru these */
} unit;

static void lstm_gradient(unit *u)
{
    const double i = u->kept[0], f = u->kept[1], g = u->kept[2], o = u->kept[3];
    const double bent = tanh(u->state);
    const double of_c = u->of_c + u->of_h * o * (1 - bent * bent);

    u->sums[0] = of_c * g * i * (1 - i);
    u->sums[1] = of_c * u->before * f * (1 - f);
    u->sums[2] = of_c * i * (1 - g * g);
    u->sums[3] = u->of_h * bent * o * (1 - o);
    u->of_c = of_c * f;
    u->of_h = 0;
}

static void gru_gradient(unit *u)
{
    const double r = u->kept[0], z = u->kept[1], n = u->kept[2];
    const double of_n = u->of_h * (1 - z) * (1 - n * n);

    u->sums[0] = of_n * u->kept[3] * r * (1 - r);
    u->sums[1] = u->of_h * (u->before - n) * z * (1 - z);
    u->sums[2] = of_n;
    u->hidden[0] = u->sums[0];
    u->hidden[1] = u->sums[1];
    u->hidden[2] = of_n * r;
    u->of_h *= z;
}

static void rnn_gradient(const ptac_call *call, unit *u)
{
    if (ptac_recurrent_is_relu(call))
        u->sums[0] = u->state <= 0 ? 0 : u->of_h;
    else
        u->sums[0] = u->of_h * (1 - u->state * u->state);
    u->of_h = 0;
}

/* The row of y's gradient; NULL: zeros. */
static const float *grad_of_y(const ptac_call *call, const ptac_recurrent_steps *steps,
                              int64_t t, int64_t b)
{
    const ptac_view *grad = &call->inputs[PTAC_RECURRENT_GRAD_Y];
    const float *data = grad->data;

    if (!data)
        return NULL;
    return steps->starts ? data + ptac_recurrent_at(steps, t, b) * grad->strides[1]
                         : data + t * grad->strides[0] + b * grad->strides[1];
}

static float *output(const ptac_call *call, int place)
{
    return call->outputs[place].data;
}

/* Gradients of the sums of row b in step t, and of the states but for the product. */
static void backward_units(const ptac_call *call, const ptac_recurrent_steps *steps,
                           int64_t t, int64_t b)
{
    const bool is_gru = ptac_recurrent_is_gru(call);
    const int n_gates = ptac_recurrent_gates(call);
    const int64_t n = call->inputs[PTAC_RECURRENT_GRAD_W_HH].sizes[1];
    const int64_t at = ptac_recurrent_at(steps, t, b);
    const int64_t place = ptac_recurrent_beside(steps, t, b, false);
    const float *states = input(call, PTAC_RECURRENT_GRAD_STATES);
    const float *kept = input(call, PTAC_RECURRENT_GRAD_GATES);
    const float *of_y = grad_of_y(call, steps, t, b);
    const float *before = place >= 0 ? states + place * n
                                     : input(call, PTAC_RECURRENT_GRAD_FIRST) + b * n;
    float *of_h = output(call, PTAC_RECURRENT_OF_H0) + b * n;
    float *of_c = output(call, PTAC_RECURRENT_OF_C0);
    float *hidden = output(call, PTAC_RECURRENT_OF_HIDDEN_SUMS);
    float *sums = output(call, PTAC_RECURRENT_OF_SUMS);

    for (int64_t j = 0; j < n; j++) {
        unit u = {.state = states[at * n + j], .before = before[j], .of_h = of_h[j]};

        for (int i = 0; n_gates > 1 && i < PTAC_RECURRENT_KEPT; i++)
            u.kept[i] = kept[(at * PTAC_RECURRENT_KEPT + i) * n + j];
        if (of_y)
            u.of_h += of_y[j];
        u.of_c = of_c ? of_c[b * n + j] : 0;
        if (n_gates == PTAC_RNN_GATES)
            rnn_gradient(call, &u);
        else
            (is_gru ? gru_gradient : lstm_gradient)(&u);
        of_h[j] = (float)u.of_h;
        if (of_c)
            of_c[b * n + j] = (float)u.of_c;
        for (int i = 0; i < n_gates; i++) {
            sums[(at * n_gates + i) * n + j] = (float)u.sums[i];
            if (is_gru)
                hidden[(at * n_gates + i) * n + j] = (float)u.hidden[i];
        }
    }
}

/* The way of the gradient through w_hh. */
static void backward_product(const ptac_call *call, int64_t at, int64_t b)
{
    const int64_t n = call->inputs[PTAC_RECURRENT_GRAD_W_HH].sizes[1];
    const int64_t n_terms = ptac_recurrent_gates(call) * n;
    const float *w = input(call, PTAC_RECURRENT_GRAD_W_HH);
    const float *sums =
        output(call, ptac_recurrent_is_gru(call) ? PTAC_RECURRENT_OF_HIDDEN_SUMS
                                                 : PTAC_RECURRENT_OF_SUMS) +
        at * n_terms;
    float *of_h = output(call, PTAC_RECURRENT_OF_H0) + b * n;

    for (int64_t j = 0; j < n; j++) {
        double sum = of_h[j];

        for (int64_t k = 0; k < n_terms; k++)
            sum += (double)sums[k] * w[k * n + j];
        of_h[j] = (float)sum;
    }
}

static void start(const ptac_call *call, int from, int to)
{
    const ptac_view *last = &call->inputs[from], *running = &call->outputs[to];
    const size_t bytes = (size_t)running->n_elements * sizeof(float);

    if (running->data && last->data)
        memcpy(running->data, last->data, bytes);
    else if (running->data)
        memset(running->data, 0, bytes);
}

static void sum_rows(const ptac_call *call, int from, int to)
{
    const ptac_view *sums = &call->outputs[from];

    if (!sums->data)
        return;
    for (int64_t j = 0; j < sums->sizes[2]; j++) {
        double sum = 0;

        for (int64_t i = 0; i < sums->sizes[0] * sums->sizes[1]; i++)
            sum += ((const float *)sums->data)[i * sums->sizes[2] + j];
        output(call, to)[j] = (float)sum;
    }
}

static ptac_status run_backward(const ptac_call *call)
{
    const ptac_recurrent_steps steps =
        ptac_recurrent_steps_of(call, &call->inputs[PTAC_RECURRENT_GRAD_GATES]);

    start(call, PTAC_RECURRENT_GRAD_HN, PTAC_RECURRENT_OF_H0);
    start(call, PTAC_RECURRENT_GRAD_CN, PTAC_RECURRENT_OF_C0);
    for (int64_t s = steps.n_steps - 1; s >= 0; s--) {
        const int64_t t = ptac_recurrent_step(&steps, s);

        for (int64_t b = 0; b < ptac_recurrent_rows(&steps, t); b++) {
            backward_units(call, &steps, t, b);
            backward_product(call, ptac_recurrent_at(&steps, t, b), b);
        }
    }
    sum_rows(call, PTAC_RECURRENT_OF_SUMS, PTAC_RECURRENT_OF_B_IH);
    sum_rows(call, PTAC_RECURRENT_OF_HIDDEN_SUMS, PTAC_RECURRENT_OF_B_HH);
    return PTAC_OK;
}

PTAC_ROW(LSTM, "scalar", PTAC_CLOSE, 0, ptac_accept_all, run_forward)
PTAC_ROW(GRU, "scalar", PTAC_CLOSE, 0, ptac_accept_all, run_forward)
PTAC_ROW(LSTM_BACKWARD, "scalar", PTAC_CLOSE, 0, ptac_accept_all, run_backward)
PTAC_ROW(GRU_BACKWARD, "scalar", PTAC_CLOSE, 0, ptac_accept_all, run_backward)
PTAC_ROW(RNN_TANH, "scalar", PTAC_CLOSE, 0, ptac_accept_all, run_forward)
PTAC_ROW(RNN_RELU, "scalar", PTAC_CLOSE, 0, ptac_accept_all, run_forward)
PTAC_ROW(RNN_TANH_BACKWARD, "scalar", PTAC_CLOSE, 0, ptac_accept_all, run_backward)
PTAC_ROW(RNN_RELU_BACKWARD, "scalar", PTAC_CLOSE, 0, ptac_accept_all, run_backward)
